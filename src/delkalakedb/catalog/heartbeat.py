"""Heartbeats: what is held for a short term is renewed while work on it goes on.

Most work ends long before a renewal is due, and costs an entry in a dictionary here.
Work that takes longer gets a thread of its own, which renews until the work ends, or
makes no progress for too long: a request that hangs must not hold a table for ever.
"""

import atexit
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from delkalakedb.catalog.cache import Forkable
from delkalakedb.errors import DeltalakeDBError

__all__ = ["PATIENCE_S", "Heartbeat"]

_log = logging.getLogger("delkalakedb.mirror")
# Renewals in a term: so many may fail or be late before a rival can take over.
_BEATS = 3
# Seconds without progress after which work isn't renewed any more. Requests to a store
# time out after 30 s.
PATIENCE_S = 60.0


class Heartbeat:
    """Calls `renew` again and again while the `with` block takes longer than expected.

    Args:
        renew: makes what is held last for another term; False where it was lost.
        term_s: how long it lasts without a renewal.
        patience_s: how long to go on without progress.
    """

    def __init__(
        self,
        renew: Callable[[], bool],
        term_s: float,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._renew = renew
        self._every_s = term_s / _BEATS
        self._patience_s = patience_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.progress()
        self.due = self._progressed + self._every_s

    def progress(self) -> None:
        """Work goes on: be patient once more."""
        self._progressed = time.monotonic()

    def __enter__(self) -> "Heartbeat":
        _watch.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _watch.remove(self)
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def start(self) -> None:
        """Renew from now on, in a thread; only while the watch knows of it."""
        self._thread = _started(self._beat, "heartbeat")

    def _beat(self) -> None:
        while time.monotonic() - self._progressed < self._patience_s:
            try:
                if not self._renew():
                    return
            except DeltalakeDBError as error:
                # The database may be back for the next one.
                _log.debug("a renewal failed: %s", error)
            if self._ended.wait(self._every_s):
                return


class _Watch(Forkable):
    """One thread of the process, which starts those of heartbeats that are due."""

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: set[Heartbeat] = set()
        self._thread: threading.Thread | None = None
        self._ending = False
        # When the thread looks next.
        self._looks = float("inf")

    def add(self, beat: Heartbeat) -> None:
        with self._changed:
            self._waiting.add(beat)
            # Otherwise it looks in time anyway: it isn't woken for each piece of work.
            if beat.due < self._looks:
                self._looks = beat.due
                self._wake()

    def remove(self, beat: Heartbeat) -> None:
        with self._changed:
            self._waiting.discard(beat)

    def end(self) -> None:
        """End the thread: one that lives on keeps libraries from being unloaded."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _wake(self) -> None:
        if self._thread is None and not self._ending:
            self._thread = _started(self._run, "heartbeats")
        self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._ending:
                now = time.monotonic()
                self._start_due(now)
                due = [beat.due for beat in self._waiting]
                self._looks = min(due, default=float("inf"))
                self._changed.wait(self._looks - now if due else None)

    def _start_due(self, now: float) -> None:
        for beat in [beat for beat in self._waiting if beat.due <= now]:
            self._waiting.discard(beat)
            beat.start()


def _started(target: Callable[[], None], name: str) -> threading.Thread | None:
    """A thread that runs; None while the interpreter ends, when none can be started."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


_watch = _Watch()
# As the interpreter ends; the publishing that is left then comes before.
atexit.register(_watch.end)
