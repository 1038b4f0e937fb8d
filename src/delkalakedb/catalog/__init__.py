"""The catalog: SQL as the source of truth."""

from delkalakedb.catalog.catalog import Catalog, Snapshot, connect

__all__ = ["Catalog", "Snapshot", "connect"]
