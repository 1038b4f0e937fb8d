"""`mirror.mode = background`: a thread of the writer's process publishes.

It lives while there is something to publish, with a hold on the catalog of its own, and
tries again after failures. When the process ends it gets a bounded time to finish; what
is left then is the reconciler's, or the next writer's.
"""

import atexit
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.forks import at_fork
from delkalakedb.catalog.outbox import Outbox
from delkalakedb.errors import MirrorError, TableNotFoundError
from delkalakedb.mirror.publish import publish_table, stores_with
from delkalakedb.mirror.unpublished import note_failure, tell_all
from delkalakedb.mirror.upkeep import due_checkpoint, make_checkpoint, unharmed
from delkalakedb.telemetry import PublishWarning

__all__ = ["drain", "publish_soon"]

_log = logging.getLogger("delkalakedb.mirror")
_Key = tuple[int, str]


@dataclass(slots=True)
class _Job:
    """A table to publish; it holds the catalog open until that is done."""

    catalog: Catalog
    name: str
    version: int
    storage_options: Mapping[str, str] | None
    due: float = field(default_factory=time.monotonic)


class _Background:
    def __init__(self) -> None:
        self._jobs: dict[_Key, _Job] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending = False

    def add(
        self,
        catalog: Catalog,
        name: str,
        version: int,
        options: Mapping[str, str] | None,
    ) -> None:
        key = (id(catalog.backend), name)
        with self._changed:
            if key not in self._jobs:
                own = Catalog(catalog.uri, catalog.settings)
                self._jobs[key] = _Job(own, name, version, options)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="mirror", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def drain(self, timeout_s: float | None = None) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        self._ending = False

    def _run(self) -> None:
        while (job := self._next()) is not None:
            again = self._attempt(job)
            with self._changed:
                if job.catalog.closed:
                    continue
                key = (id(job.catalog.backend), job.name)
                if again is not None and not self._ending and key not in self._jobs:
                    job.due = again
                    self._jobs[key] = job
                    continue
            job.catalog.close()

    def _next(self) -> _Job | None:
        """The next job when it is due; None when there is none, and the thread ends."""
        with self._changed:
            while self._jobs:
                key = min(self._jobs, key=lambda key: self._jobs[key].due)
                wait_s = self._jobs[key].due - time.monotonic()
                if wait_s <= 0 or self._ending:
                    return self._jobs.pop(key)
                self._changed.wait(wait_s)
            self._thread = None
            return None

    def _attempt(self, job: _Job) -> float | None:
        """Publish; the time to try again, if it has to be."""
        catalog, outbox = job.catalog, Outbox(job.catalog.backend)
        retry = catalog.settings.mirror.retry
        try:
            mirror = outbox.load(job.name)
            upto, stores = mirror.ratified_version, stores_with(job.storage_options)
            done = publish_table(catalog, job.name, stores, upto)
            with unharmed(job.name):
                due = due_checkpoint(catalog, done.mirror, done.version)
                if due is not None:
                    make_checkpoint(catalog, done.mirror, due, stores(mirror))
            if done.version >= upto:
                return None
        except TableNotFoundError as error:
            _log.error("%s", error)
            return None
        except Exception as error:
            # The thread is needed for other tables, too, and nobody calls it: where
            # warnings are errors, there is only the log.
            with suppress(PublishWarning):
                tell_all(catalog, [note_failure(job.name, job.version, error)])
            if isinstance(error, MirrorError):
                return None
        return time.monotonic() + retry.backoff_initial


_background = _Background()


def publish_soon(
    catalog: Catalog,
    name: str,
    version: int,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Have a version of a table published by the background thread."""
    _background.add(catalog, name, version, storage_options)


@atexit.register
def drain(timeout_s: float = 10.0) -> None:
    """Wait for what is to be published, without trying again what fails."""
    _background.drain(timeout_s)


def _forget() -> None:
    # In a forked child: the thread, and what it had to do, stay with the parent.
    global _background
    _background = _Background()


at_fork(after_in_child=_forget)
