"""The package's names for asyncio: what waits is awaited.

catalog = await dk.aio.connect("deltasql://postgres/user@host/db")
table = await catalog.open("sales")
async for commit in table.follow():
    print(commit.version)
"""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.aio.handles import *
    from delkalakedb.aio.transaction_block import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "handles": (
                "AsyncSnapshot Catalog DeltaTable connect finished write_deltalake"
            ),
            "transaction_block": "Transaction transaction",
        },
    )

__all__ = [
    "AsyncSnapshot",
    "Catalog",
    "DeltaTable",
    "Transaction",
    "connect",
    "finished",
    "transaction",
    "write_deltalake",
]
