"""Whether all rows of a catalog agree with each other, told from the rows alone."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from delkalakedb import Catalog
from delkalakedb.catalog.read.head import (
    FILES_PER_TABLE,
    StatColumn,
    parse_columns,
)
from delkalakedb.catalog.read.stat_index import STAT_TABLES

_STATE = ("dl_metadata", "dl_protocols", "dl_txns", "dl_domains", "dl_cdc_files")
_COLUMNS = {
    "dl_tables": "name, current_version, first_version, next_file, stat_columns",
    "dl_table_versions": (
        "version, metadata_version, protocol_version, num_added_files, "
        "num_removed_files, added_bytes, removed_bytes, num_files, size_bytes"
    ),
    "dl_files": (
        "file_id, path, dv_id, added_version, removed_version, size_bytes, "
        "remove_data_change"
    ),
    "dl_mirrors": "published_version",
    **dict.fromkeys(_STATE, "version"),
}


class _Table(NamedTuple):
    name: str
    current: int
    first: int
    next_file: int
    stat_columns: str


class _Version(NamedTuple):
    version: int
    metadata_version: int
    protocol_version: int
    added: int
    removed: int
    added_bytes: int
    removed_bytes: int
    num_files: int
    size_bytes: int


class _File(NamedTuple):
    file_id: int
    path: str
    dv_id: str
    added: int | None
    removed: int | None
    size: int
    tombstone: bool | None

    @property
    def key(self) -> tuple[str, str]:
        return self.path, self.dv_id


class _Rows(defaultdict[str, list[Any]]):
    """The rows of one table id, by the SQL table that holds them."""

    def __init__(self) -> None:
        super().__init__(list)

    @property
    def table(self) -> _Table:
        return _Table(*self["dl_tables"][0])

    @property
    def versions(self) -> list[_Version]:
        return [_Version(*row) for row in self["dl_table_versions"]]

    @property
    def files(self) -> list[_File]:
        return [_File(*row) for row in self["dl_files"]]


def check_integrity(catalog: Catalog) -> None:
    """Fail if any two rows contradict each other; nobody may write meanwhile."""
    problems = []
    for table_id, rows in _load(catalog).items():
        if rows["dl_tables"]:
            name = rows.table.name
            problems += [f"{name}: {p}" for p in _problems(table_id, rows)]
        else:
            problems.append(
                f"{sorted(rows)}: rows of table {table_id}, which isn't there"
            )
    if problems:
        raise AssertionError("\n".join(problems))


def _load(catalog: Catalog) -> dict[int, _Rows]:
    found: defaultdict[int, _Rows] = defaultdict(_Rows)
    with catalog._backend.reading() as session:
        for name, columns in _COLUMNS.items():
            sql = f"SELECT table_id, {columns} FROM {name} ORDER BY table_id, {columns}"
            for table_id, *row in session.query_sql(sql, {}):
                found[table_id][name].append(row)
        for name in STAT_TABLES.values():
            # DuckDB says of a file that lives on that it ends with the last version.
            removed = "NULLIF(removed_version, 9223372036854775807)"
            sql = f"SELECT file_id, column_id, class, {removed} FROM {name}"
            for row in session.query_sql(sql, {}):
                found[row[0] // FILES_PER_TABLE][name].append(row)
    return found


def _problems(table_id: int, rows: _Rows) -> Iterator[str]:
    table, versions, files = rows.table, rows.versions, rows.files
    numbers = [version.version for version in versions]
    if numbers != list(range(table.first, table.current + 1)):
        yield f"the head is {table.current}, but the versions are {numbers}"
    yield from _total_problems(versions, files)
    yield from _file_problems(table_id, table, files)
    yield from _state_problems(rows, table, versions)
    yield from _stat_problems(rows, table, files)


def _total_problems(
    versions: Sequence[_Version], files: Sequence[_File]
) -> Iterator[str]:
    added, removed = _by(files, "added"), _by(files, "removed")
    live: Counter[tuple[str, str]] = Counter()
    size = 0
    for version in versions:
        born, gone = added[version.version], removed[version.version]
        # A tombstone may be of a file that was never there.
        gone = [file for file in gone if file.added is not None]
        live.subtract(file.key for file in gone)
        live.update(file.key for file in born)
        size += _bytes(born) - _bytes(gone)
        expected = version._replace(
            added=len(born),
            removed=sum(file.tombstone is not None for file in gone),
            added_bytes=_bytes(born),
            removed_bytes=_bytes(gone),
            num_files=live.total(),
            size_bytes=size,
        )
        if expected != version:
            yield f"{version}, but its files say {expected}"
        changed = {file.key for file in (*born, *gone)}
        if odd := [key for key in changed if live[key] not in (0, 1)]:
            yield f"live more than once, or less than never, at {version}: {odd}"


def _file_problems(
    table_id: int, table: _Table, files: Sequence[_File]
) -> Iterator[str]:
    ids = [file.file_id - table_id * FILES_PER_TABLE for file in files]
    if ids != list(range(table.next_file)):
        yield f"next file {table.next_file}, but files {ids}"
    for file in files:
        for version in (file.added, file.removed):
            if version is not None and not table.first <= version <= table.current:
                yield f"{file} of a version that isn't there"


def _state_problems(
    rows: _Rows, table: _Table, versions: Sequence[_Version]
) -> Iterator[str]:
    state = {name: [version for (version,) in rows[name]] for name in _STATE}
    for name, found in state.items():
        if any(not table.first <= version <= table.current for version in found):
            yield f"{name} has versions {found}, the head is {table.current}"
    newest: tuple[int | None, ...] = (None, None)
    metadata, protocols = set(state["dl_metadata"]), set(state["dl_protocols"])
    for version in versions:
        v = version.version
        newest = (
            v if v in metadata else newest[0],
            v if v in protocols else newest[1],
        )
        told = (version.metadata_version, version.protocol_version)
        if told != newest:
            yield f"version {v} has state {told}, not {newest}"
    mirrors = [published for (published,) in rows["dl_mirrors"]]
    if len(mirrors) != 1 or mirrors[0] > table.current:
        yield f"mirror rows {mirrors}"


def _stat_problems(rows: _Rows, table: _Table, files: Sequence[_File]) -> Iterator[str]:
    columns = parse_columns(table.stat_columns)
    for kind, name in STAT_TABLES.items():
        indexed = [column for column in columns if column.kind is kind]
        have = {(file, column, removed) for file, column, _, removed in rows[name]}
        expected = {
            (file.file_id, column.column_id, file.removed)
            for file in files
            for column in indexed
            if _covers(column, file)
        }
        if have != expected:
            yield f"{name} has {have - expected}, and lacks {expected - have}"
        noted = {(c.column_id, cls) for c in indexed for cls in c.classes}
        if missing := {(column, cls) for _, column, cls, _ in rows[name]} - noted:
            yield f"{name} has classes that aren't noted: {missing}"


def _covers(column: StatColumn, file: _File) -> bool:
    if file.added is None or file.added < column.since:
        return False
    return column.until is None or file.added < column.until


def _by(files: Sequence[_File], version: str) -> defaultdict[int | None, list[_File]]:
    grouped: defaultdict[int | None, list[_File]] = defaultdict(list)
    for file in files:
        grouped[getattr(file, version)].append(file)
    return grouped


def _bytes(files: Sequence[_File]) -> int:
    return sum(file.size for file in files)
