"""Calls `register()` when imported: `import delkalakedb.auto`."""

from delkalakedb.deltalake import register

__all__: list[str] = []

register()
