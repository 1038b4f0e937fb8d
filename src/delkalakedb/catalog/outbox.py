"""The outbox: which versions wait to be published, and who may publish them.

A table's outbox is its versions above `published_version`. One publisher at a time
holds the table's lease; each lease has a number of its own, the fence, and what a
publisher says counts only while that number is the table's. So one that slept past its
lease can neither move `published_version` nor report a failure.

A lease lasts a short term and is renewed by a heartbeat while its holder works. One
whose term is over may be taken, and so may one whose holder's process is seen to be
gone. Two publishers at work on one table write the same bytes: a lease saves work, and
protects nothing.

Nothing here must survive a power cut: a version that is published but not marked so is
found in the log by the next publisher, and known as ours.
"""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from delkalakedb.catalog.backend import Backend, Row, Run, Session
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.heartbeat import PATIENCE_S, Heartbeat
from delkalakedb.catalog.holder import begin, end, holder_of, is_forsaken, prolong
from delkalakedb.catalog.names import no_such_table
from delkalakedb.model.actions import Metadata
from delkalakedb.model.codec import decode_struct

__all__ = [
    "Lease",
    "Mirror",
    "Outbox",
    "find_mirror",
    "releasing",
    "releasing_lost",
    "taken_lease",
    "taking",
]


@dataclass(frozen=True, slots=True)
class Mirror:
    """A table's mirror as the catalog knows it."""

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
    metadata: Metadata
    # When the oldest version that isn't published was ratified.
    waiting_since_ms: int | None
    # Why nobody may commit to the table, or publish it, here.
    hold: str | None = None
    # What time it is, by the clock that leases go by.
    now_ms: int = field(default=0, compare=False)

    @property
    def is_held(self) -> bool:
        """Whether somebody has the lease, and isn't known to be gone."""
        return (self.lease_until_ms or 0) > self.now_ms and not self.is_forsaken

    @property
    def is_forsaken(self) -> bool:
        """Whether the process that took the lease is gone, or done with it."""
        return self.lease_owner is not None and is_forsaken(self.lease_owner)

    @property
    def is_put_off(self) -> bool:
        """Whether it is too soon after a failure."""
        return (self.next_try_ms or 0) > self.now_ms


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to publish a table until `expires` on this process's clock."""

    mirror: Mirror
    fence: int
    expires: float
    lasts_s: float

    @property
    def fresh(self) -> bool:
        """Whether more than half of it is left."""
        return self.expires - time.monotonic() > self.lasts_s / 2


class Outbox:
    """The outboxes of one catalog's tables."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def load(self, name: str) -> Mirror:
        """One table's mirror."""
        with self._backend.reading() as session:
            return find_mirror(session, name)

    def load_all(self, *, behind: bool = False) -> list[Mirror]:
        """Every table's mirror, by name; or only of those with versions that wait."""
        params = {"name": None, "behind": int(behind), "now_ms": _now_ms()}
        with self._backend.reading() as session:
            return [_mirror(row) for row in session.query("load_mirrors", params)]

    def take(
        self, name: str, lasts_s: float, *, early: bool = False, settling: bool = False
    ) -> Lease | Mirror:
        """The lease; or, if it can't be had, the mirror as it is.

        After a failure it can be had when it is time to try again, or `early`; that of
        a diverged table only for `settling` that.
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
        load = self._backend.statements["load_mirrors"], _named(name)
        take = taking(
            self._backend,
            name,
            lasts_s,
            early=early,
            settling=settling,
            forsaken=forsaken,
        )
        taken, rows = self._backend.at_once([take, load])
        mirror = _one(rows, name)
        return Lease(mirror, taken[0][0], expires, lasts_s) if taken else mirror

    def renew(self, lease: Lease) -> Lease | None:
        """The lease for another while; None if it was lost."""
        expires = time.monotonic() + lease.lasts_s
        with self._backend.writing(durable=False) as session:
            held = session.query("renew_lease", _key(lease) | _lasting(lease.lasts_s))
        if not held:
            return None
        prolong(lease.mirror.lease_owner, lease.lasts_s)
        return Lease(lease.mirror, lease.fence, expires, lease.lasts_s)

    def keeping(self, lease: Lease, patience_s: float = PATIENCE_S) -> Heartbeat:
        """Renews the lease while the block under it takes long."""
        return Heartbeat(
            lambda: self.renew(lease) is not None, lease.lasts_s, patience_s
        )

    def release(self, lease: Lease) -> None:
        """Let the next one publish."""
        try:
            self._write(releasing(lease))
        finally:
            # Last, because another thread may take back what is ended.
            end(lease.mirror.lease_owner)

    def mark_published(
        self, lease: Lease, hashes: Mapping[int, str], *, release: bool
    ) -> bool:
        """Versions are in the log, by the hashes of their files; False: lease lost."""
        key, statements = _key(lease), self._backend.statements
        each = [
            (statements["mark_published_hash"], {**key, "version": v, "sha256": sha256})
            for v, sha256 in hashes.items()
        ]
        upto = {**key, "version": max(hashes), "release": int(release)}
        # In the order in which who drops a table locks these rows.
        *_, marked = self._backend.at_once(
            [*each, (statements["mark_published"], upto)]
        )
        return bool(marked)

    def mark_hash(self, lease: Lease, version: int, sha256: str) -> None:
        """The entry of a published version has another hash from now on."""
        params = {**_key(lease), "version": version, "sha256": sha256}
        self._write(Run("mark_published_hash", params))

    def mark_failed(self, lease: Lease, error: str, pause_s: float) -> None:
        """Publishing failed; it isn't tried for a while, and the lease is free."""
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
        """Someone else's commit follows the published version, if that is still so."""
        followed = mirror.published_version if published is None else published
        params = {
            "table_id": mirror.table_id,
            "published_version": followed,
            "error": error,
            "fence": None if lease is None else lease.fence,
        }
        self._write(Run("mark_diverged", params))

    def claim_checkpoint(self, mirror: Mirror, version: int, lasts_s: float) -> bool:
        """Whether it is on us to make a checkpoint that is due."""
        params = {"table_id": mirror.table_id, "version": version} | _lasting(lasts_s)
        with self._backend.writing(durable=False) as session:
            return bool(session.query("claim_checkpoint", params))

    def keeping_claim(
        self, mirror: Mirror, version: int, lasts_s: float, patience_s: float
    ) -> Heartbeat:
        """Renews the claim on a checkpoint while the block under it takes long."""

        def renew() -> bool:
            params = {"table_id": mirror.table_id, "version": version}
            with self._backend.writing(durable=False) as session:
                return bool(session.query("renew_claim", params | _lasting(lasts_s)))

        return Heartbeat(renew, lasts_s, patience_s)

    def mark_checkpoint(self, mirror: Mirror, version: int) -> None:
        """The newest version with a checkpoint; ends the claim."""
        params = {"table_id": mirror.table_id, "version": version}
        self._write(Run("mark_checkpoint", params))

    def postpone_checkpoint(self, mirror: Mirror, pause_s: float) -> None:
        """A checkpoint failed, and isn't tried again for a while."""
        params = {"table_id": mirror.table_id} | _pausing(pause_s)
        self._write(Run("postpone_checkpoint", params))

    def _write(self, *writes: Run) -> None:
        with self._backend.writing(durable=False) as session:
            session.apply(writes)


def find_mirror(session: Session, name: str) -> Mirror:
    """A table's mirror, as a transaction sees it."""
    return _one(session.query("load_mirrors", _named(name)), name)


def taking(
    backend: Backend,
    name: str,
    lasts_s: float,
    *,
    early: bool = False,
    settling: bool = False,
    forsaken: str | None = None,
    token: str | None = None,
) -> tuple[str, dict[str, object]]:
    """The statement that takes a lease, if it can be had.

    Args:
        backend: the catalog's database.
        name: the table.
        lasts_s: the lease's term.
        early: even if it is too soon after a failure.
        settling: even if the table is diverged or held.
        forsaken: a holder that is gone, whose lease may be taken before its term ends.
        token (str): by which a caller that may not hear of the lease releases it.
    """
    params: dict[str, object] = {
        "name": name,
        "owner": begin(token or uuid.uuid4().hex, lasts_s),
        "early": int(early),
        "settling": int(settling),
        "forsaken": forsaken,
    }
    return backend.statements["take_lease"], params | _lasting(lasts_s)


def taken_lease(taken: Row, head: Head, expires: float, lasts_s: float) -> Lease:
    """The lease that was taken, of a table as it is now."""
    fence, *state = taken
    table = (head.table_id, head.name, head.location, head.version)
    mirror = Mirror(*(*table, *state, head.num_files, head.metadata, None))
    return Lease(mirror, fence, expires, lasts_s)


def releasing_lost(name: str, token: str) -> Run:
    """The statement that gives a lease back of which nobody heard."""
    return Run("release_lost_lease", {"name": name, "owner": holder_of(token)})


def releasing(lease: Lease) -> Run:
    """The statement that gives a lease back."""
    return Run("release_lease", _key(lease))


def _key(lease: Lease) -> dict[str, int]:
    return {"table_id": lease.mirror.table_id, "fence": lease.fence}


def _named(name: str) -> dict[str, object]:
    return {"name": name, "behind": 0, "now_ms": _now_ms()}


def _lasting(seconds: float) -> dict[str, object]:
    return {"lasts_ms": int(seconds * 1000), "now_ms": _now_ms()}


def _pausing(seconds: float) -> dict[str, object]:
    return {"pause_ms": int(seconds * 1000), "now_ms": _now_ms()}


def _now_ms() -> int:
    # Some databases have a clock of their own, and take no notice.
    return int(time.time() * 1000)


def _one(rows: list[Row], name: str) -> Mirror:
    if not rows:
        raise no_such_table(name)
    return _mirror(rows[0])


def _mirror(row: Row) -> Mirror:
    *values, metadata, waiting_since_ms, hold, now_ms = row
    state = (decode_struct(metadata, Metadata), waiting_since_ms, hold, now_ms)
    return Mirror(*(*values, *state))
