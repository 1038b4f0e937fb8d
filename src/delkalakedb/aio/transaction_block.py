"""Transactions over several tables, for `async with`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from delkalakedb import deltalake as face
from delkalakedb.aio.handles import Catalog
from delkalakedb.aio.work import in_thread

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from delkalakedb.catalog.commit import Committed
    from delkalakedb.settings import Uri

P = ParamSpec("P")
R = TypeVar("R")


def _staged(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    @wraps(method)
    async def call(self: Transaction, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._stage(method, *args, **kwargs)

    return call


class Transaction:
    """A transaction over tables of one catalog, committed when its block ends.

    Everything runs in threads. The methods of one transaction take turns.

    Args:
        catalog: an open catalog, or the URI of one.
        storage_options: of the tables' object stores, as deltalake takes them.

    Examples:
        >>> async with dk.aio.Transaction("deltasql://sqlite/meta.db") as tx:
        ...     deleted = await tx.delete("sales", "id = 1")
        >>> tx.committed[0].version
        2
    """

    def __init__(
        self,
        catalog: Catalog | str | Uri,
        *,
        storage_options: dict[str, str] | None = None,
    ) -> None:
        given = catalog.sync if isinstance(catalog, Catalog) else catalog
        self.sync = face.Transaction(given, storage_options=storage_options)
        self._turn = asyncio.Lock()

    write = _staged(face.Transaction.write)
    create_table = _staged(face.Transaction.create_table)
    delete = _staged(face.Transaction.delete)
    update = _staged(face.Transaction.update)

    @property
    def committed(self) -> tuple[Committed, ...]:
        """The commits of the transaction."""
        return self.sync.committed

    async def run(self, function: Callable[[face.Transaction], R]) -> R:
        """Return the result of a function of the synchronous transaction.

        Args:
            function: takes the synchronous transaction.

        Returns:
            What the function returns.

        Examples:
            >>> async with dk.aio.transaction("deltasql://sqlite/meta.db") as tx:
            ...     print(await tx.run(lambda tx: tx.table("sales").count()))
            3
        """
        return await self._stage(function)

    async def _stage(
        self,
        method: Callable[Concatenate[face.Transaction, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        async with self._turn:
            return await in_thread(method, self.sync, *args, **kwargs)

    async def __aenter__(self) -> Self:
        await self._stage(face.Transaction.__enter__)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        def end(transaction: face.Transaction) -> tuple[Committed, ...]:
            transaction.__exit__(kind, error, traceback)
            return transaction.committed

        await self._stage(end)


def transaction(
    catalog: Catalog | str | Uri, *, storage_options: dict[str, str] | None = None
) -> Transaction:
    """Return a transaction over tables of one catalog, for `async with`.

    Args:
        catalog: an open catalog, or the URI of one.
        storage_options: of the tables' object stores, as deltalake takes them.

    Returns:
        The transaction; all its changes are committed when the block ends, or none.

    Examples:
        >>> async with dk.aio.transaction("deltasql://sqlite/meta.db") as tx:
        ...     deleted = await tx.delete("sales", "id = 1")
        >>> tx.committed[0].version
        2
    """
    return Transaction(catalog, storage_options=storage_options)
