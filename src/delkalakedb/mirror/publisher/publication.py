"""Publish: copy ratified commits to `_delta_log`, in version order, under a lease.

For each version, in this order: `<version>.json` is created, never overwritten; its
`.crc` is created; then, for a run of versions at once, the catalog records the newest
published version. If a publisher is killed, the next publisher repeats its steps: a
version always gives the same bytes, and a file with our transaction id is ours. Any
other file is a foreign commit; it stays as it is, and the table is *diverged*.

The lease lasts about a second and is renewed meanwhile, so that after a publisher was
killed the next publisher waits at most a second, and on the same machine not at all.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.commit import Committed, Heartbeat, Lease, Mirror, Outbox, end
from delkalakedb.catalog.read import Head, LoggedCommit, load_commits
from delkalakedb.clock import pause_s, pauses
from delkalakedb.errors import CodecError, DivergedError, StorageError
from delkalakedb.mirror.checkpoint import version_checksum
from delkalakedb.model.actions import encode_commit, sha256_of, transaction_id_of
from delkalakedb.model.paths import checksum_path, commit_path
from delkalakedb.storage import Store, open_store
from delkalakedb.telemetry import PUBLISH, measured

Stores = Callable[[Mirror], Store]

# Versions that are loaded, published and marked together.
_TOGETHER = 32
# A request that hangs ends before the lease isn't renewed any more.
_PATIENCE = {"timeout": "30s", "retry_timeout": "10s"}
_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


@dataclass(frozen=True, slots=True)
class Published:
    """How far a table's mirror has come."""

    mirror: Mirror
    version: int


def publish(
    catalog: Catalog, name: str, storage_options: Mapping[str, str] | None = None
) -> int:
    """Publish the ratified versions of a table.

    Wait up to `mirror.wait` seconds while another process publishes the table.

    Args:
        catalog: the table's catalog.
        name: the table.
        storage_options: of the table's object store, as deltalake takes them.

    Returns:
        The newest published version.

    Raises:
        TableNotFoundError: The catalog has no such table.
        DivergedError: The log has a commit that the catalog didn't ratify.
        StorageError: The object store can't be reached.

    Examples:
        >>> external = {"mode": "external"}
        >>> catalog = dk.connect("deltasql://sqlite/meta.db", mirror=external)
        >>> catalog.write("cities", pa.table({"city": ["Oslo"]}))
        >>> dk.mirror.publish(catalog, "cities")
        0
    """
    upto = Outbox(catalog._backend).load(name).ratified_version
    wait_s = catalog.settings.mirror.wait
    stores = stores_with(storage_options)
    return publish_table(catalog, name, stores, upto, wait_s=wait_s).version


def publish_table(
    catalog: Catalog,
    name: str,
    stores: Stores,
    upto: int,
    *,
    wait_s: float = 0.0,
    early: bool = False,
    commits: Sequence[Committed] = (),
) -> Published:
    """Publish a table under its lease, or wait until another process has published it.

    Args:
        catalog: the table's catalog.
        name: the table.
        stores: opens the store of the table's location.
        upto: the version to wait for; all ratified versions are published.
        wait_s: how long to wait while another process holds the lease.
        early: try even if the next attempt is postponed after a failure.
        commits: new commits to the table, whose actions needn't be loaded.
    """
    outbox = Outbox(catalog._backend)
    deadline, held = time.monotonic() + wait_s, False
    waits = pauses(_PAUSE_S, _LONGEST_PAUSE_S)
    while True:
        # Asked first, so that there is a try at the end of the wait.
        late = time.monotonic() >= deadline
        # While another process holds the lease, loading is cheaper than taking.
        seen: Lease | Mirror
        if not held or not (seen := outbox.load(name)).is_held:
            seen = outbox.take(name, catalog.settings.mirror.lease, early=early)
        if isinstance(seen, Lease):
            done = publish_held(catalog, seen, stores, commits)
            if done.version >= upto or late:
                return done
            # Another process took the lease meanwhile.
            seen = done.mirror
        if seen.state == "diverged":
            raise DivergedError(seen.last_error)
        held = seen.is_held
        # Neither held nor put off after a failure: the lease was just released.
        put_off = not held and seen.is_put_off
        if seen.published_version >= upto or seen.hold or put_off or late:
            return Published(seen, seen.published_version)
        time.sleep(next(waits))


def publish_held(
    catalog: Catalog, lease: Lease, stores: Stores, commits: Sequence[Committed] = ()
) -> Published:
    """Publish a table whose lease is held already, and release the lease.

    `commits` are new commits to the table, whose actions needn't be loaded.
    """
    carried = {
        c.version: c.ratified
        for c in commits
        if c.ratified is not None and _is_of(c.ratified.head, lease.mirror)
    }
    outbox = Outbox(catalog._backend)
    with measured(PUBLISH, engine=catalog._backend.engine, table=lease.mirror.name):
        return _Publication(catalog, outbox, lease, stores, carried).run()


def put_commit(
    store: Store, name: str, commit: LoggedCommit, data: bytes | None = None
) -> str:
    """Write a commit to a table's log unless it is there; return its file's hash.

    `data` are the bytes to write, if they aren't those that `encode_commit` gives.
    """
    path = commit_path(commit.head.version)
    if data is None:
        data = encode_commit(commit.actions)
    if not store.put_new(path, data):
        there = store.get(path)
        if there != data and _transaction_id(there) != _transaction_id(data):
            raise DivergedError(foreign_message(name, path))
        data = there
    store.set_modified(path, commit.head.timestamp_ms)
    put_checksum(store, commit)
    return sha256_of(data)


def put_checksum(store: Store, commit: LoggedCommit) -> None:
    """Write the `.crc` of a commit unless it exists."""
    checksum = version_checksum(commit.head, commit.transaction_id)
    # Readers do without one that is cut off.
    store.put_new(checksum_path(commit.head.version), checksum, durable=False)


def foreign_message(name: str, path: str) -> str:
    """Return the message about a foreign commit, with advice."""
    return (
        f"{name}: {path} was written by a writer that bypassed the catalog; it is left "
        "as it is and publishing stops. Adopt it as a version of the table with "
        "mirror.adopt(uri), or move it out of the log, with a copy kept, with "
        "mirror.adopt(uri, discard=True)"
    )


def stores_with(storage_options: Mapping[str, str] | None = None) -> Stores:
    """Return a function that opens the store of a table, once for each location."""
    given = dict(storage_options or {})
    if not any("timeout" in key.lower() for key in given):
        given |= _PATIENCE
    options = tuple(sorted(given.items()))
    return lambda mirror: _open(mirror.location, options, os.getpid())


@lru_cache(maxsize=256)
def _open(location: str, options: tuple[tuple[str, str], ...], pid: int) -> Store:
    return open_store(location, dict(options))


class _LeaseLostError(Exception):
    """Another process has taken the lease."""


class _Publication:
    def __init__(
        self,
        catalog: Catalog,
        outbox: Outbox,
        lease: Lease,
        stores: Stores,
        carried: Mapping[int, LoggedCommit],
    ) -> None:
        self._catalog = catalog
        self._outbox = outbox
        self._lease = lease
        self._stores = stores
        self._carried = carried
        self._published = lease.mirror.published_version
        self._heartbeat = Heartbeat(self._renew, lease.lasts_s)

    def run(self) -> Published:
        mirror = self._lease.mirror
        try:
            if self._published == mirror.ratified_version:
                self._outbox.release(self._lease)
            with self._heartbeat:
                while self._published < mirror.ratified_version:
                    self._publish_some(mirror.ratified_version)
        except _LeaseLostError:
            mirror = self._outbox.load(mirror.name)
            return Published(mirror, mirror.published_version)
        except DivergedError as error:
            self._outbox.mark_diverged(
                mirror, str(error), published=self._published, lease=self._lease
            )
            raise
        except StorageError as error:
            self._fail(error)
            raise
        except BaseException:
            self._outbox.release(self._lease)
            raise
        finally:
            # Should the database not have heard of the lease's end, this process takes
            # the lease back.
            end(mirror.lease_owner)
        return Published(mirror, self._published)

    def _publish_some(self, ratified: int) -> None:
        upto = min(self._published + _TOGETHER, ratified)
        store, name = self._stores(self._lease.mirror), self._lease.mirror.name
        done: dict[int, str] = {}
        try:
            for commit in self._commits(upto):
                self._hold()
                done[commit.head.version] = put_commit(store, name, commit)
        finally:
            if done:
                release = max(done) == ratified
                if not self._outbox.mark_published(self._lease, done, release=release):
                    raise _LeaseLostError
                self._published = max(done)

    def _commits(self, upto: int) -> Iterable[LoggedCommit]:
        """Return the commits up to `upto`, from memory if all of them are there."""
        versions = range(self._published + 1, upto + 1)
        if all(version in self._carried for version in versions):
            return [self._carried[version] for version in versions]
        name, backend = self._lease.mirror.name, self._catalog._backend
        return load_commits(backend, name, self._published, upto)

    def _hold(self) -> None:
        """Renew the lease unless it is fresh; raise `_LeaseLostError` if it is lost."""
        self._heartbeat.progress()
        if not self._lease.fresh and not self._renew():
            raise _LeaseLostError

    def _renew(self) -> bool:
        renewed = self._outbox.renew(self._lease)
        self._lease = renewed or self._lease
        return renewed is not None

    def _fail(self, error: StorageError) -> None:
        attempts = self._lease.mirror.attempts
        if self._published > self._lease.mirror.published_version:
            attempts = 0
        retry = self._catalog.settings.mirror.retry
        wait_s = pause_s(attempts, retry.backoff_initial, retry.backoff_max, jitter=0.5)
        self._outbox.mark_failed(self._lease, str(error), wait_s)


def _is_of(head: Head, mirror: Mirror) -> bool:
    """Return whether the table with the lease is the one that was committed to.

    Since then the table may have moved, or another table may have taken its name.
    """
    return (head.table_id, head.name, head.location, head.metadata.id) == (
        mirror.table_id,
        mirror.name,
        mirror.location,
        mirror.metadata.id,
    )


def _transaction_id(data: bytes) -> str | None:
    try:
        return transaction_id_of(data)
    except CodecError:
        return None
