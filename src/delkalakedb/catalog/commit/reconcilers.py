"""The reconcilers that run, as the catalog knows them.

A reconciler records every few seconds that it is running, and deletes its row when it
ends. The row of a reconciler that was killed stays for a day.
"""

import os
import uuid
from dataclasses import dataclass

from delkalakedb.catalog.engine import Backend, Run, actor_of
from delkalakedb.clock import now_ms
from delkalakedb.model.times import DAY_MS

# milliseconds; how long the row of a reconciler that was killed stays
_KEPT_MS = DAY_MS
# milliseconds; one that hasn't been seen for so long is counted as gone
_GONE_MS = 30_000


@dataclass(frozen=True, slots=True)
class Seen:
    """A reconciler, and when it was last seen.

    Args:
        table: the only table that it publishes; None for all tables.
        os_user: the user who runs it.
        host: the machine that it runs on.
        process_id: the number of its process there.
        client: the version of the package.
        started_at_ms: when it started.
        seen_at_ms: when it was last seen.
        silent_ms: how long ago that was.
    """

    table: str | None
    os_user: str | None
    host: str | None
    process_id: int
    client: str | None
    started_at_ms: int
    seen_at_ms: int
    silent_ms: int

    @property
    def runs(self) -> bool:
        """Whether it was seen within half a minute."""
        return self.silent_ms < _GONE_MS


class Presence:
    """One reconciler's entry in the list."""

    def __init__(self, backend: Backend, table: str | None) -> None:
        actor = actor_of(backend)
        self._backend = backend
        self._id = uuid.uuid4().hex
        self._row = {
            "reconciler_id": self._id,
            "table_name": table,
            "os_user": actor.os_user,
            "host": actor.host,
            "process_id": os.getpid(),
            "client": actor.client,
        }

    def note(self) -> None:
        """Record that the reconciler is running."""
        self._write(Run("see_reconciler", self._row | _now()))

    def end(self) -> None:
        """Delete this reconciler's row, and those of reconcilers killed long ago."""
        params = {"reconciler_id": self._id, "kept_ms": _KEPT_MS}
        self._write(Run("forget_reconciler", params | _now()))

    def _write(self, write: Run) -> None:
        with self._backend.writing(durable=False) as session:
            session.apply([write])


def load_reconcilers(backend: Backend) -> list[Seen]:
    """Return the reconcilers on the list, the last seen first."""
    with backend.reading() as session:
        return session.rows(Seen, "load_reconcilers", _now())


def _now() -> dict[str, object]:
    return {"now_ms": now_ms()}
