"""What an application would write; type checked, never run."""

from typing import Any, assert_type

import delkalakedb as dk
from delkalakedb.errors import CatalogUnavailableError, DeltalakeDBError, UriError
from delkalakedb.settings.configuration import load_settings
from delkalakedb.settings.keys import (
    MirrorSettings,
    PoolSettings,
    Settings,
    SettingsDict,
    SqlSettings,
)
from delkalakedb.settings.uri import (
    Uri,
    format_uri,
    is_deltasql,
    parse_uri,
    require_table,
)
from delkalakedb.telemetry import JsonFormatter, log_event

__all__ = ["JsonFormatter", "audit", "describe", "log_event", "settle", "table_of"]


def table_of(text: str) -> str | None:
    if not is_deltasql(text):
        return None
    try:
        uri = parse_uri(text, {"USER": "me"})
    except UriError:
        return None
    assert_type(uri, Uri)
    assert_type(uri.port, int | None)
    assert_type(uri.catalog.with_table("t").table, str | None)
    assert_type(uri.tls, dict[str, str])
    assert_type(format_uri(uri), str)
    return require_table(uri)


def describe(uri: Uri) -> str:
    try:
        settings = load_settings(uri, pool={"size": 3})
    except DeltalakeDBError as error:
        return str(error)
    assert_type(settings, Settings)
    assert_type(settings.pool.size, int)
    assert_type(settings.pool.statement_timeout, float | None)
    problem: DeltalakeDBError = CatalogUnavailableError("gone")
    return f"{settings.mirror.mode} {problem}"


def audit(uri: str) -> list[str]:
    with dk.connect(uri, pool={"size": 3}) as catalog:
        assert_type(catalog, dk.Catalog)
        assert_type(catalog.tables(), list[dk.Table])
        snapshot = catalog.snapshot("t", 3)
        assert_type(snapshot, dk.Snapshot)
        assert_type(snapshot.version, int)
        commits = snapshot.history(10, operation="WRITE")
        assert_type(commits, list[dk.Commit])
    return [commit.operation or "" for commit in commits]


def settle(uri: str) -> None:
    settings = Settings(
        pool=PoolSettings(size=3), sql=SqlSettings(schema="error"), data_path="/lake"
    )
    dk.connect(uri, settings=settings).close()
    dk.connect(uri, settings, pool=PoolSettings(connect_timeout=2.5)).close()
    dk.connect(uri, settings={"pool": {"size": 2}, "cache": {"snapshots": 0}}).close()
    sections: SettingsDict = {"mirror": MirrorSettings(mode="external")}
    dk.connect(uri, **sections).close()
    dk.connect(uri, sql={"schema": "error", "password": None}).close()
    assert_type(dk.connect(uri).init(), bool)
    dk.close()


async def wait(uri: str) -> None:
    async with dk.aio.connect(uri, pool={"size": 3}) as catalog:
        assert_type(catalog, dk.aio.Catalog)
        assert_type(await catalog.tables(), list[dk.Table])
        assert_type((await catalog.table("t")).version, int)
        table = await catalog.open("t", 3)
        assert_type(table, dk.aio.DeltaTable)
        assert_type(table.version(), int)
        assert_type(await table.delete("id = 1"), dict[str, Any])
        snapshot = await catalog.snapshot("t")
        assert_type(await snapshot.history(10), list[dk.Commit])
        async for commit in table.follow():
            assert_type(commit, dk.Commit)
        async with dk.aio.transaction(catalog) as tx:
            assert_type(tx, dk.aio.Transaction)
            await tx.delete("t", "id = 1")
