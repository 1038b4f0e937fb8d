"""Backups: a whole catalog in one file, by its engine's own means, and back.

A restore is one transaction: the rows are written, checked, and only then do they
replace what was there. The tables are made by the migrations of the version that the
backup has, so that one of an older version can be restored, and upgraded after that.
"""

import dataclasses
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from delkalakedb.catalog.backend import (
    Backend,
    Run,
    Session,
    StoredRows,
    no_catalog,
)
from delkalakedb.catalog.migrations import (
    catalog_tables,
    find_schema_version,
    latest_schema_version,
    load_schema_version,
    migrate,
)
from delkalakedb.catalog.ratify import CLIENT
from delkalakedb.catalog.registry import using_backend
from delkalakedb.errors import CatalogError, CatalogSchemaError

if TYPE_CHECKING:
    from delkalakedb.config import Settings
    from delkalakedb.uri import Uri

__all__ = ["Backup", "Restored", "back_up", "load_tables", "restore_backup"]


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
    """What a backup held: the newest version of each table."""

    file: str
    schema_version: int
    latest_schema_version: int
    versions: dict[str, int]


class _UndoneError(Exception):
    """Rolls back a dry run."""


def back_up(uri: "Uri", settings: "Settings", file: str | os.PathLike[str]) -> Backup:
    """Write the catalog as it is now to a new file, whole or not at all.

    Writers go on meanwhile. A DuckDB catalog can only be backed up by the process
    that has it open. The catalog may be one that has yet to be upgraded.
    """
    path, start = Path(file).absolute(), time.monotonic()
    if path.exists():
        raise CatalogError(f"{path} exists; a backup is written to a new file")
    with using_backend(uri, settings) as backend:
        version, tables = _look(backend)
        if not version:
            raise no_catalog(backend, str(uri))
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        try:
            backend.back_up(part, catalog_tables(backend.engine, version))
            _sync(part)
            os.link(part, path)
        finally:
            part.unlink(missing_ok=True)
    _sync(path.parent)
    return Backup(
        file=str(path),
        engine=uri.engine,
        schema_version=version,
        tables=len(tables),
        size_bytes=path.stat().st_size,
        seconds=round(time.monotonic() - start, 3),
    )


def load_tables(uri: "Uri", settings: "Settings") -> dict[str, int]:
    """The newest version of each table; none where there is no catalog."""
    with using_backend(uri, settings) as backend:
        return _look(backend)[1]


def _look(backend: Backend) -> tuple[int, dict[str, int]]:
    version = find_schema_version(backend)
    if not version:
        return 0, {}
    with backend.reading() as session:
        return version, _versions(session)


def restore_backup(
    uri: "Uri",
    settings: "Settings",
    file: str | os.PathLike[str],
    *,
    replace: bool = False,
    dry_run: bool = False,
) -> Restored:
    """Make the catalog what it was when the backup was written, or leave it as it is.

    Args:
        uri: the catalog; its engine is the backup's.
        settings: as for opening it; a missing database file is created.
        file: the backup.
        replace: also where there are tables already.
        dry_run: do and check everything, and undo it.
    """
    path = Path(file)
    if not path.is_file():
        raise CatalogError(f"{path}: there is no such file")
    with (
        _database(uri, settings, dry_run=dry_run) as backend,
        backend.open_backup(path) as stored,
        suppress(_UndoneError),
        backend.writing(any_version=True) as session,
    ):
        found = _restore(backend, session, stored, path, replace=replace)
        if dry_run:
            raise _UndoneError
    return found


@contextmanager
def _database(uri: "Uri", settings: "Settings", *, dry_run: bool) -> Iterator[Backend]:
    """The database, made where there is none; for a dry run somewhere else."""
    with ExitStack() as held:
        backend = held.enter_context(using_backend(uri, settings))
        if dry_run and backend.is_absent():
            folder = held.enter_context(TemporaryDirectory(prefix="delkalakedb-"))
            elsewhere = dataclasses.replace(uri, database=f"{folder}/catalog")
            backend = held.enter_context(using_backend(elsewhere, settings))
        backend.make_database()
        yield backend


def _restore(
    backend: Backend, session: Session, stored: StoredRows, path: Path, *, replace: bool
) -> Restored:
    version, latest = stored.schema_version, latest_schema_version(backend.engine)
    backend.prepare(session)
    current = load_schema_version(backend, session)
    _check_known(f"{path}: the backup", version, latest)
    _check_known("the catalog that is there", current, latest)
    if current and not replace and (there := _versions(session)):
        raise CatalogError(
            f"the catalog has {len(there)} tables, which a restore would replace"
        )
    tables = _make_room(backend, session, current, version)
    for table in tables:
        stored.copy(session, table)
    if broken := session.query("find_broken_tables", {}):
        names = ", ".join(name for (name,) in broken)
        raise CatalogError(f"{path}: the backup is damaged: {names}")
    session.apply([Run("free_leases", {})])
    return Restored(str(path), version, latest, _versions(session))


def _check_known(what: str, version: int, latest: int) -> None:
    if version > latest:
        raise CatalogSchemaError(
            f"{what} has schema version {version}, and this version of delkalakedb "
            f"knows {latest}; upgrade delkalakedb"
        )


def _make_room(
    backend: Backend, session: Session, current: int, version: int
) -> list[str]:
    """Empty tables of a schema version; their names."""
    there = catalog_tables(backend.engine, current)
    if there:
        backend.lock_tables(session, there)
    if current != version:
        session.script([f"DROP TABLE {table}" for table in reversed(there)])
        migrate(backend, session, range(1, version + 1), CLIENT)
    tables = catalog_tables(backend.engine, version)
    # Emptied rather than made anew: who may read and write them stays as it is.
    session.script([f"DELETE FROM {table}" for table in reversed(tables)])
    return tables


def _versions(session: Session) -> dict[str, int]:
    rows = session.query("load_table_versions", {})
    return {name: version for name, version, *_ in rows}


def _sync(path: Path) -> None:
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # Windows can't open folders.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
