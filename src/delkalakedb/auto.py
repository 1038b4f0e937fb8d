"""Importing this module registers: `import delkalakedb.auto`."""

from delkalakedb.table.registration import register

__all__: list[str] = []

register()
