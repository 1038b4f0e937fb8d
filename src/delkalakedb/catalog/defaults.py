"""The settings that opening a catalog needs, where only its URI holds any.

Most processes configure nothing, and importing pydantic takes longer than opening a
table. So a catalog without configuration is opened with the values here, which a test
compares with the defaults of `Settings`; `Settings` itself is made when asked for.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from delkalakedb.uri import Uri

if TYPE_CHECKING:
    from delkalakedb.settings import Settings

__all__ = ["PlainSettings", "plain_settings"]

_ENV_PREFIX = "DELKALAKEDB_"
# Variables of ours that hold no setting.
_NO_SETTINGS = ("DELKALAKEDB_REGISTER", "DELKALAKEDB_TEST_")
_FILE = "deltalakedb.toml"
_POLICIES = ("create_if_missing", "error")


class _Sql:
    password = None

    def __init__(self, schema_policy: str) -> None:
        self.schema_policy = schema_policy


class _Pool:
    size = 5
    connect_timeout = 10.0
    lock_timeout = 30.0
    statement_timeout = None

    def __init__(self, uri: Uri) -> None:
        self.model_fields_set = set[str]()
        for name, value in (
            ("size", uri.pool_size),
            ("connect_timeout", uri.connect_timeout),
        ):
            if value is not None:
                setattr(self, name, value)
                self.model_fields_set.add(name)


class _Cache:
    model_fields_set: frozenset[str] = frozenset()
    snapshots = 64
    max_bytes = 256 * 1024 * 1024


class PlainSettings:
    """The part of `Settings` that a backend reads, without pydantic."""

    cache = _Cache

    def __init__(self, uri: Uri, schema_policy: str) -> None:
        self._uri = uri
        self.sql = _Sql(schema_policy)
        self.pool = _Pool(uri)

    def full(self) -> "Settings":
        """Return these settings and all others, which have their defaults."""
        from delkalakedb.settings import PoolSettings, Settings, SqlSettings

        uri, policy = self._uri, self.sql.schema_policy
        given = {"size": uri.pool_size, "connect_timeout": uri.connect_timeout}
        pool = {name: value for name, value in given.items() if value is not None}
        place = uri.data_path
        # Not from its sources again: what they hold may have changed since.
        return Settings.model_construct(
            sql=SqlSettings.model_validate({"schema": policy}),
            pool=PoolSettings.model_validate(pool),
            data_path=None if (place or "none").lower() == "none" else place,
        )


def plain_settings(uri: Uri, given: Mapping[str, object]) -> PlainSettings | None:
    """Return a catalog's settings, or None where more than its URI holds some.

    Args:
        uri: the catalog's.
        given: the arguments of `connect`, of which only `sql.schema` is known here.
    """
    said = [p for p in _POLICIES if given in ({}, {"sql": {"schema": p}})]
    if not said or os.path.exists(_FILE):
        return None
    names = (name.upper() for name in os.environ)
    if any(n.startswith(_ENV_PREFIX) and not n.startswith(_NO_SETTINGS) for n in names):
        return None
    return PlainSettings(uri, said[0])
