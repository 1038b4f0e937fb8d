"""Backups and upgrades of a whole catalog.

A backup is one file, in a format of the engine. A restore is one transaction that
replaces the catalog and checks the new rows before it commits. The restore runs the
migrations up to the schema version of the backup, so an older backup can be restored
and then upgraded.
"""

import dataclasses
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from delkalakedb.catalog.engine import (
    CLIENT,
    Backend,
    Restore,
    Run,
    Session,
    TableRow,
    UndoneError,
    catalog_tables,
    check_schema_version,
    ensure_schema,
    event,
    find_schema_version,
    latest_schema_version,
    load_schema_version,
    migrate,
    no_catalog,
    note_event,
    unreachable,
    using_backend,
)
from delkalakedb.errors import CatalogError
from delkalakedb.storage import sync_path

if TYPE_CHECKING:
    from delkalakedb.settings import Settings, Uri


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was written."""

    file: str
    engine: str
    schema_version: int
    tables: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Restored:
    """A backup that was restored, with the newest version of each table."""

    file: str
    schema_version: int
    latest_schema_version: int
    versions: dict[str, int]


def back_up(uri: "Uri", settings: "Settings", file: str | os.PathLike[str]) -> Backup:
    """Write one state of the catalog to a new file, whole or not at all.

    Writers aren't blocked. Only the process that has a DuckDB catalog open can back it
    up. The catalog may have an older schema version.
    """
    path, start = Path(file).absolute(), time.monotonic()
    if path.exists():
        raise CatalogError(f"{path} exists; a backup is written to a new file")
    with using_backend(uri, settings) as backend:
        version = _find_version(backend, uri)
        with backend.reading() as session:
            tables = _versions(session)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        try:
            backend.back_up(part, catalog_tables(backend.engine, version))
            sync_path(part)
            os.link(part, path)
        finally:
            part.unlink(missing_ok=True)
        if version == latest_schema_version(backend.engine):
            note_event(backend, event("backup", detail=str(path)))
    sync_path(path.parent)
    return Backup(
        file=str(path),
        engine=uri.engine,
        schema_version=version,
        tables=len(tables),
        size_bytes=path.stat().st_size,
        seconds=round(time.monotonic() - start, 3),
    )


def load_tables(uri: "Uri", settings: "Settings") -> dict[str, int]:
    """Return the newest version of each table; nothing if there is no catalog."""
    with using_backend(uri, settings) as backend:
        if not find_schema_version(backend):
            return {}
        with backend.reading() as session:
            return _versions(session)


def _find_version(backend: Backend, uri: "Uri") -> int:
    """Return the catalog's schema version; raise an error if there is no catalog."""
    version = find_schema_version(backend)
    if not version:
        raise no_catalog(backend, str(uri))
    return version


def restore_backup(
    uri: "Uri",
    settings: "Settings",
    file: str | os.PathLike[str],
    *,
    replace: bool = False,
    dry_run: bool = False,
) -> Restored:
    """Replace the catalog with a backup, in one transaction.

    Args:
        uri: the catalog, of the engine that wrote the backup. A database file that
            doesn't exist is created.
        settings: the settings of the catalog.
        file: the backup.
        replace: allow that the catalog has tables.
        dry_run: write and check all rows, then roll back.
    """
    path = Path(file)
    if not path.is_file():
        raise CatalogError(f"{path}: there is no such file")
    with (
        _database(uri, settings, dry_run=dry_run) as backend,
        suppress(UndoneError),
        backend.restoring(path) as restore,
    ):
        found = _restore(backend, restore, path, replace=replace)
        if dry_run:
            raise UndoneError
    return found


@dataclass(frozen=True, slots=True)
class SchemaVersions:
    """A catalog's schema version, and the schema version that this package writes."""

    current: int
    latest: int

    @property
    def behind(self) -> bool:
        """Whether the catalog can be upgraded."""
        return self.current < self.latest


def load_versions(uri: "Uri", settings: "Settings") -> SchemaVersions:
    """Return the catalog's schema version and the newest one that the package knows.

    Raise an error if there is no catalog.
    """
    with using_backend(uri, settings) as backend:
        current = _find_version(backend, uri)
    return SchemaVersions(current, latest_schema_version(uri.engine))


def upgrade_catalog(uri: "Uri", settings: "Settings") -> None:
    """Apply the missing migrations in one transaction; refuse a newer catalog."""
    with using_backend(uri, settings) as backend:
        current = find_schema_version(backend)
        ensure_schema(backend, str(uri), current, create=True)


@contextmanager
def _database(uri: "Uri", settings: "Settings", *, dry_run: bool) -> Iterator[Backend]:
    """Open the database, or a new one, which is kept only if the block succeeds.

    A database file that doesn't exist is created in a temporary folder and linked to
    its place at the end, so that no other process sees it before.
    """
    with using_backend(uri, settings) as backend:
        if not backend.is_absent():
            backend.make_database()
            yield backend
            return
    place = Path(os.path.realpath(uri.database))
    with _new_folder(uri, None if dry_run else place.parent) as folder:
        made = Path(folder, "catalog")
        elsewhere = dataclasses.replace(uri, database=str(made))
        with using_backend(elsewhere, settings) as backend:
            backend.make_database()
            yield backend
        if not dry_run:
            sync_path(made)
            os.link(made, place)
            sync_path(place.parent)


def _new_folder(uri: "Uri", parent: Path | None) -> "TemporaryDirectory[str]":
    try:
        return TemporaryDirectory(prefix=".delkalakedb-", dir=parent)
    except OSError as error:
        raise unreachable(str(uri), str(parent), error) from error


def _restore(
    backend: Backend, restore: Restore, path: Path, *, replace: bool
) -> Restored:
    session, version = restore.session, restore.schema_version
    latest = latest_schema_version(backend.engine)
    backend.prepare(session)
    current = load_schema_version(backend, session)
    check_schema_version(f"{path}: the backup", version, latest)
    check_schema_version("the existing catalog", current, latest)
    if current and not replace and (there := _versions(session)):
        raise CatalogError(
            f"the catalog has {len(there)} tables, which a restore would replace"
        )
    tables = _make_room(backend, session, current, version)
    for table in tables:
        restore.copy(table)
    if broken := session.values("find_broken_tables", {}):
        raise CatalogError(f"{path}: the backup is damaged: {', '.join(broken)}")
    session.apply([Run("free_leases", {})])
    if version == latest:
        session.apply([event("restore", detail=str(path))])
    return Restored(str(path), version, latest, _versions(session))


def _make_room(
    backend: Backend, session: Session, current: int, version: int
) -> list[str]:
    """Empty or create the tables of a schema version; return their names."""
    there = catalog_tables(backend.engine, current)
    if there:
        backend.lock_tables(session, there)
    if current != version:
        session.script([f"DROP TABLE {table}" for table in reversed(there)])
        migrate(backend, session, range(1, version + 1), CLIENT)
    tables = catalog_tables(backend.engine, version)
    # Emptied and not dropped, so that the grants on the tables stay.
    session.script([f"DELETE FROM {table}" for table in reversed(tables)])
    return tables


def _versions(session: Session) -> dict[str, int]:
    tables = session.rows(TableRow, "load_table_versions", {})
    return {table.name: table.current_version for table in tables}
