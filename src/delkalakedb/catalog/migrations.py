"""Bring a database to this version's catalog schema."""

import re
import time
from typing import Any

from delkalakedb.catalog.backend import Backend, Insert, Session, newer_version
from delkalakedb.catalog.statements import load_migrations, split_script
from delkalakedb.errors import CatalogNotFoundError, CatalogSchemaError

__all__ = [
    "catalog_tables",
    "ensure_schema",
    "find_schema_version",
    "latest_schema_version",
    "load_schema_version",
    "migrate",
]

_CREATED = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)


def latest_schema_version(engine: str) -> int:
    """The catalog schema version that this package writes."""
    return max(load_migrations(engine))


def catalog_tables(engine: str, version: int) -> list[str]:
    """The tables of a catalog of a schema version; what others refer to is first."""
    scripts = load_migrations(engine).items()
    made = [t for v, text in scripts if v <= version for t in _CREATED.findall(text)]
    return sorted(made, key=lambda table: table != "dl_tables")


def load_schema_version(backend: Backend, session: Session) -> int:
    """The catalog's schema version; 0 where there is no catalog."""
    return _version(session) if backend.find_catalog(session) else 0


def find_schema_version(backend: Backend) -> int:
    """The catalog's schema version; 0 where there is no catalog, or no database."""
    try:
        with backend.reading() as session:
            return load_schema_version(backend, session)
    except CatalogNotFoundError:
        return 0


def ensure_schema(backend: Backend, name: str, current: int, *, create: bool) -> None:
    """Create or upgrade the catalog, or refuse one that this version can't use.

    All of it is one transaction, and rivals wait: of twenty processes that start at
    once one creates the tables and the others find them.
    """
    if _up_to_date(current, backend, name):
        return
    if not create:
        raise CatalogSchemaError(
            f"{name}: there is no catalog of schema version "
            f"{latest_schema_version(backend.engine)} and sql.schema = error; "
            "set sql.schema = create_if_missing, or upgrade it"
        )
    # Imported here, because only a catalog that is made or upgraded needs it.
    from delkalakedb.catalog.ratify import CLIENT

    backend.make_database()
    with backend.writing(any_version=True) as session:
        backend.prepare(session)
        current = load_schema_version(backend, session)
        _up_to_date(current, backend, name)
        latest = latest_schema_version(backend.engine)
        migrate(backend, session, range(current + 1, latest + 1), CLIENT)


def migrate(backend: Backend, session: Session, wanted: range, client: str) -> None:
    """Apply migrations in order."""
    for version, script in load_migrations(backend.engine).items():
        if version in wanted:
            session.script(split_script(script))
            row: dict[str, list[Any]] = {
                "version": [version],
                "applied_at_ms": [int(time.time() * 1000)],
                "client": [client],
            }
            session.apply([Insert("dl_schema_versions", row)])


def _version(session: Session) -> int:
    ((version,),) = session.query("load_schema_version", {})
    return int(version or 0)


def _up_to_date(current: int, backend: Backend, name: str) -> bool:
    latest = latest_schema_version(backend.engine)
    if current > latest:
        raise newer_version(name, current, latest)
    backend.schema_version = latest
    return current == latest
