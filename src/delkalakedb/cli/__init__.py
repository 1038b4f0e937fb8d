"""The `deltasql` command."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.cli.commands import main as main
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "commands": "main",
        },
    )
