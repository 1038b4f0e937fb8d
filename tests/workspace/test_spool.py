"""A stream that is read more than once gives the same each time."""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from delkalakedb.write import files as spool
from delkalakedb.write.files import Spool

BATCHES = [pa.record_batch({"x": [i, i + 1]}) for i in range(4)]


def one_shot(read: list[int]) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(BATCHES):
            read.append(number)
            yield batch

    return pa.RecordBatchReader.from_batches(BATCHES[0].schema, batches())


@pytest.mark.parametrize("in_memory_bytes", [1, 2**20])
def test_each_reader_gives_all_batches(
    in_memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_IN_MEMORY_BYTES", in_memory_bytes)
    read: list[int] = []
    with closing(Spool(one_shot(read))) as kept:
        for _ in range(3):
            assert list(kept.reader()) == BATCHES
    assert read == [0, 1, 2, 3]


def test_first_reader_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    with closing(Spool(one_shot(read))) as kept:
        reader = kept.reader()
        assert read == []
        reader.read_next_batch()
        assert read == [0]
        assert list(kept.reader()) == BATCHES
