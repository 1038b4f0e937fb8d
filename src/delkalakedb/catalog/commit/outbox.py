"""The outbox: the versions that wait to be published, and the leases to publish them.

A table's outbox is its versions above `published_version`. One publisher at a time
holds the table's lease; each lease has a number of its own, the fence. A publisher's
writes count only while the table has the lease's number. So a publisher whose lease has
expired can neither move `published_version` nor report a failure.

A lease lasts a short term and is renewed by a heartbeat while its holder works. Another
process may take a lease whose term is over, or whose holder is known to have ended. Two
publishers of one table write the same bytes: a lease saves work, and protects nothing.

Nothing here must survive a power cut, because the next publisher finds a version that
is published but not marked so in the log, and recognizes its transaction id.
"""

import atexit
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal, NamedTuple

from delkalakedb.catalog.engine import Backend, Query, Run, Session
from delkalakedb.catalog.read import Head, no_such_table
from delkalakedb.clock import now_ms
from delkalakedb.errors import DeltalakeDBError
from delkalakedb.forks import Forkable
from delkalakedb.model.actions import Metadata, decode_struct

MirrorState = Literal["pending", "published", "failed", "diverged", "held"]
_PARTS = 4
# The clock tick at which a process started, counted from its state in /proc/<pid>/stat.
_START = 19
# A process that has ended, but whose parent hasn't asked for its exit status yet.
_ENDED = ("Z", "X")


class _Working(Forkable):
    def _reset(self) -> None:
        # By holder: until when, on this process's clock.
        self.until: dict[str, float] = {}


_working = _Working()


def holder_of(token: str) -> str:
    """Return the text that names this process as the holder of a lease."""
    return f"{_process(os.getpid())}/{token}"


def begin(token: str, lasts_s: float) -> str:
    """Register a lease of this process; return the text that names its holder."""
    holder, now = holder_of(token), time.monotonic()
    for old in [old for old, until in list(_working.until.items()) if until < now]:
        _working.until.pop(old, None)
    _working.until[holder] = now + lasts_s
    return holder


def prolong(holder: str | None, lasts_s: float) -> None:
    """Note that this process still works under a lease."""
    if holder in _working.until:
        _working.until[holder] = time.monotonic() + lasts_s


def end(holder: str | None) -> None:
    """Note that this process doesn't work under a lease any more."""
    if holder is not None:
        _working.until.pop(holder, None)


def is_forsaken(holder: str) -> bool:
    """Return whether `holder` is known to have stopped working under its lease."""
    parts, here = holder.rsplit("/", 3), _process(os.getpid())
    if len(parts) < _PARTS or parts[0] != here.rsplit("/", 2)[0]:
        return False
    _, pid, start, _ = parts
    if f"{parts[0]}/{pid}/{start}" == here:
        return _working.until.get(holder, 0.0) < time.monotonic()
    return not _runs(pid, start)


@lru_cache(maxsize=1)
def _process(pid: int) -> str:
    """Return the text that names this process, without a lease's token."""
    host = socket.gethostname()
    try:
        if os.readlink("/proc/self") != str(pid):
            raise FileNotFoundError("/proc counts pids by another namespace")
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
        _, start = _status(str(pid))
    except OSError:
        # A machine of its own, so that no other process is judged by its pid.
        return f"{host}/{uuid.uuid4().hex}/{pid}/0"
    return f"{host}/{boot}.{namespace}/{pid}/{start}"


def _runs(pid: str, start: str) -> bool:
    """Return whether the process `pid` that started at the tick `start` still runs."""
    try:
        # Asked first, because /proc may hide the processes of other users.
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError, ValueError):
        return False
    except OSError:
        pass
    try:
        state, started = _status(pid)
    except (OSError, IndexError):
        return True
    return started == start and state not in _ENDED


def _status(pid: str) -> tuple[str, str]:
    """Return a process's state, and the clock tick at which it started."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # After the command's name, which may hold anything.
        fields = file.read().rpartition(")")[2].split()
    return fields[0], fields[_START]


_log = logging.getLogger("delkalakedb.mirror")
# Renewals in a term: so many may fail or be late before a rival can take over.
_BEATS = 3
# Seconds without progress after which work isn't renewed any more. Requests to a store
# time out after 30 s.
PATIENCE_S = 60.0


class Heartbeat:
    """A thread that calls `renew` while the `with` block takes longer than expected.

    Args:
        renew: extends a lease or a claim by another term; returns False if the lease or
            the claim was lost.
        term_s: the term in seconds.
        patience_s: the seconds without progress after which renewals end.
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
        """Note progress, so that renewals go on for another `patience_s` seconds."""
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
        """Start the thread that renews; only the watch calls this method."""
        self._thread = _started(self._beat, "heartbeat")

    def _beat(self) -> None:
        while time.monotonic() - self._progressed < self._patience_s:
            try:
                if not self._renew():
                    return
            except DeltalakeDBError as error:
                # The next renewal may reach the database again.
                _log.debug("a renewal failed: %s", error)
            if self._ended.wait(self._every_s):
                return


class _Watch(Forkable):
    """The thread of the process that starts the threads of due heartbeats."""

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: set[Heartbeat] = set()
        self._thread: threading.Thread | None = None
        self._ending = False
        # when the thread checks next, on the monotonic clock
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
        """End the thread, because a running one prevents unloading of libraries."""
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
    """Start a thread; return None if the interpreter is ending and starts none."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


_watch = _Watch()
# As the interpreter ends; the publishing that is left then comes before.
atexit.register(_watch.end)


@dataclass(frozen=True, slots=True)
class Mirror:
    """A table's mirror as the catalog knows it.

    Its fields are the columns of `load_mirrors`.
    """

    metadata: Metadata
    table_id: int
    name: str
    location: str
    ratified_version: int
    published_version: int
    state: str
    attempts: int
    last_error: str | None
    next_try_ms: int | None
    lease_owner: str | None
    lease_until_ms: int | None
    checkpoint_version: int
    checkpoint_until_ms: int | None
    num_files: int
    # When the oldest version that isn't published was ratified.
    waiting_since_ms: int | None
    # Why this catalog may neither commit to the table nor publish it.
    hold: str | None = None
    # The time by the clock that leases use.
    now_ms: int = field(default=0, compare=False)

    @property
    def condition(self) -> MirrorState:
        """The state; the database stores only how the last attempt ended."""
        if self.hold is not None:
            return "held"
        if self.state == "diverged":
            return "diverged"
        if self.published_version >= self.ratified_version:
            return "published"
        return "failed" if self.state == "failed" else "pending"

    @property
    def is_held(self) -> bool:
        """Whether a process holds the lease and isn't known to have ended."""
        return (self.lease_until_ms or 0) > self.now_ms and not self.is_forsaken

    @property
    def is_forsaken(self) -> bool:
        """Whether the process that took the lease has ended, or no longer uses it."""
        return self.lease_owner is not None and is_forsaken(self.lease_owner)

    @property
    def is_put_off(self) -> bool:
        """Whether the next attempt is postponed after a failure."""
        return (self.next_try_ms or 0) > self.now_ms


class LeaseRow(NamedTuple):
    """A row of `take_lease`."""

    fence: int
    published_version: int
    state: str
    attempts: int
    last_error: str | None
    next_try_ms: int | None
    lease_owner: str
    lease_until_ms: int
    checkpoint_version: int
    checkpoint_until_ms: int | None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to publish a table until `expires` on this process's clock."""

    mirror: Mirror
    fence: int
    expires: float
    lasts_s: float

    @property
    def fresh(self) -> bool:
        """Whether more than half of the lease's term is left."""
        return self.expires - time.monotonic() > self.lasts_s / 2


class Outbox:
    """The outboxes of one catalog's tables."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def load(self, name: str) -> Mirror:
        """Return the mirror of one table."""
        with self._backend.reading() as session:
            return find_mirror(session, name)

    def load_all(self, *, behind: bool = False) -> list[Mirror]:
        """Return the mirrors of all tables by name; if `behind`, those that lag."""
        params = {"name": None, "behind": int(behind), "now_ms": now_ms()}
        with self._backend.reading() as session:
            return session.rows(_mirror, "load_mirrors", params)

    def take(
        self, name: str, lasts_s: float, *, early: bool = False, settling: bool = False
    ) -> Lease | Mirror:
        """Take the lease and return it, or the mirror's state if the lease isn't free.

        After a failure the lease is free once the next attempt is due, or at once if
        `early`. The lease of a diverged table is free only if `settling`.
        """
        found = self._take(name, lasts_s, early, settling)
        if isinstance(found, Mirror) and found.is_forsaken:
            return self._take(name, lasts_s, early, settling, found.lease_owner)
        return found

    def _take(
        self,
        name: str,
        lasts_s: float,
        early: bool,
        settling: bool,
        forsaken: str | None = None,
    ) -> Lease | Mirror:
        expires = time.monotonic() + lasts_s
        take = taking(name, lasts_s, early=early, settling=settling, forsaken=forsaken)
        load = (_mirror, "load_mirrors", _named(name))
        taken, found = self._backend.at_once([take, load])
        mirror = found[0] if found else self.load(name)
        return Lease(mirror, taken[0].fence, expires, lasts_s) if taken else mirror

    def renew(self, lease: Lease) -> Lease | None:
        """Extend the lease and return it, or None if the lease was lost."""
        expires = time.monotonic() + lease.lasts_s
        key = _key(lease) | _lasting(lease.lasts_s)
        (held,) = self._backend.at_once([(int, "renew_lease", key)])
        if not held:
            return None
        prolong(lease.mirror.lease_owner, lease.lasts_s)
        return Lease(lease.mirror, lease.fence, expires, lease.lasts_s)

    def keeping(self, lease: Lease, patience_s: float = PATIENCE_S) -> Heartbeat:
        """Return a heartbeat that renews the lease during a `with` block."""
        return Heartbeat(
            lambda: self.renew(lease) is not None, lease.lasts_s, patience_s
        )

    def release(self, lease: Lease) -> None:
        """Release the lease."""
        try:
            self._write(releasing(lease))
        finally:
            # Last, because another thread may take over a lease that has ended.
            end(lease.mirror.lease_owner)

    def mark_published(
        self, lease: Lease, hashes: Mapping[int, str], *, release: bool
    ) -> bool:
        """Record that versions are in the log; return False if the lease was lost.

        `hashes` are those of the log entries, by version.
        """
        key = _key(lease)
        each: list[Query] = [
            (int, "mark_published_hash", {**key, "version": v, "sha256": sha256})
            for v, sha256 in hashes.items()
        ]
        upto = {**key, "version": max(hashes), "release": int(release)}
        # In the order in which dropping a table locks these rows.
        *_, marked = self._backend.at_once([*each, (int, "mark_published", upto)])
        return bool(marked)

    def mark_hash(self, lease: Lease, version: int, sha256: str) -> None:
        """Store another hash for the entry of a published version."""
        params = {**_key(lease), "version": version, "sha256": sha256}
        self._write(Run("mark_published_hash", params))

    def mark_failed(self, lease: Lease, error: str, pause_s: float) -> None:
        """Record a failed attempt, postpone the next one and release the lease."""
        failed = _key(lease) | {"error": error} | _pausing(pause_s)
        self._write(Run("mark_failed", failed), releasing(lease))

    def mark_diverged(
        self,
        mirror: Mirror,
        error: str,
        *,
        published: int | None = None,
        lease: Lease | None = None,
    ) -> None:
        """Record a foreign commit, unless a newer version was published meanwhile."""
        followed = mirror.published_version if published is None else published
        params = {
            "table_id": mirror.table_id,
            "published_version": followed,
            "error": error,
            "fence": None if lease is None else lease.fence,
        }
        self._write(Run("mark_diverged", params))

    def claim_checkpoint(self, mirror: Mirror, version: int, lasts_s: float) -> bool:
        """Claim a due checkpoint; return False if another process has the claim."""
        params = {"table_id": mirror.table_id, "version": version} | _lasting(lasts_s)
        (claimed,) = self._backend.at_once([(int, "claim_checkpoint", params)])
        return bool(claimed)

    def keeping_claim(
        self, mirror: Mirror, version: int, lasts_s: float, patience_s: float
    ) -> Heartbeat:
        """Return a heartbeat that renews a checkpoint's claim during a `with` block."""

        def renew() -> bool:
            params = {"table_id": mirror.table_id, "version": version}
            lasting = params | _lasting(lasts_s)
            (held,) = self._backend.at_once([(int, "renew_claim", lasting)])
            return bool(held)

        return Heartbeat(renew, lasts_s, patience_s)

    def mark_checkpoint(self, mirror: Mirror, version: int) -> None:
        """Record the newest version with a checkpoint, and end the claim."""
        params = {"table_id": mirror.table_id, "version": version}
        self._write(Run("mark_checkpoint", params))

    def postpone_checkpoint(self, mirror: Mirror, pause_s: float) -> None:
        """Record a failed checkpoint and postpone the next attempt."""
        params = {"table_id": mirror.table_id} | _pausing(pause_s)
        self._write(Run("postpone_checkpoint", params))

    def _write(self, *writes: Run) -> None:
        with self._backend.writing(durable=False) as session:
            session.apply(writes)


def find_mirror(session: Session, name: str) -> Mirror:
    """Return a table's mirror, as a transaction sees it."""
    for mirror in session.rows(_mirror, "load_mirrors", _named(name)):
        return mirror
    raise no_such_table(name, session)


def taking(
    name: str,
    lasts_s: float,
    *,
    early: bool = False,
    settling: bool = False,
    forsaken: str | None = None,
    token: str | None = None,
) -> Query:
    """Return the statement that takes a lease if the lease is free.

    Args:
        name: the table.
        lasts_s: the lease's term.
        early: take the lease even if the next attempt is postponed after a failure.
        settling: take the lease even if the table is diverged or held.
        forsaken: a holder that has ended, whose lease is free before its term ends.
        token (str): identifies the lease for `releasing_lost`; random by default.
    """
    params: dict[str, object] = {
        "name": name,
        "owner": begin(token or uuid.uuid4().hex, lasts_s),
        "early": int(early),
        "settling": int(settling),
        "forsaken": forsaken,
    }
    return LeaseRow, "take_lease", params | _lasting(lasts_s)


def taken_lease(taken: LeaseRow, head: Head, expires: float, lasts_s: float) -> Lease:
    """Return the lease that was taken on the table at `head`."""
    mirror = Mirror(
        metadata=head.metadata,
        table_id=head.table_id,
        name=head.name,
        location=head.location,
        ratified_version=head.version,
        published_version=taken.published_version,
        state=taken.state,
        attempts=taken.attempts,
        last_error=taken.last_error,
        next_try_ms=taken.next_try_ms,
        lease_owner=taken.lease_owner,
        lease_until_ms=taken.lease_until_ms,
        checkpoint_version=taken.checkpoint_version,
        checkpoint_until_ms=taken.checkpoint_until_ms,
        num_files=head.num_files,
        waiting_since_ms=None,
    )
    return Lease(mirror, taken.fence, expires, lasts_s)


def releasing_lost(name: str, token: str) -> Run:
    """Return the statement that releases a lease by the token of its commit."""
    return Run("release_lost_lease", {"name": name, "owner": holder_of(token)})


def releasing(lease: Lease) -> Run:
    """Return the statement that releases a lease."""
    return Run("release_lease", _key(lease))


def _key(lease: Lease) -> dict[str, int]:
    return {"table_id": lease.mirror.table_id, "fence": lease.fence}


def _named(name: str) -> dict[str, object]:
    return {"name": name, "behind": 0, "now_ms": now_ms()}


def _lasting(seconds: float) -> dict[str, object]:
    return {"lasts_ms": int(seconds * 1000), "now_ms": now_ms()}


def _pausing(seconds: float) -> dict[str, object]:
    return {"pause_ms": int(seconds * 1000), "now_ms": now_ms()}


def _mirror(metadata: str, *others: Any) -> Mirror:
    return Mirror(decode_struct(metadata, Metadata), *others)
