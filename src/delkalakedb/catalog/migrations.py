"""Bring a database to this version's catalog schema."""

import time
from typing import Any

from delkalakedb.catalog.backend import Backend, Insert, Session
from delkalakedb.catalog.statements import load_migrations, split_script
from delkalakedb.errors import CatalogSchemaError

__all__ = ["ensure_schema", "latest_schema_version"]


def latest_schema_version(engine: str) -> int:
    """The catalog schema version that this package writes."""
    return max(load_migrations(engine))


def ensure_schema(backend: Backend, name: str, *, create: bool, client: str) -> None:
    """Create or upgrade the catalog, or refuse one that this version can't use.

    All of it is one transaction, and rivals wait: of twenty processes that start at
    once one creates the tables and the others find them.
    """
    with backend.reading() as session:
        current = _current(backend, session)
    if _up_to_date(current, backend, name):
        return
    if not create:
        raise CatalogSchemaError(
            f"{name}: there is no catalog of schema version "
            f"{latest_schema_version(backend.engine)} and sql.schema = error; "
            "set sql.schema = create_if_missing, or upgrade it"
        )
    with backend.writing() as session:
        backend.prepare(session)
        current = _current(backend, session)
        _up_to_date(current, backend, name)
        _migrate(backend, session, current, client)


def _migrate(backend: Backend, session: Session, current: int, client: str) -> None:
    for version, script in load_migrations(backend.engine).items():
        if version > current:
            session.script(split_script(script))
            row: dict[str, list[Any]] = {
                "version": [version],
                "applied_at_ms": [int(time.time() * 1000)],
                "client": [client],
            }
            session.apply([Insert("dl_schema_versions", row)])


def _current(backend: Backend, session: Session) -> int:
    return _version(session) if backend.find_catalog(session) else 0


def _version(session: Session) -> int:
    ((version,),) = session.query("load_schema_version", {})
    return int(version or 0)


def _up_to_date(current: int, backend: Backend, name: str) -> bool:
    latest = latest_schema_version(backend.engine)
    if current > latest:
        raise CatalogSchemaError(
            f"{name}: the catalog has schema version {current}, and this version of "
            f"delkalakedb knows {latest}; upgrade delkalakedb"
        )
    return current == latest
