"""The commands of `deltasql`, one module for each group."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.cli.commands.root import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "root": "main",
        },
    )
