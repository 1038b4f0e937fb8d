"""The stand-in for deltalake's `RawDeltaTable` that answers from SQL."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.deltalake.raw.raw_table import *
else:
    __getattr__, __dir__ = door(__name__, {"raw_table": "SqlRawTable is_ours"})
