"""A stream of batches that can be read more than once."""

from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import Any

import pyarrow as pa

__all__ = ["Spool"]

_IN_MEMORY_BYTES = 64 * 1024 * 1024


class Spool:
    """Keeps what is read from a one-shot stream: small in memory, large on disk."""

    def __init__(self, data: Any) -> None:
        self._source = pa.RecordBatchReader.from_stream(data)
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115
        self._writer: Any = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self._source.schema

    def reader(self) -> pa.RecordBatchReader:
        """All batches, from the first on."""
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._file, self.schema)
            return pa.RecordBatchReader.from_batches(self.schema, self._rest())
        for _ in self._rest():
            pass
        self._writer.close()
        self._file.seek(0)
        return pa.ipc.open_stream(self._file)

    def close(self) -> None:
        """Let go of what was kept."""
        self._file.close()

    def _rest(self) -> Iterator[pa.RecordBatch]:
        for batch in self._source:
            self._writer.write_batch(batch)
            yield batch
