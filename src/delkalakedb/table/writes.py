"""What the stand-in for deltalake's `RawDeltaTable` does by committing."""

from collections.abc import Mapping

from delkalakedb.catalog import Catalog, Snapshot

__all__ = ["SqlRawWrites"]


class SqlRawWrites:
    """The committing half of the stand-in; each call moves the handle."""

    _catalog: Catalog
    _name: str
    _snapshot: Snapshot
    _storage_options: Mapping[str, str] | None
