"""Private Delta tables in which unmodified delta-rs does one operation for us."""

from delkalakedb.workspace.features import split_properties
from delkalakedb.workspace.operation import (
    Captured,
    Operation,
    Stage,
    StageNew,
)
from delkalakedb.workspace.runner import run, run_new
from delkalakedb.workspace.spool import Spool

__all__ = [
    "Captured",
    "Operation",
    "Spool",
    "Stage",
    "StageNew",
    "run",
    "run_new",
    "split_properties",
]
