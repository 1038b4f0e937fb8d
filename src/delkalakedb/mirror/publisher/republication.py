"""Republish: write log entries again that a store has lost, from the catalog.

What was published is in SQL, and encodes to the same bytes; the hash that was kept of
each entry tells whether it does. A file that is there is never replaced. Killed at any
point, the next call does what is left.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import pyarrow.parquet as pq

from delkalakedb.catalog import Catalog, CatalogOrUri, using_table
from delkalakedb.catalog.commit import Lease, Mirror, Outbox
from delkalakedb.catalog.engine import PublishedRow
from delkalakedb.catalog.load import hold_mirror
from delkalakedb.catalog.read import Head, LoggedCommit, load_commits
from delkalakedb.clock import now_ms
from delkalakedb.errors import (
    DeltaError,
    DivergedError,
    MirrorError,
    TableNotFoundError,
    VersionNotFoundError,
)
from delkalakedb.mirror.checkpoint import (
    Checkpoint,
    read_last_checkpoint,
    write_checkpoint,
    write_last_checkpoint,
)
from delkalakedb.mirror.publisher.publication import put_checksum, put_commit
from delkalakedb.model.actions import encode_commit, sha256_of
from delkalakedb.model.paths import LAST_CHECKPOINT, commit_path
from delkalakedb.model.schema.properties import log_cutoff_ms, parse_properties
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.log import LogFiles, find_checkpoint, list_log, read_sidecars
from delkalakedb.telemetry import log_event

_log = logging.getLogger("delkalakedb.mirror")
# Versions that are loaded from the catalog together.
_TOGETHER = 32
_Hashes = Mapping[int, str | None]


@dataclass(frozen=True, slots=True)
class Republished:
    """What was written again of a table's log.

    Args:
        table: the table's name.
        versions: the versions whose entries were lost.
        rewritten: those of them whose entries have the same actions as the lost ones,
            but not the same bytes.
        checkpoints: the versions whose checkpoints were lost.
        last_checkpoint: the version that `_last_checkpoint` names, if it was lost.

    Examples:
        >>> done = dk.mirror.republish("deltasql://sqlite/meta.db?table=sales")
        >>> done.versions, done.checkpoints
        ((), ())
    """

    table: str
    versions: tuple[int, ...] = ()
    rewritten: tuple[int, ...] = ()
    checkpoints: tuple[int, ...] = ()
    last_checkpoint: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values.

        Returns:
            The values by field.

        Examples:
            >>> done = dk.mirror.republish("deltasql://sqlite/meta.db?table=sales")
            >>> done.to_dict()["versions"]
            []
        """
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


def republish(
    uri: CatalogOrUri,
    from_version: int | None = None,
    *,
    table: str | None = None,
    rewrite: bool = False,
    storage_options: Mapping[str, str] | None = None,
    store: Store | None = None,
) -> Republished:
    """Write the log entries that the table's store has lost.

    Args:
        uri: the URI of a table, or a catalog.
        from_version: the oldest version to look at; by default the oldest one that the
            log has, or that the table's log retention promises.
        table: the table's name, if the URI has none.
        rewrite: also write entries of other writers, of which the catalog has the
            actions, but not the exact bytes.
        storage_options: of the table's object store, as deltalake takes them.
        store: the store at the table's location, if it is open already.

    Returns:
        The versions whose entries and checkpoints were written again.

    Raises:
        TableNotFoundError: The catalog has no such table.
        ReadOnlyError: The table is followed, or was moved to another catalog.
        MirrorError: An entry can't be restored byte for byte, and `rewrite` isn't set.
        VersionNotFoundError: The catalog has no published version as old as
            `from_version`.
        DivergedError: The log has a commit that the catalog didn't ratify.

    Examples:
        >>> from pathlib import Path
        >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
        >>> (lost,) = Path().rglob("*1.json")
        >>> lost.unlink()
        >>> dk.mirror.republish(table.catalog_uri).versions
        (1,)
    """
    with using_table(uri, table) as (catalog, name):
        store = store or open_store(catalog.table(name).location, storage_options)
        catalog.log(name).head().check_ours()
        with hold_mirror(catalog, name) as lease:
            return _Republication(catalog, lease, store, rewrite).run(from_version)


def find_loss(catalog: Catalog, mirror: Mirror, store: Store) -> str | None:
    """Return what a store has lost of a table's newest entry and newest checkpoint.

    This takes two requests; `verify` finds other losses.
    """
    published, checkpoint = mirror.published_version, mirror.checkpoint_version
    if mirror.hold is not None or published < 0:
        return None
    path = commit_path(published)
    if not store.exists(path) and _load_hashes(catalog, mirror, published)[published]:
        return f"{path} is gone"
    if checkpoint >= 0 and not find_checkpoint(store, checkpoint):
        return f"the checkpoint of version {checkpoint} is gone"
    return None


class _Republication:
    def __init__(
        self, catalog: Catalog, lease: Lease, store: Store, rewrite: bool
    ) -> None:
        self._catalog = catalog
        self._lease = lease
        self._mirror = lease.mirror
        self._store = store
        self._rewrite = rewrite
        self._head: Head = catalog.log(self._mirror.name).head()
        self._now_ms = now_ms()
        self._rewritten: list[int] = []

    def run(self, from_version: int | None) -> Republished:
        name, published = self._mirror.name, self._mirror.published_version
        if published < 0:
            return Republished(name)
        log = self._listed()
        first = self._first(log, from_version)
        hashes = _load_hashes(self._catalog, self._mirror, first)
        lost = [
            version
            for version in range(first, published + 1)
            # One that was imported from its checkpoint alone never had an entry.
            if version not in log.commits and hashes.get(version) is not None
        ]
        self._check_followed(lost, log, hashes)
        for commit in self._commits(lost):
            self._put(commit, hashes)
        made = self._make_checkpoints(first)
        hint = self._point(made)
        checkpoints = tuple(sorted(made))
        done = Republished(name, tuple(lost), tuple(self._rewritten), checkpoints, hint)
        _tell(done)
        return done

    def _listed(self) -> LogFiles:
        try:
            return list_log(self._store)
        except TableNotFoundError:
            return LogFiles(self._store.url)

    def _first(self, log: LogFiles, asked: int | None) -> int:
        oldest, newest = self._head.first_version, self._mirror.published_version
        if asked is None:
            there = [v for v in (*log.commits, *log.checkpoints) if v <= newest]
            return max(oldest, min([*there, self._promised()]))
        if not oldest <= asked <= newest:
            raise VersionNotFoundError(
                f"{self._mirror.name}: version {asked} can't be republished: the "
                f"catalog has versions {oldest} to {newest} that were published"
            )
        return asked

    def _promised(self) -> int:
        """Return the oldest version that the table's log retention keeps in the log."""
        properties = parse_properties(self._head.metadata)
        cutoff_ms = log_cutoff_ms(properties, self._now_ms)
        if cutoff_ms is None:
            return self._head.first_version
        try:
            version = self._catalog.log(self._mirror.name).version_at(cutoff_ms)
        except VersionNotFoundError:
            return self._head.first_version
        return min(version, self._mirror.published_version)

    def _check_followed(self, lost: list[int], log: LogFiles, hashes: _Hashes) -> None:
        """Raise `DivergedError` if an entry before a lost one isn't the published one.

        A writer that bypasses the catalog takes the version of the first lost entry.
        """
        for version in {v - 1 for v in lost} & log.commits.keys():
            kept, path = hashes.get(version), commit_path(version)
            if kept is not None and sha256_of(self._store.get(path)) != kept:
                raise DivergedError(_foreign_message(self._mirror.name, path))

    def _commits(self, lost: list[int]) -> Iterator[LoggedCommit]:
        for _, run in groupby(enumerate(lost), lambda item: item[1] - item[0]):
            versions = [version for _, version in run]
            for start in range(0, len(versions), _TOGETHER):
                some = versions[start : start + _TOGETHER]
                bounds = (some[0] - 1, some[-1])
                name = self._mirror.name
                yield from load_commits(self._catalog._backend, name, *bounds)

    def _put(self, commit: LoggedCommit, hashes: _Hashes) -> None:
        version, name = commit.head.version, self._mirror.name
        data = encode_commit(commit.actions)
        # Some writers end no line after the last action.
        forms = {sha256_of(form): form for form in (data, data.removesuffix(b"\n"))}
        if (restored := forms.get(hashes[version] or "")) is None:
            self._begin_rewrite(version, data)
            restored = data
        # First: once the entry is there, no run looks for its checksum.
        put_checksum(self._store, commit)
        try:
            put_commit(self._store, name, commit, restored)
        except DivergedError as error:
            message = _foreign_message(name, commit_path(version))
            raise DivergedError(message) from error

    def _begin_rewrite(self, version: int, data: bytes) -> None:
        name = self._mirror.name
        if not self._rewrite:
            raise MirrorError(
                f"{name}: the entry of version {version} can't be restored byte for "
                "byte: another writer, or another version of this package, made it. To "
                "write one with the same actions in its place, republish with rewrite "
                f"(deltasql mirror republish {name} --rewrite)"
            )
        # First: killed before the entry is there, this is done again.
        Outbox(self._catalog._backend).mark_hash(self._lease, version, sha256_of(data))
        self._rewritten.append(version)

    def _make_checkpoints(self, first: int) -> dict[int, Checkpoint]:
        """Make the newest checkpoint if it is lost, and one where the log begins.

        Readers need a first checkpoint for the state before the log's first entry.
        """
        log, name = list_log(self._store), self._mirror.name
        wanted = []
        newest = self._mirror.checkpoint_version
        if newest >= self._head.first_version and newest not in log.checkpoints:
            wanted.append(newest)
        try:
            log.segment(first)
        except DeltaError:
            wanted.append(first)
        return {
            version: write_checkpoint(
                self._catalog, name, version, self._store, self._now_ms
            )
            for version in sorted({*wanted})
        }

    def _point(self, made: Mapping[int, Checkpoint]) -> int | None:
        """Make `_last_checkpoint` name an existing checkpoint; return its version."""
        checkpoints = list_log(self._store).checkpoints
        known = [v for v in checkpoints if v <= self._mirror.published_version]
        there = read_last_checkpoint(self._store)
        if not known or there in checkpoints:
            return None
        newest = max(known)
        checkpoint = made.get(newest) or self._described(newest, checkpoints[newest])
        if checkpoint is None:
            return None
        self._store.delete(LAST_CHECKPOINT)
        write_last_checkpoint(self._store, checkpoint)
        return newest

    def _described(self, version: int, parts: tuple[Any, ...]) -> Checkpoint | None:
        """Return an existing checkpoint; None for a form that isn't written here."""
        main, *more = parts
        if more or not main.path.endswith(".parquet"):
            return None
        sidecars = tuple(read_sidecars(self._store, main.path))
        found = [(main.path, main.size_bytes)]
        for path in sidecars:
            meta = self._store.head(path)
            found.append((path, meta.size_bytes if meta else 0))
        opened = (pq.ParquetFile(self._store.open(path)) for path, _ in found)
        return Checkpoint(
            version=version,
            path=main.path,
            sidecars=sidecars,
            size=sum(file.metadata.num_rows for file in opened),
            num_adds=self._catalog.log(self._mirror.name).head(version).num_files,
            size_bytes=sum(size_bytes for _, size_bytes in found),
        )


def _load_hashes(catalog: Catalog, mirror: Mirror, first: int) -> dict[int, str | None]:
    key = {"table_id": mirror.table_id, "first": first}
    with catalog._backend.reading() as session:
        rows = session.rows(PublishedRow, "load_published", key)
    return {row.version: row.sha256 for row in rows}


def _foreign_message(name: str, path: str) -> str:
    return (
        f"{name}: {path} isn't the entry that was published: a writer that bypassed "
        "the catalog wrote it after the log had lost that version. It is left as it "
        "is, and no later version is republished. Move it out of the log and republish "
        "again; its rows can be written again through the catalog"
    )


def _tell(done: Republished) -> None:
    if done == Republished(done.table):
        return
    message = (
        f"{done.table}: republished {len(done.versions)} versions and "
        f"{len(done.checkpoints)} checkpoints that were lost"
    )
    log_event(_log, logging.WARNING, message, event="republished", table=done.table)
