"""A table's head, which one round trip loads, and the names that tables may have.

The head also says which columns have their bounds indexed. The choice is made when the
metadata changes, so a writer with other settings still writes index rows for the
columns that were chosen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import msgspec

from delkalakedb.catalog.engine import Backend, HeadRow, Insert, Session, listed
from delkalakedb.errors import (
    DeltaError,
    ProtocolError,
    ReadOnlyError,
    ReadOnlyFeatureError,
    TableNotFoundError,
    VersionNotFoundError,
)
from delkalakedb.model.actions import Metadata, Protocol, decode_struct, known
from delkalakedb.model.records import Table
from delkalakedb.model.rules.protocol import check_writable
from delkalakedb.model.schema.schema import Column, parse_schema
from delkalakedb.model.stats.values import TIMES, Kind, kind_of

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.model.stats.stats import Entries, Stats


_MAX_NAME_BYTES = 255
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
# `scheme://` anywhere, and `scheme:/` or `deltasql:` at the beginning
_URI = re.compile(r"://|^\s*(?:[a-z][a-z0-9+.-]*:/|deltasql:)", re.IGNORECASE)
_MAX_LOCATION_BYTES = 2000


def check_name(name: str) -> None:
    """Refuse a name that no URI can have, that looks like a URI, or that is too long.

    A URI isn't shown, because it may hold a password.
    """
    if _URI.search(name):
        raise DeltaError(
            "a table can't have a URI as its name; give the name alone, such as 'sales'"
        )
    if not name or _UNPRINTABLE.search(name):
        raise DeltaError(f"{name!r}: a table can't have this name")
    _check_size("name", name, _MAX_NAME_BYTES)


def check_place(name: str, location: str) -> None:
    """Raise an error if a name or a location is invalid or too long."""
    check_name(name)
    _check_size("location", location, _MAX_LOCATION_BYTES)


def no_such_table(name: str) -> TableNotFoundError:
    """Return the error for a table that isn't in the catalog.

    A URI isn't shown, because it may hold a password.
    """
    if _URI.search(name):
        return TableNotFoundError(
            "the catalog has no table with a URI as its name; give the name alone"
        )
    return TableNotFoundError(f"{name}: the catalog has no such table")


def _check_size(what: str, text: str, limit: int) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > limit:
        raise DeltaError(f"a table's {what} can't be longer than {limit} bytes")


Identity = tuple[int, int]
# No version that a database can hold is as great.
_MOST_VERSIONS = 2**63 - 1

# The hold of a table that others write by file.
FOLLOWING = "following"
# A file id carries its table in the bits above these.
FILES_PER_TABLE = 1 << 40


@dataclass(frozen=True, slots=True)
class Head:
    """A table, and one of its versions."""

    table_id: int
    name: str
    location: str
    created_at_ms: int
    current_version: int
    first_version: int
    next_file: int
    version: int
    timestamp_ms: int
    num_files: int
    size_bytes: int
    metadata_version: int
    protocol_version: int
    stat_columns: tuple[StatColumn, ...]
    metadata: Metadata
    protocol: Protocol
    # Why this catalog may not commit to the table.
    hold: str | None = None

    @property
    def identity(self) -> Identity:
        """The table's identity, which stays unique if the database is recreated."""
        return self.table_id, self.created_at_ms

    def check_ours(self) -> None:
        """Raise `ReadOnlyError` if this catalog can't or may not write to the table."""
        if self.hold in (None, FOLLOWING):
            self.check_writable()
        if self.hold is None:
            return
        advice = "Write to the table there"
        if self.hold == FOLLOWING:
            advice = (
                "Write with the table's own writers, or take the table over with "
                "dk.cut_over(uri)"
            )
        raise ReadOnlyError(
            f"{self.name}: nothing was written, because the table is read-only here "
            f"({self.hold}). {advice}"
        )

    def check_writable(self) -> None:
        """Raise `ReadOnlyFeatureError` if a feature prevents writes to the table."""
        try:
            check_writable(self.protocol, self.metadata)
        except ProtocolError as error:
            raise ReadOnlyFeatureError(
                f"{self.name}: nothing was written, because the table is read-only "
                f"here: {error}. Write to it with an engine that supports this, or "
                "drop the feature there; dk.sync(uri) takes in what was written"
            ) from error

    @property
    def read_only(self) -> str | None:
        """Why the table is read-only here; None if it is writable."""
        try:
            self.check_ours()
        except ReadOnlyError as error:
            return str(error)
        return None

    def table(self) -> Table:
        """Return the public view of the table at this version."""
        return Table(
            name=self.name,
            id=self.metadata.id,
            location=self.location,
            version=self.version,
            timestamp_ms=self.timestamp_ms,
            schema_string=self.metadata.schema_string,
            partition_columns=tuple(self.metadata.partition_columns),
            configuration=dict(known(self.metadata.configuration) or {}),
            description=known(self.metadata.description),
            min_reader_version=self.protocol.min_reader_version,
            min_writer_version=self.protocol.min_writer_version,
            reader_features=tuple(known(self.protocol.reader_features) or ()),
            writer_features=tuple(known(self.protocol.writer_features) or ()),
            created_time_ms=known(self.metadata.created_time),
            num_files=self.num_files,
            size_bytes=self.size_bytes,
        )


def check_identity(name: str, found: Identity, asked: Identity | None) -> None:
    """Raise an error if another table has taken the name of the table that was read."""
    if asked not in (None, found):
        raise TableNotFoundError(
            f"{name}: the table was renamed or dropped, and another one has its name; "
            "open it again"
        )


def find_head(
    backend: Backend,
    name: str,
    version: int | None = None,
    identity: Identity | None = None,
) -> Head:
    """Return a table at a version, the latest by default, in one round trip.

    A head in the backend's memory takes no round trip.
    """

    def load() -> Head:
        with backend.reading() as session:
            return load_head(session, name, version, identity)

    if not backend.capabilities.keeps_heads or backend.is_gone():
        return load()
    head: Head = backend.heads.get((name, version), load)
    check_identity(name, head.identity, identity)
    return head


def find_kept(backend: Backend, name: str, version: int | None = None) -> Head | None:
    """Return the head that the backend keeps of a table at a version, if there is one.

    The head of the latest version is kept under None.
    """
    if not backend.capabilities.keeps_heads:
        return None
    return backend.heads.find((name, version))


def load_head(
    session: Session,
    name: str,
    version: int | None = None,
    identity: Identity | None = None,
) -> Head:
    """Load a table at a version, the latest by default.

    This takes one round trip, and another one each for metadata and protocol if they
    changed after the version.
    """
    asked = version if version is None else min(version, _MOST_VERSIONS)
    rows = session.rows(HeadRow, "load_head", {"name": name, "version": asked})
    if not rows:
        raise no_such_table(name)
    (row,) = rows
    check_identity(name, (row.table_id, row.created_at_ms), identity)
    if row.version is None:
        raise VersionNotFoundError(
            f"{name}: there is no version {version}; the catalog holds "
            f"{row.first_version} to {row.current_version}"
        )
    return parse_head(session, row)


def parse_head(session: Session, row: HeadRow) -> Head:
    """Parse the head in a row whose version is in the catalog."""
    assert row.version is not None
    metadata, protocol = row.metadata, row.protocol
    if row.metadata_version != row.latest_metadata_version:
        key = {"table_id": row.table_id, "version": row.metadata_version}
        (metadata,) = session.values("load_metadata_at", key)
    if row.protocol_version != row.latest_protocol_version:
        key = {"table_id": row.table_id, "version": row.protocol_version}
        (protocol,) = session.values("load_protocol_at", key)
    return Head(
        table_id=row.table_id,
        name=row.name,
        location=row.location,
        created_at_ms=row.created_at_ms,
        current_version=row.current_version,
        first_version=row.first_version,
        next_file=row.next_file,
        version=row.version,
        timestamp_ms=row.timestamp_ms,
        num_files=row.num_files,
        size_bytes=row.size_bytes,
        metadata_version=row.metadata_version,
        protocol_version=row.protocol_version,
        stat_columns=parse_columns(row.stat_columns),
        metadata=decode_struct(metadata, Metadata),
        protocol=decode_struct(protocol, Protocol),
        hold=row.hold,
    )


TABLES = {Kind.NUMBER: "dl_number_stats", Kind.TEXT: "dl_text_stats"}
# files; of fewer, the index entries are made sooner one by one
_MANY = 200
# A column id carries its table in the bits above these.
COLUMNS_PER_TABLE = 1 << 16


class StatColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column whose bounds are indexed for files added from `since` on.

    `until` is the version from which they aren't any more; `classes` are the width
    classes that its intervals have fallen into.
    """

    column_id: int
    physical: tuple[str, ...]
    unit: str
    since: int
    until: int | None = None
    classes: frozenset[int] = frozenset()

    @property
    def kind(self) -> Kind:
        """The table of statistics that holds the column's rows."""
        return Kind.TEXT if self.unit == Kind.TEXT else Kind.NUMBER


_decoder = msgspec.json.Decoder(tuple[StatColumn, ...])


def parse_columns(text: str) -> tuple[StatColumn, ...]:
    """Parse the columns as a head row stores them."""
    return _decoder.decode(text)


def unit_of(column: Column) -> str | None:
    """Return the unit of a column's stored bounds; only equal units compare."""
    kind = kind_of(column.type)
    if kind is None or column.type in ("date", *TIMES):
        return None if kind is None else column.type
    return kind.value


def revise(
    columns: Sequence[StatColumn],
    metadata: Metadata,
    *,
    table_id: int,
    version: int,
    limit: int,
) -> tuple[StatColumn, ...]:
    """Return the columns after a metadata change.

    A column stays indexed as long as it is in the schema. A new column is indexed from
    this version on; for older files the planner reads the statistics.
    """
    leaves = _leaves(metadata.schema_string)
    result = [
        column
        if column.until is not None or (column.physical, column.unit) in leaves
        else msgspec.structs.replace(column, until=version)
        for column in columns
    ]
    have = {(c.physical, c.unit) for c in result if c.until is None}
    for leaf in _chosen(metadata, limit):
        unit, full = unit_of(leaf), len(result) == COLUMNS_PER_TABLE
        if unit is not None and (leaf.physical, unit) not in have and not full:
            column_id = table_id * COLUMNS_PER_TABLE + len(result)
            result.append(StatColumn(column_id, leaf.physical, unit, version))
    return tuple(result)


def index_files(
    columns: Sequence[StatColumn],
    metadata: Metadata,
    version: int,
    file_ids: Sequence[int] | pa.Array,
    partition_values: Sequence[Mapping[str, str | None]],
    stats: Sequence[Stats | None],
) -> tuple[tuple[StatColumn, ...], list[Insert]]:
    """Return the columns with the files' width classes, and the index rows."""
    leaves = _leaves(metadata.schema_string)
    entries_of = _entries_of(partition_values, stats, set(metadata.partition_columns))
    found: dict[Kind, list[tuple[int, Entries]]] = {kind: [] for kind in Kind}
    result = []
    for column in columns:
        leaf = leaves.get((column.physical, column.unit))
        if column.until is None and leaf is not None:
            entries = entries_of(leaf)
            found[column.kind].append((column.column_id, entries))
            column = _with_classes(column, set(listed(entries[2])))
        result.append(column)
    inserts = [
        Insert(TABLES[kind], _rows(version, file_ids, some))
        for kind, some in found.items()
        if some
    ]
    return tuple(result), inserts


def _entries_of(
    partition_values: Sequence[Mapping[str, str | None]],
    stats: Sequence[Stats | None],
    partitions: Set[str],
) -> Callable[[Column], Entries]:
    """Return a function that gives the index entries of all files for a column."""
    from delkalakedb.model.stats.stats import data_entry, partition_entry

    if len(stats) >= _MANY:
        from delkalakedb.model.stats.index import (
            FileStats,
            index_entries,
            partition_entries,
        )

        files = FileStats(stats)
        return lambda column: (
            partition_entries(column, partition_values)
            if column.path[0] in partitions
            else index_entries(column, files)
        )

    def entries(column: Column) -> Entries:
        each = map(partial(data_entry, column), stats)
        if column.path[0] in partitions:
            each = map(partial(partition_entry, column), partition_values)
        lo, hi, classes, has_null = zip(*each, strict=True)
        return lo, hi, classes, has_null

    return entries


def _rows(
    version: int,
    file_ids: Sequence[int] | pa.Array,
    found: Sequence[tuple[int, Entries]],
) -> dict[str, Sequence[Any] | pa.Array]:
    parts = zip(*(entries for _, entries in found), strict=True)
    lo, hi, classes, has_null = map(_joined, parts)
    size = len(file_ids)
    return {
        "file_id": _joined([file_ids] * len(found)),
        "column_id": [column_id for column_id, _ in found for _ in range(size)],
        "class": classes,
        "lo": lo,
        "hi": hi,
        "has_null": has_null,
        "added_version": [version] * size * len(found),
    }


def _joined(parts: Sequence[Any]) -> Sequence[Any] | pa.Array:
    import pyarrow as pa

    if all(isinstance(part, pa.Array) for part in parts):
        return pa.concat_arrays(parts)
    return [value for part in parts for value in listed(part)]


def _with_classes(column: StatColumn, classes: set[int]) -> StatColumn:
    if classes <= column.classes:
        return column
    return msgspec.structs.replace(column, classes=column.classes | classes)


@lru_cache(maxsize=64)
def _leaves(schema_string: str) -> dict[tuple[tuple[str, ...], str | None], Column]:
    """Return the columns of a schema by physical name and unit."""
    leaves = parse_schema(schema_string).leaves()
    return {(column.physical, unit_of(column)): column for column in leaves}


def _chosen(metadata: Metadata, limit: int) -> Iterator[Column]:
    from delkalakedb.model.schema.properties import parse_properties

    schema = parse_schema(metadata.schema_string)
    partitions = set(metadata.partition_columns)
    yield from (c for c in schema.leaves() if c.path[0] in partitions)
    properties = parse_properties(known(metadata.configuration) or {})
    candidates = [c for c in schema.leaves() if c.path[0] not in partitions]
    if properties.data_skipping_stats_columns:
        named = map(schema.column, properties.data_skipping_stats_columns)
        candidates = [c for c in named if c is not None]
    elif properties.data_skipping_num_indexed_cols >= 0:
        candidates = candidates[: properties.data_skipping_num_indexed_cols]
    yield from [c for c in candidates if unit_of(c) is not None][:limit]
