"""Upgrading a catalog on purpose, rather than when it is next opened."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from delkalakedb.catalog.backend import no_catalog
from delkalakedb.catalog.migrations import (
    ensure_schema,
    find_schema_version,
    latest_schema_version,
)
from delkalakedb.catalog.registry import using_backend

if TYPE_CHECKING:
    from delkalakedb.config import Settings
    from delkalakedb.uri import Uri

__all__ = ["SchemaVersions", "load_versions", "upgrade_catalog"]


@dataclass(frozen=True, slots=True)
class SchemaVersions:
    """A catalog's schema version, and the one that this package writes."""

    current: int
    latest: int

    @property
    def behind(self) -> bool:
        """Whether an upgrade has something to do."""
        return self.current < self.latest


def load_versions(uri: "Uri", settings: "Settings") -> SchemaVersions:
    """The schema versions; an error where there is no catalog."""
    with using_backend(uri, settings) as backend:
        current = find_schema_version(backend)
        if not current:
            raise no_catalog(backend, str(uri))
    return SchemaVersions(current, latest_schema_version(uri.engine))


def upgrade_catalog(uri: "Uri", settings: "Settings") -> None:
    """Apply the migrations that are missing, all or none; refuses a newer catalog."""
    with using_backend(uri, settings) as backend:
        current = find_schema_version(backend)
        ensure_schema(backend, str(uri), current, create=True)
