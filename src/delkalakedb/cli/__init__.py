"""The `deltasql` command."""

from delkalakedb.cli.main import main

__all__ = ["main"]
