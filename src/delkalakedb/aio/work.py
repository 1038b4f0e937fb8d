"""Where the calls of an event loop run: in the loop, or in a thread of a pool."""

from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from importlib import import_module
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from delkalakedb.forks import at_fork
from delkalakedb.waits import apart, run, run_in

P = ParamSpec("P")
R = TypeVar("R")
# threads for all calls of the process that can't run in an event loop
MOST_THREADS = 16
# modules that calls in the loop import, and which import Arrow and deltalake
_LIBRARIES = (
    "catalog.commit.ratify",
    "catalog.read.head_batch",
    "catalog.read.planner",
    "catalog.read.version_files",
    "deltalake.raw.reads",
    "deltalake.table",
)


class Handle(Protocol):
    """An asynchronous face of a synchronous object, which is its `sync`."""

    @property
    def sync(self) -> Any:
        """The synchronous object."""

    @property
    def in_loop(self) -> bool:
        """Whether the database's driver can wait without blocking an event loop."""


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function in a thread of the pool."""
    return await run_in(_threads(), function, *args, **kwargs)


async def where_it_may(
    handle: Handle, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Run a function in the loop if the database's driver can, else in a thread."""
    if not handle.in_loop:
        return await in_thread(function, *args, **kwargs)
    if not _load_libraries.cache_info().currsize:
        # Not by `in_thread`: a call that is cancelled here has done nothing.
        await run(apart, _load_libraries)
    return await run(function, *args, **kwargs)


def threaded(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return a method that awaits a method of the synchronous object, in a thread."""

    @wraps(method)
    async def call(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await in_thread(method, self.sync, *args, **kwargs)

    return call


def looped(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return a method that awaits a method of the synchronous object, in the loop."""

    @wraps(method)
    async def call(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await where_it_may(self, method, self.sync, *args, **kwargs)

    return call


def at_once(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls a method of the synchronous object, which is fast."""

    @wraps(method)
    def call(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self.sync, *args, **kwargs)

    return call


@cache
def _load_libraries() -> None:
    """Import what calls import on first use, which would stop the loop for seconds."""
    import pyarrow as pa

    for module in _LIBRARIES:
        import_module(f"delkalakedb.{module}")
    # This imports pandas, if it is installed.
    pa.array([0])


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_THREADS, "delkalakedb-aio")


# Its threads stay with the parent.
at_fork(after_in_child=_threads.cache_clear)
