"""The sizes and the compression of the data files that a write makes."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import Metadata, known
from delkalakedb.model.schema.properties import parse_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TARGET = "delta.targetFileSize"
_RECORDS = "spark.sql.files.maxRecordsPerFile"
_CODEC = "spark.sql.parquet.compression.codec"
# pyarrow's names by Spark's; Spark's `lz4` is an older format that few readers know
_CODECS = {
    "brotli": "brotli",
    "gzip": "gzip",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "none": "none",
    "snappy": "snappy",
    "uncompressed": "none",
    "zstd": "zstd",
}


@dataclass(frozen=True)
class FileOptions:
    """The sizes and the compression of new files; None means the default.

    Args:
        max_records: the most rows of a file.
        compression: the codec by Spark's name.
        target_bytes: the size at which a file ends.
    """

    max_records: int | None = None
    compression: str | None = None
    target_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.compression is not None and self.compression.lower() not in _CODECS:
            raise DeltaError(
                f"compression must be one of {', '.join(_CODECS)}, not "
                f"{self.compression!r}"
            )
        limits = {
            "the number of records of a file": self.max_records,
            "the size of a file in bytes": self.target_bytes,
        }
        for name, limit in limits.items():
            if limit is not None and limit < 1:
                raise DeltaError(f"{name} must be at least 1, not {limit}")

    @property
    def codec(self) -> str:
        """The codec by pyarrow's name."""
        return _CODECS[(self.compression or "snappy").lower()]

    @property
    def of_spark(self) -> dict[str, str]:
        """The options of Spark's writer."""
        found = {}
        if self.max_records is not None:
            found["maxRecordsPerFile"] = str(self.max_records)
        if self.compression is not None:
            codec = self.compression.lower()
            found["compression"] = "lz4_raw" if codec == "lz4" else codec
        return found

    def completed(
        self, spark: "SparkSession | None", metadata: Metadata
    ) -> "FileOptions":
        """Return the options with those of the session and of the table added."""
        size = (known(metadata.configuration) or {}).get(_TARGET)
        target = self.target_bytes or (parse_size(size) if size else None)
        if spark is None:
            return replace(self, target_bytes=target)
        records = int(spark.conf.get(_RECORDS, "0") or 0)
        return FileOptions(
            self.max_records or (records if records > 0 else None),
            self.compression or spark.conf.get(_CODEC, "snappy"),
            target,
        )

    def group_bytes(self, most_bytes: int) -> int:
        """Return the size of row groups in memory, at most `most_bytes`."""
        return min(self.target_bytes or most_bytes, most_bytes)

    def room(self, num_rows: int, more: pa.Table) -> int:
        """Return how many rows of `more` to add at once to a file with `num_rows`."""
        most: int = more.num_rows
        size_bytes: int = more.nbytes
        if self.target_bytes is not None and size_bytes > self.target_bytes:
            most = max(1, most * self.target_bytes // size_bytes)
        return (
            most if self.max_records is None else min(most, self.max_records - num_rows)
        )

    def is_full(self, num_rows: int, size_bytes: int) -> bool:
        """Return whether a file of this size ends."""
        records, target = self.max_records, self.target_bytes
        by_rows = records is not None and num_rows >= records
        return by_rows or (target is not None and size_bytes >= target)
