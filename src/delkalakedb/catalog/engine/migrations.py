"""Migrations: how a database gets the schema version that this package writes."""

import re

from delkalakedb.catalog.engine.backend import (
    Backend,
    Insert,
    Session,
    check_schema_version,
)
from delkalakedb.catalog.engine.statements import load_migrations, split_script
from delkalakedb.clock import now_ms
from delkalakedb.errors import CatalogNotFoundError, CatalogSchemaError

_EVENTS = "dl_events"
_CREATED = r"(?m)^CREATE TABLE (\w+)"


def latest_schema_version(engine: str) -> int:
    """Return the schema version that this package writes."""
    return max(load_migrations(engine))


def catalog_tables(engine: str, version: int) -> list[str]:
    """Return the tables of a catalog of a schema version.

    `dl_tables` is first, because the other tables refer to it.
    """
    scripts = load_migrations(engine).items()
    made = [
        t for v, text in scripts if v <= version for t in re.findall(_CREATED, text)
    ]
    return sorted(made, key=lambda table: table != "dl_tables")


def load_schema_version(backend: Backend, session: Session) -> int:
    """Return the catalog's schema version; 0 if there is no catalog."""
    if not backend.find_catalog(session):
        return 0
    (version,) = session.values("load_schema_version", {})
    return int(version or 0)


def find_schema_version(backend: Backend) -> int:
    """Return the catalog's schema version; 0 if there is no catalog or no database."""
    try:
        with backend.reading() as session:
            return load_schema_version(backend, session)
    except CatalogNotFoundError:
        return 0


def ensure_schema(backend: Backend, name: str, current: int, *, create: bool) -> None:
    """Create or upgrade the catalog.

    Raise `CatalogSchemaError` if the catalog is newer than this package, or if
    `create` is false and the catalog isn't up to date. The migrations are one
    transaction that other migrators wait for, so of twenty processes that start at once
    one creates the tables.
    """
    if _up_to_date(current, backend, name):
        return
    if not create:
        raise CatalogSchemaError(
            f"{name}: the catalog has schema version {current}, and this version of "
            f"delkalakedb writes {latest_schema_version(backend.engine)}; upgrade the "
            "catalog with `deltasql upgrade`"
        )
    # Here, because it loads importlib.metadata, which opening a catalog needn't.
    from delkalakedb.catalog.engine.backend import CLIENT

    backend.make_database()
    with backend.writing(any_version=True) as session:
        backend.prepare(session)
        current = load_schema_version(backend, session)
        _up_to_date(current, backend, name)
        latest = latest_schema_version(backend.engine)
        migrate(backend, session, range(current + 1, latest + 1), CLIENT)
        if _EVENTS in catalog_tables(backend.engine, latest):
            from delkalakedb.catalog.engine.events import event

            detail = f"from schema version {current} to {latest}" if current else None
            session.apply([event("upgrade" if current else "create", detail=detail)])


def migrate(backend: Backend, session: Session, wanted: range, client: str) -> None:
    """Apply the migrations whose versions are in `wanted`, in order."""
    for version, script in load_migrations(backend.engine).items():
        if version in wanted:
            session.script(split_script(script))
            columns = ("version", "applied_at_ms", "client")
            row = (version, now_ms(), client)
            session.apply([Insert.of_rows("dl_schema_versions", columns, [row])])


def _up_to_date(current: int, backend: Backend, name: str) -> bool:
    latest = latest_schema_version(backend.engine)
    check_schema_version(f"{name}: the catalog", current, latest)
    backend.schema_version = latest
    return current == latest
