"""The settings that opening a catalog needs, where no source holds any setting.

Most processes configure nothing, and importing pydantic takes longer than opening a
table. So a catalog without configuration is opened with the values here, which a test
compares with the defaults of `Settings`; `Settings` itself is made when asked for.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from delkalakedb.uri import Uri
from delkalakedb.uri_options import OPTIONS

if TYPE_CHECKING:
    from delkalakedb.settings import Settings

__all__ = ["PlainSettings", "plain_settings"]

_ENV_PREFIX = "DELKALAKEDB_"
# Variables of ours that hold no setting.
_NO_SETTINGS = ("DELKALAKEDB_REGISTER", "DELKALAKEDB_TEST_")
_FILE = "deltalakedb.toml"


class _Pool:
    size = 5
    connect_timeout = 10.0
    lock_timeout = 30.0
    statement_timeout = None


class _Cache:
    snapshots = 64
    max_bytes = 256 * 1024 * 1024


class _Sql:
    password = None

    def __init__(self, schema_policy: str) -> None:
        self.schema_policy = schema_policy


class PlainSettings:
    """What a backend reads of `Settings`."""

    pool = _Pool
    cache = _Cache

    def __init__(self, sql: _Sql) -> None:
        self.sql = sql

    def full(self) -> "Settings":
        """Return these settings with all others, which have their defaults, too."""
        from delkalakedb.settings import Settings, SqlSettings

        # Without another look at the sources, which may have changed since.
        sql = SqlSettings(schema=self.sql.schema_policy)  # type: ignore[arg-type]
        return Settings.model_construct(sql=sql)


def plain_settings(uri: Uri, given: Mapping[str, object]) -> PlainSettings | None:
    """Return the settings of a catalog, or None where a source holds another one.

    Args:
        uri: the catalog's.
        given: the arguments of `connect`, of which only `sql.schema` is known here.
    """
    known: dict[str, Mapping[str, object]] = {
        policy: {"sql": {"schema": policy}} for policy in ("create_if_missing", "error")
    }
    policies = [policy for policy, said in known.items() if given in (said, {})]
    from_uri = any(not OPTIONS[name].tls for name, _ in uri.options)
    if not policies or from_uri or os.path.exists(_FILE):
        return None
    names = (name.upper() for name in os.environ)
    if any(n.startswith(_ENV_PREFIX) and not n.startswith(_NO_SETTINGS) for n in names):
        return None
    return PlainSettings(_Sql(policies[0]))
