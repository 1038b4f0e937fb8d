"""Verify: the catalog and `_delta_log` say the same. Nothing is written.

The comparison is made at the published version: SQL's versions never change, so that a
writer who goes on meanwhile disturbs nothing. What can't be read of the log is a
difference; a store or a database that can't be reached stays an error.
"""

import hashlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from itertools import chain, count, islice, takewhile

from delkalakedb.catalog import Catalog, connect
from delkalakedb.catalog.commits import Ratified, load_commits
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.reader import load_files
from delkalakedb.errors import CodecError, DeltaError, TableNotFoundError
from delkalakedb.mirror.compare import UNREADABLE, broken, compare
from delkalakedb.mirror.datafiles import absent_files
from delkalakedb.mirror.filesums import as_actions, sum_log, sum_rows, summed_schema
from delkalakedb.mirror.forms import (
    Form,
    as_checkpointed,
    as_parsed,
    as_unmeasured,
    as_written,
)
from delkalakedb.mirror.logside import CheckpointSide, ReplayedSide
from delkalakedb.mirror.report import Difference, Report
from delkalakedb.mirror.sidefiles import check_checksum, check_last_checkpoint
from delkalakedb.model.actions import Action, CommitInfo, Metadata, Remove, Txn, known
from delkalakedb.model.codec import decode_commit
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.replay import Replay
from delkalakedb.model.retention import tombstone_cutoff_ms
from delkalakedb.model.schema import parse_schema
from delkalakedb.storage import (
    FileTxnLogReader,
    ObjectMeta,
    ObjectNotFoundError,
    Store,
    open_store,
)
from delkalakedb.storage.reading import Reading, batches, read_ahead
from delkalakedb.storage.segment import LOG, LogFiles, commit_path, list_log
from delkalakedb.uri import Uri, parse_uri

__all__ = ["Difference", "Report", "verify", "verify_uri"]

# By version: the transaction that ratified it, and the hash of what was published.
_Commits = dict[int, tuple[str, str | None]]
_Actions = tuple[Action, ...]
_Entries = Generator[tuple[int, bytes | None, bytes | None], None, None]
_HERE = Reading()


def verify_uri(
    uri: str | Uri,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Report | list[Report]:
    """Compare a table's mirror with the catalog, or those of all its tables.

    Args:
        uri: a table; a URI without one gives a report for each table of the catalog.
        deep: every version instead of the latest, and the data files.
        storage_options: of the tables' object store, as deltalake takes them.
    """
    parsed = parse_uri(uri) if isinstance(uri, str) else uri

    def check(name: str) -> Report:
        store = open_store(catalog.table(name).location, storage_options)
        return verify(catalog, name, store, deep=deep)

    with connect(parsed) as catalog:
        if parsed.table is not None:
            return check(parsed.table)
        return [check(table.name) for table in catalog.tables()]


def verify(
    catalog: Catalog,
    name: str,
    store: Store,
    *,
    deep: bool = False,
    limit: int = 10,
    replay: Replay | None = None,
    reading: Reading = _HERE,
) -> Report:
    """Compare a table's mirror with the catalog, at the published version.

    Args:
        catalog: the catalog.
        name: the table.
        store: the store at the table's location.
        deep: every version that both sides hold, and the data files.
        limit: how many differences to name before stopping.
        replay: what the log's commits up to the published version came to, if
            somebody has just read them all. It counts where the log has no checkpoint.
        reading: who reads the log.
    """
    published, ratified, _ = catalog.mirror_state(name)
    check = _Verification(catalog, name, store, published, replay, reading)
    found = list(islice(check.differences(deep), limit + 1))
    return Report(
        table=name,
        ratified_version=ratified,
        published_version=published,
        versions_checked=check.versions_checked,
        differences=tuple(found[:limit]),
        complete=len(found) <= limit,
    )


class _Verification:
    """One comparison, at the version that was published when it began."""

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        store: Store,
        published: int,
        replay: Replay | None,
        reading: Reading,
    ) -> None:
        # The published version as the log replays to it, once the log was read.
        self._replay = replay if replay and replay.version == published else None
        self._reading = reading
        self._backend = catalog.backend
        self._name = name
        self._window: dict[int, Ratified] = {}
        self._store = store
        self._published = published
        self._sql = catalog.log(name)
        self._log = FileTxnLogReader(store)
        self._now_ms = time.time_ns() // 1_000_000
        # Whether the log has versions that this replica hasn't heard of.
        self._behind = False
        self.versions_checked = 0

    def differences(self, deep: bool) -> Iterator[Difference]:
        """Each difference as it is found."""
        try:
            files = list_log(self._store)
        except TableNotFoundError:
            if self._published >= 0:
                yield broken(self._published, LOG, "there is no Delta log")
            return
        if files.checkpoints:
            self._replay = None
        head = self._sql.head()
        first = _first(files, head, self._published) if deep else self._published
        commits = self._load_commits(head, first)
        yield from self._unratified(files, commits)
        if self._published >= 0:
            versions = range(first, self._published + 1)
            yield from (self._deep if deep else self._latest)(files, versions, commits)

    def _latest(
        self, files: LogFiles, versions: range, commits: _Commits
    ) -> Iterator[Difference]:
        with closing(self._entries(files, versions)) as entries:
            for version, data, _ in entries:
                yield from self._bytes(version, commits, files, data)
        if self._published in files.commits or self._published in files.checkpoints:
            yield from self._state(files)

    def _deep(
        self, files: LogFiles, versions: range, commits: _Commits
    ) -> Iterator[Difference]:
        found = False
        for difference in chain(
            _gap(files),
            self._history(files, versions, commits),
            self._checkpoints(files, versions),
        ):
            found = True
            yield difference
        # Where all commits and checkpoints agree, one state vouches for every version;
        # where they don't, it would only say so again.
        if not found:
            yield from self._state(files)
        if not self._behind:
            yield from check_last_checkpoint(self._store, self._sql, self._published)
        yield from self._data_files()

    def _history(
        self, files: LogFiles, versions: range, commits: _Commits
    ) -> Iterator[Difference]:
        """Whether each version's files are as SQL has it; each file is read once."""
        tail = self._start_replay(files)
        first = versions.start if tail is None else tail.version + 1
        read = range(min(first, versions.start), versions.stop)
        with closing(self._entries(files, read)) as entries:
            for version, data, checksum in entries:
                if version in versions:
                    yield from self._bytes(version, commits, files, data)
                    if checksum is not None:
                        head, ours = self._head(version, files), commits[version][0]
                        yield from check_checksum(checksum, self._sql, head, ours)
                actions = yield from self._decoded(version, data)
                if version in versions and actions is not None:
                    yield from self._actions(version, actions, files)
                tail = _applied(tail, version, actions)
        if tail is not None:
            self._replay = tail

    def _start_replay(self, files: LogFiles) -> Replay | None:
        """The log at its newest checkpoint, for the commits after it to be applied.

        None where it is known already what the log replays to, or it can't be read.
        """
        if self._replay is None:
            with suppress(*UNREADABLE):
                return self._log.start(files.segment(self._published))
        return None

    def _entries(self, files: LogFiles, versions: range) -> _Entries:
        """The commit and the `.crc` of each version, None where there is none."""
        asked = chain.from_iterable(_asked(files, version) for version in versions)
        with closing(read_ahead(self._store, asked)) as found:
            for version in versions:
                data, *checksum = [_found(next(found)) for _ in _asked(files, version)]
                yield version, data, checksum[0] if checksum else None

    def _decoded(
        self, version: int, data: bytes | None
    ) -> Generator[Difference, None, _Actions | None]:
        """The actions of a commit; None where there are none to be had."""
        path = commit_path(version)
        try:
            return None if data is None else self._log.decode(path, data)
        except CodecError as error:
            yield broken(version, path, error)
            return None

    def _load_commits(self, head: Head, first: int) -> _Commits:
        # Asked after the listing: what was listed is ratified by now if it ever was.
        key = {"table_id": head.table_id, "first": first}
        with self._backend.reading() as session:
            rows = session.query("load_published", key)
        return {version: (transaction, sha256) for version, transaction, sha256 in rows}

    def _unratified(self, files: LogFiles, commits: _Commits) -> Iterator[Difference]:
        """What is in the log above the published version and isn't ours."""
        newest = max(commits, default=-1)
        end = max((*files.commits, *files.checkpoints), default=-1)
        if end > newest and self._backend.is_replica():
            self._behind, end = True, newest
        found = range(self._published + 1, end + 1)
        for version in sorted(v for v in files.commits if v in found):
            yield from self._foreign(version, commits.get(version, (None, None))[0])
        for version in sorted(v for v in files.checkpoints if newest < v <= end):
            path = files.checkpoints[version][0].path
            yield broken(version, path, "the catalog has no such version")

    def _foreign(self, version: int, ours: str | None) -> Iterator[Difference]:
        path = commit_path(version)
        try:
            theirs = _transaction_id(self._store.get(path))
        except UNREADABLE as error:
            yield broken(version, path, error)
            return
        if ours is None or ours != theirs:
            why = "ratified another commit" if ours else "has no such version"
            message = f"{path} was written by someone else: the catalog {why}"
            yield Difference(version, path, "commitInfo: txnId", ours, theirs, message)

    def _bytes(
        self, version: int, commits: _Commits, files: LogFiles, data: bytes | None
    ) -> Iterator[Difference]:
        """Whether a commit's file is there, as it was published."""
        self.versions_checked += 1
        path, (_, ours) = commit_path(version), commits[version]
        if data is None:
            # One that was imported from its checkpoint alone never had a commit.
            if ours is not None or version not in files.checkpoints:
                yield broken(version, path, "it is missing")
            return
        theirs = hashlib.sha256(data).hexdigest()
        # Without a hash, it wasn't us who published it.
        if ours is not None and ours != theirs:
            message = f"{path} was changed since it was published"
            yield Difference(version, path, "sha256", ours, theirs, message)

    def _actions(
        self, version: int, actions: _Actions, files: LogFiles
    ) -> Iterator[Difference]:
        """Whether a commit says what the catalog says."""
        ours, theirs = lambda: self._ratified(version, files).actions, lambda: actions
        return compare(version, commit_path(version), ours, theirs, as_written)

    def _head(self, version: int, files: LogFiles) -> Head:
        if version in files.commits:
            return self._ratified(version, files).head
        return self._sql.head(version)

    def _ratified(self, version: int, files: LogFiles) -> Ratified:
        """A commit of the catalog, loaded with those that follow it in the log.

        So many as are read in one go: a query for each takes longer than its file.
        """
        if version not in self._window:
            following = takewhile(files.commits.__contains__, count(version))
            some = next(batches(files.commits[v] for v in following), [])
            upto = min(version + max(len(some), 1) - 1, self._published)
            found = load_commits(self._backend, self._name, version - 1, upto)
            self._window = {commit.head.version: commit for commit in found}
        return self._window[version]

    def _state(self, files: LogFiles) -> Iterator[Difference]:
        """Whether the log replays to what the catalog says."""
        version = self._published
        try:
            given = (self._reading, self._replay)
            log = ReplayedSide(self._store, files, version, *given)
        except DeltaError as error:
            yield broken(version, LOG, error)
            return
        form = as_written if log.base < 0 else self._kept(log.base)
        yield from self._compared(version, LOG, log, form)

    def _checkpoints(self, files: LogFiles, versions: range) -> Iterator[Difference]:
        """Whether each checkpoint holds the state of its version."""
        for version in sorted(v for v in files.checkpoints if v in versions):
            paths = [part.path for part in files.checkpoints[version]]
            log = CheckpointSide(self._store, paths, self._reading)
            yield from self._compared(version, paths[0], log, self._kept(version))

    def _compared(
        self,
        version: int,
        where: str,
        log: ReplayedSide | CheckpointSide,
        form: Form,
    ) -> Iterator[Difference]:
        unexpired = self._unexpired(self._sql.head(version).metadata)
        others = (
            lambda: filter(unexpired, self._others_of(version)),
            lambda: filter(unexpired, log.others()),
        )
        yield from compare(version, where, *others, form)
        schema = summed_schema(checkpointed=form is not as_written)
        ours = sum_rows(load_files(self._backend, self._sql.head(version), schema))
        # What can't be read is told by who looks closer.
        with suppress(*UNREADABLE):
            if sum_log(log.files(), schema) == ours:
                return
        files = lambda: self._sql.adds(version), lambda: as_actions(log.files())
        yield from compare(version, where, *files, form)

    def _kept(self, version: int) -> Form:
        """The form of what a version's checkpoint keeps."""
        metadata = self._sql.head(version).metadata
        properties = parse_properties(metadata)
        if properties.checkpoint_write_stats_as_json:
            return as_checkpointed
        if properties.checkpoint_write_stats_as_struct:
            return as_parsed(parse_schema(metadata.schema_string))
        return as_unmeasured

    def _others_of(self, version: int) -> Iterator[Action]:
        """All of a version but live files."""
        state = self._sql.state(version)
        yield from (state.protocol, state.metadata)
        yield from self._sql.txns(version).values()
        yield from self._sql.domains(version).values()
        yield from self._sql.removes(version)

    def _unexpired(self, metadata: Metadata) -> Callable[[Action], bool]:
        """What a checkpoint must keep: all but tombstones and txns old enough."""
        properties = parse_properties(metadata)
        removed_ms = tombstone_cutoff_ms(properties, self._now_ms)
        updated_ms = None
        if (retention_ms := properties.set_transaction_retention_ms) is not None:
            updated_ms = self._now_ms - retention_ms

        def unexpired(action: Action) -> bool:
            if isinstance(action, Remove):
                return (known(action.deletion_timestamp) or 0) > removed_ms
            if isinstance(action, Txn) and updated_ms is not None:
                return (known(action.last_updated) or updated_ms) > updated_ms
            return True

        return unexpired

    def _data_files(self) -> Iterator[Difference]:
        """Whether the live files are there, in their sizes."""
        version = self._published
        for path, size in absent_files(lambda: self._sql.adds(version), self._store):
            meta = self._store.head(path)
            found = None if meta is None else f"{meta.size_bytes} bytes"
            wanted = None if size is None else f"{size} bytes"
            message = f"{path} has {found}, in SQL {wanted}"
            if found is None:
                message = f"{path} is live but isn't in the store"
            yield Difference(version, path, None, wanted, found, message)


def _first(files: LogFiles, head: Head, published: int) -> int:
    """The oldest version whose commit both sides hold."""
    return max(head.first_version, min([*files.commits, published]))


def _asked(files: LogFiles, version: int) -> Iterator[ObjectMeta]:
    """The commit of a version, listed or not, and the `.crc` that is listed."""
    yield files.commits.get(version) or ObjectMeta(commit_path(version), 0, 0)
    if version in files.checksums:
        yield files.checksums[version]


def _found(read: Future[bytes]) -> bytes | None:
    with suppress(ObjectNotFoundError):
        return read.result()
    return None


def _applied(
    tail: Replay | None, version: int, actions: _Actions | None
) -> Replay | None:
    """The replay with one more commit; None once one of them can't be read."""
    if tail is None or version <= tail.version:
        return tail
    if actions is None:
        return None
    tail.apply(version, actions)
    return tail


def _gap(files: LogFiles) -> Iterator[Difference]:
    """A log that begins neither at version 0 nor at a checkpoint."""
    first = min(files.commits, default=0)
    if first and files.checkpoints.keys().isdisjoint({first - 1, first}):
        yield broken(first - 1, commit_path(first - 1), "it is missing")


def _transaction_id(data: bytes) -> str | None:
    info = next(decode_commit(data), None)
    return info.fields.get("txnId") if isinstance(info, CommitInfo) else None
