"""The change data feed, read by Arrow where delta-rs reports the wrong rows.

A commit may add or remove a whole file that has a deletion vector, and write no change
data. delta-rs then reports the deleted rows of the file instead of its live rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from arro3.core import RecordBatchReader
from deltalake._internal import PyQueryBuilder

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.catalog.read import LoggedCommit
from delkalakedb.deltalake.scan import open_rows
from delkalakedb.errors import VersionNotFoundError
from delkalakedb.model.actions import CommitInfo
from delkalakedb.model.changes import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from delkalakedb.model.rules.features import IN_COMMIT_TIMESTAMP
from delkalakedb.model.times import parse_rfc_3339, to_ms
from delkalakedb.write.engines import ArrowReader, DataFile, arrow_reader, feed_files
from delkalakedb.write.engines.deltars import arrow_schema

_OWN = pa.schema(
    [
        (CHANGE_TYPE, pa.string()),
        (COMMIT_VERSION, pa.int64()),
        (COMMIT_TIMESTAMP, pa.timestamp("us")),
    ]
)
_NAME = "source"


@dataclass(frozen=True)
class Feed:
    """The changes of a table, as the arguments of deltalake's `load_cdf` select them.

    Args:
        catalog: the catalog.
        snapshot: the version whose columns the changed rows have.
        newest: the last version to consider; by default the latest.
        options: the arguments of `load_cdf`.
        storage_options: the options of the table's object store.
    """

    catalog: Catalog
    snapshot: Snapshot
    newest: int | None
    options: Mapping[str, Any]
    storage_options: Mapping[str, str] | None

    @cached_property
    def is_misread(self) -> bool:
        """Whether delta-rs reports the wrong rows of some file."""
        try:
            return any(f.deletion_vector and not f.only_rows for f in self._files())
        except VersionNotFoundError:
            # The log may still have the commits before an import.
            return False

    def read(self, schema: pa.Schema) -> RecordBatchReader:
        """Return the changed rows with the columns of `schema`."""
        columns, predicate = self.options["columns"], self.options["predicate"]
        if predicate is None and columns in (None, schema.names):
            return RecordBatchReader.from_arrow(self._rows(schema.names).cast(schema))
        # Only delta-rs evaluates the predicate, and columns that are expressions.
        real = open_rows(self._rows(None))
        query = PyQueryBuilder()
        query.register(_NAME, real.raw)
        selected = "*" if columns is None else ", ".join(columns)
        where = "" if predicate is None else f" WHERE ({predicate})"
        found = query.execute(f"SELECT {selected} FROM {_NAME}{where}")
        kept = pa.RecordBatchReader.from_stream(real.keeping(found))
        return RecordBatchReader.from_arrow(kept.cast(schema))

    def _rows(self, names: list[str] | None) -> pa.RecordBatchReader:
        metadata = self.snapshot.metadata
        own = arrow_schema(metadata.schema_string)
        # delta-rs's order, in which partition columns are the last of the table's own
        places = {name: n for n, name in enumerate(metadata.partition_columns)}
        ordered = sorted(own, key=lambda field: places.get(field.name, -1))
        fields = {f.name: pa.field(f.name, f.type) for f in (*ordered, *_OWN)}
        wanted = list(fields) if names is None else names
        target = pa.schema([fields[name] for name in wanted])
        reader: ArrowReader = arrow_reader(self.snapshot, target, self.storage_options)
        return pa.RecordBatchReader.from_batches(target, reader.read(self._files()))

    def _files(self) -> Iterator[DataFile]:
        """Yield the files with changed rows, in the order of the versions."""
        name = self.snapshot.table.name
        log = self.catalog.log(name, self.snapshot.identity)
        oldest = log.head().first_version
        first = self.options["starting_version"]
        if first is None:
            first = oldest + 1 if oldest else 0
        last = log.latest_version() if self.newest is None else self.newest
        if (end := self.options["ending_version"]) is not None:
            last = min(last, end)
        since, until = (
            None if text is None else to_ms(parse_rfc_3339(text))
            for text in (
                self.options["starting_timestamp"],
                self.options["ending_timestamp"],
            )
        )
        for commit in log.commits(first, last):
            at_ms = _time_of(commit)
            if (since or at_ms) <= at_ms <= (at_ms if until is None else until):
                yield from feed_files(self.catalog, name, commit, at_ms)


def _time_of(commit: LoggedCommit) -> int:
    """Return the time of a commit as delta-rs reads it, in milliseconds."""
    infos = (a.fields for a in commit.actions if isinstance(a, CommitInfo))
    info = next(infos, {})
    return int(info.get(IN_COMMIT_TIMESTAMP) or info.get("timestamp") or 0)
