"""Private Delta tables in which unmodified delta-rs does one operation for us."""

from delkalakedb.workspace.append import stage_append

__all__ = ["stage_append"]
