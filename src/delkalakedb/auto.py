"""Calls `register()` when imported: `import delkalakedb.auto`."""

from delkalakedb.deltalake import register

register()
