"""Whether all rows of a catalog agree with each other, told from the rows alone."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from delkalakedb import Catalog
from delkalakedb.catalog.head import FILES_PER_TABLE
from delkalakedb.catalog.statcolumns import TABLES, StatColumn, parse_columns

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

    def lives_at(self, version: int) -> bool:
        added = self.added is not None and self.added <= version
        return added and (self.removed is None or self.removed > version)


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
    assert problems == []


def _load(catalog: Catalog) -> dict[int, _Rows]:
    found: defaultdict[int, _Rows] = defaultdict(_Rows)
    with catalog.backend.reading() as session:
        for name, columns in _COLUMNS.items():
            sql = f"SELECT table_id, {columns} FROM {name} ORDER BY table_id, {columns}"
            for table_id, *row in session.query_sql(sql, {}):
                found[table_id][name].append(row)
        for name in TABLES.values():
            sql = f"SELECT file_id, column_id, class, removed_version FROM {name}"
            for row in session.query_sql(sql, {}):
                found[row[0] // FILES_PER_TABLE][name].append(row)
    return found


def _problems(table_id: int, rows: _Rows) -> Iterator[str]:
    table, versions, files = rows.table, rows.versions, rows.files
    numbers = [version.version for version in versions]
    if numbers != list(range(table.first, table.current + 1)):
        yield f"the head is {table.current}, but the versions are {numbers}"
    for version in versions:
        yield from _total_problems(version, files)
    yield from _file_problems(table_id, table, files)
    yield from _state_problems(rows, table, versions)
    yield from _stat_problems(rows, table, files)


def _total_problems(version: _Version, files: Sequence[_File]) -> Iterator[str]:
    live = [file for file in files if file.lives_at(version.version)]
    added = [file for file in files if file.added == version.version]
    removed = [file for file in files if file.removed == version.version]
    expected = version._replace(
        added=len(added),
        removed=sum(file.tombstone is not None for file in removed),
        added_bytes=_bytes(added),
        removed_bytes=_bytes(removed),
        num_files=len(live),
        size_bytes=_bytes(live),
    )
    if expected != version:
        yield f"{version}, but its files say {expected}"
    lives = Counter((file.path, file.dv_id) for file in live)
    if doubled := [key for key, count in lives.items() if count > 1]:
        yield f"live twice at {version.version}: {doubled}"


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
    for version in versions:
        told = (version.metadata_version, version.protocol_version)
        newest = tuple(
            max((v for v in state[name] if v <= version.version), default=None)
            for name in ("dl_metadata", "dl_protocols")
        )
        if told != newest:
            yield f"version {version.version} has state {told}, not {newest}"
    mirrors = [published for (published,) in rows["dl_mirrors"]]
    if len(mirrors) != 1 or mirrors[0] > table.current:
        yield f"mirror rows {mirrors}"


def _stat_problems(rows: _Rows, table: _Table, files: Sequence[_File]) -> Iterator[str]:
    columns = parse_columns(table.stat_columns)
    for kind, name in TABLES.items():
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


def _bytes(files: Sequence[_File]) -> int:
    return sum(file.size for file in files)
