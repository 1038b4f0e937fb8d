"""How a call waits: it blocks its thread, or it gives way to other tasks of a loop.

The catalog's code is written once, as plain functions. `run` runs such a function for a
coroutine, in a greenlet: where the function has to wait, the greenlet switches to the
coroutine, which awaits and switches back. The function may wait only in these ways:

- for a message of the database, by `Call.wait` in the connection's class;
- for a bell, which another thread or task rings;
- for the end of a pause, by `sleep`;
- for work in another thread, by `apart`. This work takes no connection of a pool, so a
  call that holds one never waits for another call.

No lock of a thread may be held meanwhile, except the lock of a connection that belongs
to the call: another greenlet of the thread would wait for the lock forever.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from delkalakedb.errors import FinishedError
from delkalakedb.forks import at_fork

if TYPE_CHECKING:
    from asyncio import CancelledError, Future
    from concurrent.futures import ThreadPoolExecutor

    from greenlet import greenlet

P = ParamSpec("P")
T = TypeVar("T")
# threads; they connect, read in bulk, and compute for calls of event loops
_HELPERS = 8
# rows; turning so many into Python objects takes a few ms
_FEW_ROWS = 500
# The running calls. A caller on a hot path looks here before it calls `running`.
calls: "dict[greenlet, Call]" = {}


class Call:
    """A function that runs in a greenlet for a coroutine."""

    def __init__(self, greenlet: "greenlet") -> None:
        self._greenlet = greenlet
        # Whether the call goes on to its end although it was cancelled.
        self.sealed = False
        # Whether the coroutine was closed, and can't await any more.
        self.closed = False

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Return the result of `awaitable`; other tasks run meanwhile."""
        parent = self._greenlet.parent
        assert parent is not None
        if self.closed:
            raise GeneratorExit
        result: T = parent.switch(awaitable)
        return result


def running() -> Call | None:
    """Return the call that runs this code; None if the code may block its thread."""
    if not calls:
        return None
    from greenlet import getcurrent

    return calls.get(getcurrent())


def seal() -> None:
    """Let the running call go on to its end even if it is cancelled from now on."""
    if (call := running()) is not None:
        call.sealed = True


def sleep(seconds: float) -> None:
    """Wait for some seconds."""
    if (call := running()) is None:
        time.sleep(seconds)
        return
    import asyncio

    call.wait(asyncio.sleep(seconds))


def apart(function: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Return what `function` returns, in another thread if this code may not block.

    Args:
        function: blocks or computes, and needs no connection of a pool.
        undo: called with the result if the call was cancelled meanwhile.
    """
    if (call := running()) is None:
        return function()
    return call.wait(_apart(function, undo))


def compute(rows: int, function: Callable[[], T]) -> T:
    """Return what `function` makes of some rows, in another thread if they are many."""
    return function() if rows < _FEW_ROWS else apart(function)


class Bell:
    """A bell that any thread rings for one waiting call.

    Ringing takes no lock, because the garbage collector may do it at any moment.
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()
        self._wake: Callable[[], object] | None = None

    def ring(self) -> bool:
        """Ring; return False if the loop of the waiting call was closed."""
        self._rings.put(None)
        if (wake := self._wake) is not None:
            try:
                wake()
            except RuntimeError:
                return False
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until the bell has rung; return False after `timeout_s` seconds."""
        if (call := running()) is None:
            with suppress(Empty):
                self._rings.get(timeout=max(0, timeout_s))
                self._silence()
                return True
            return False
        import asyncio

        loop = asyncio.get_running_loop()
        heard = loop.create_future()
        self._wake = partial(loop.call_soon_threadsafe, _resolve, heard)
        try:
            # After `_wake` is set, because the bell may be rung in between.
            if self._rings.empty():
                call.wait(asyncio.wait({heard}, timeout=max(0, timeout_s)))
        finally:
            self._wake = None
        return self._silence()

    def _silence(self) -> bool:
        """Forget the rings; return whether there were any."""
        rung = False
        with suppress(Empty):
            while True:
                self._rings.get_nowait()
                rung = True
        return rung


def _resolve(future: "Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def run(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a greenlet; other tasks run where the function waits.

    A function that is cancelled after it was sealed runs to its end. Then this raises
    `CancelledError`, whose cause is the function's error, or a `FinishedError` with the
    result.
    """
    from greenlet import greenlet

    made = greenlet(partial(function, *args, **kwargs))
    # A copy: spans and variables that the function sets stay its own.
    made.gr_context = copy_context()
    call = calls[made] = Call(made)
    cancelled: CancelledError | None = None
    try:
        given: Any = made.switch()
        while not made.dead:
            try:
                if call.sealed:
                    future, late = await _ended(given)
                    cancelled = cancelled or late
                    value = future.result()
                else:
                    value = await given
            except BaseException as error:
                call.closed = isinstance(error, GeneratorExit)
                given = made.throw(error)
            else:
                given = made.switch(value)
    except Exception as error:
        if cancelled is not None:
            raise cancelled from error
        raise
    finally:
        del calls[made]
    if cancelled is not None:
        raise cancelled from FinishedError(given)
    result: T = given
    return result


async def run_in(
    threads: "ThreadPoolExecutor",
    function: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run a function in a thread of `threads`.

    A function that is cancelled before it has begun isn't run. One that has begun runs
    to its end. Then this raises `CancelledError`, as `run` does.
    """
    from asyncio import wrap_future

    begun = threads.submit(copy_context().run, partial(function, *args, **kwargs))
    future, cancelled = await _ended(wrap_future(begun), begun.cancel)
    if cancelled is None:
        return future.result()
    if future.cancelled():
        raise cancelled
    raise cancelled from (future.exception() or FinishedError(future.result()))


async def _apart(function: Callable[[], T], undo: Callable[[T], object] | None) -> T:
    from asyncio import wrap_future

    begun = _helpers().submit(copy_context().run, function)
    future, cancelled = await _ended(wrap_future(begun), begun.cancel)
    if cancelled is None:
        return future.result()
    if undo is not None and not future.cancelled() and not future.exception():
        undo(future.result())
    raise cancelled


async def _ended(
    awaitable: Awaitable[T], cancel: Callable[[], object] | None = None
) -> "tuple[Future[T], CancelledError | None]":
    """Wait for the end of `awaitable`, even if the task is cancelled.

    Return the future that has its outcome, and how the task was cancelled.

    Args:
        awaitable: what to wait for.
        cancel: called once if the task is cancelled; it may end `awaitable`.
    """
    import asyncio

    future = asyncio.ensure_future(awaitable)
    cancelled = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            if cancelled is None and cancel is not None:
                cancel()
            cancelled = cancelled or error
    return future, cancelled


@cache
def _helpers() -> "ThreadPoolExecutor":
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_HELPERS, "delkalakedb-helper")


def _forget() -> None:
    _helpers.cache_clear()
    calls.clear()


# The threads and the loops stay with the parent.
at_fork(after_in_child=_forget)
