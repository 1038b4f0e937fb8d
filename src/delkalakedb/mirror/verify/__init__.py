"""Verification: compare the catalog with `_delta_log`."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.mirror.verify.comparison import *
    from delkalakedb.mirror.verify.verification import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "comparison": "Report",
            "verification": "verify verify_table",
        },
    )
