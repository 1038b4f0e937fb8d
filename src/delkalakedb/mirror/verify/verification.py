"""Verify: compare the catalog with `_delta_log`, and write nothing.

Both are compared at the published version, which concurrent writers don't change. A
part of the log that can't be read is a difference; a store or a database that can't be
reached is an error.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from itertools import chain, count, islice, takewhile

import pyarrow as pa

from delkalakedb.catalog import Catalog, CatalogOrUri, uri_of, using_catalog
from delkalakedb.catalog.engine import PublishedRow
from delkalakedb.catalog.read import Head, LoggedCommit, load_commits, load_files
from delkalakedb.clock import now_ms
from delkalakedb.errors import CodecError, DeltaError, TableNotFoundError
from delkalakedb.mirror.verify.comparison import (
    UNREADABLE,
    Difference,
    Form,
    Report,
    Reports,
    as_checkpointed,
    as_parsed,
    as_unmeasured,
    as_written,
    broken,
    compare,
)
from delkalakedb.mirror.verify.log_side import (
    CheckpointSide,
    ReplayedSide,
    as_actions,
    sum_log,
    sum_rows,
    summed_schema,
)
from delkalakedb.mirror.verify.side_files import (
    absent_files,
    check_checksum,
    check_last_checkpoint,
)
from delkalakedb.model.actions import (
    Action,
    Metadata,
    Remove,
    Txn,
    known,
    sha256_of,
    transaction_id_of,
)
from delkalakedb.model.log import Replay
from delkalakedb.model.paths import LOG, commit_path
from delkalakedb.model.schema.properties import parse_properties, tombstone_cutoff_ms
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.progress import (
    Progress,
    ProgressOption,
    counted,
    report,
    reporting,
)
from delkalakedb.storage import ObjectMeta, ObjectNotFoundError, Store, open_store
from delkalakedb.storage.log import (
    FileTxnLogReader,
    LogFiles,
    Reading,
    batches,
    list_log,
    read_ahead,
    read_groups,
)

# By version: the transaction id, and the hash of the published file.
_Commits = dict[int, PublishedRow]
_Actions = tuple[Action, ...]
_Entry = tuple[int, bytes | None, bytes | None]
_Entries = Generator[_Entry, None, None]
_HERE = Reading()


def verify(
    uri: CatalogOrUri,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
    *,
    progress: ProgressOption = None,
) -> Report | list[Report]:
    """Compare the mirror of a table, or of every table of a catalog, with the catalog.

    Args:
        uri: the URI of a table; without a table's name, and for a catalog, each table
            of the catalog gets a report.
        deep: compare every version instead of the latest, and look for the data files.
        storage_options: of the tables' object store, as deltalake takes them.
        progress: called with a `Progress` whose unit is a table's versions or files;
            True draws a bar.

    Returns:
        The report on the table, or a report on each table of the catalog.

    Raises:
        TableNotFoundError: The catalog has no such table.
        StorageError: The object store can't be reached.

    Examples:
        >>> report = dk.verify("deltasql://sqlite/meta.db?table=sales", deep=True)
        >>> report.ok, report.versions_checked
        (True, 2)
    """
    name = uri_of(uri).table
    with using_catalog(uri) as catalog, reporting(progress):
        tables = catalog.tables() if name is None else [catalog.table(name)]
        stores = {t.name: open_store(t.location, storage_options) for t in tables}
        reports = Reports(
            verify_table(catalog, *item, deep=deep) for item in stores.items()
        )
    return reports if name is None else reports[0]


def verify_table(
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
        name: the table's name.
        store: the store at the table's location.
        deep: compare every version that both sides have, and look for the data files.
        limit: the number of differences to find before stopping.
        replay: the replay of the log's commits up to the published version, if the
            caller has read them all; ignored if the log has a checkpoint.
        reading: what reads the log.
    """
    published, ratified, _ = catalog._mirror_state(name)
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
        # The replay of the published version, as soon as the log was read.
        self._replay = replay if replay and replay.version == published else None
        self._reading = reading
        self._backend = catalog._backend
        self._name = name
        self._window: dict[int, LoggedCommit] = {}
        self._store = store
        self._published = published
        self._sql = catalog.log(name)
        self._log = FileTxnLogReader(store)
        self._now_ms = now_ms()
        # Whether the log has versions that this replica of the database lacks.
        self._behind = False
        self.versions_checked = 0

    def differences(self, deep: bool) -> Iterator[Difference]:
        """Yield each difference as it is found."""
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
        yield from self._uncommitted(files, commits)
        if self._published >= 0:
            versions = range(first, self._published + 1)
            yield from (self._deep if deep else self._latest)(files, versions, commits)

    def _latest(
        self, files: LogFiles, versions: range, commits: _Commits
    ) -> Iterator[Difference]:
        with closing(self._entries(files, versions)) as entries:
            for version, data, _ in self._counted(entries, versions):
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
        # If all commits and checkpoints agree, one state vouches for every version.
        # Otherwise it would only repeat the differences.
        if not found:
            yield from self._state(files)
        if not self._behind:
            yield from check_last_checkpoint(self._store, self._sql, self._published)
        yield from self._data_files()

    def _history(
        self, files: LogFiles, versions: range, commits: _Commits
    ) -> Iterator[Difference]:
        """Compare the files of each version with SQL; each file is read once."""
        tail = self._start_replay(files)
        first = versions.start if tail is None else tail.version + 1
        read = range(min(first, versions.start), versions.stop)
        with closing(self._entries(files, read)) as entries:
            for version, data, checksum in self._counted(entries, read):
                if version in versions:
                    yield from self._bytes(version, commits, files, data)
                    if checksum is not None:
                        head = self._head(version, files)
                        ours = commits[version].transaction_id
                        yield from check_checksum(checksum, self._sql, head, ours)
                actions = yield from self._decoded(version, data)
                if version in versions and actions is not None:
                    yield from self._actions(version, actions, files)
                tail = _applied(tail, version, actions)
        if tail is not None:
            self._replay = tail

    def _counted(self, entries: _Entries, versions: range) -> Iterator[_Entry]:
        what = f"verify {self._name}"
        return counted(what, entries, len(versions), "versions")

    def _start_replay(self, files: LogFiles) -> Replay | None:
        """Return the log at its newest checkpoint, for later commits to be applied to.

        Return None if the replay is known already, or the checkpoint can't be read.
        """
        if self._replay is None:
            with suppress(*UNREADABLE):
                return self._log.start(files.segment(self._published))
        return None

    def _entries(self, files: LogFiles, versions: range) -> _Entries:
        """Yield the commit and the `.crc` of each version, None for a missing file."""
        asked = chain.from_iterable(_asked(files, version) for version in versions)
        with closing(read_ahead(self._store, asked)) as found:
            for version in versions:
                data, *checksum = [_found(next(found)) for _ in _asked(files, version)]
                yield version, data, checksum[0] if checksum else None

    def _decoded(
        self, version: int, data: bytes | None
    ) -> Generator[Difference, None, _Actions | None]:
        """Return the actions of a commit, None if it is missing or broken."""
        path = commit_path(version)
        try:
            return None if data is None else self._log.decode(path, data)
        except CodecError as error:
            yield broken(version, path, error)
            return None

    def _load_commits(self, head: Head, first: int) -> _Commits:
        # Loaded after the listing, so that the versions of our listed entries are
        # known.
        key = {"table_id": head.table_id, "first": first}
        with self._backend.reading() as session:
            rows = session.rows(PublishedRow, "load_published", key)
        return {row.version: row for row in rows}

    def _uncommitted(self, files: LogFiles, commits: _Commits) -> Iterator[Difference]:
        """Yield the log's files above the published version that aren't ours."""
        newest = max(commits, default=-1)
        end = max((*files.commits, *files.checkpoints), default=-1)
        if end > newest and self._backend.is_replica():
            self._behind, end = True, newest
        found = range(self._published + 1, end + 1)
        for version in sorted(v for v in files.commits if v in found):
            ours = commits.get(version)
            yield from self._foreign(version, ours.transaction_id if ours else None)
        for version in sorted(v for v in files.checkpoints if newest < v <= end):
            path = files.checkpoints[version][0].path
            yield broken(version, path, "the catalog has no such version")

    def _foreign(self, version: int, ours: str | None) -> Iterator[Difference]:
        path = commit_path(version)
        try:
            theirs = transaction_id_of(self._store.get(path))
        except UNREADABLE as error:
            yield broken(version, path, error)
            return
        if ours is None or ours != theirs:
            why = "ratified another commit" if ours else "has no such version"
            who = "a writer that bypassed the catalog"
            message = f"{path} was written by {who}: the catalog {why}"
            yield Difference(version, path, "commitInfo: txnId", ours, theirs, message)

    def _bytes(
        self, version: int, commits: _Commits, files: LogFiles, data: bytes | None
    ) -> Iterator[Difference]:
        """Compare a commit's file with the hash of the published one."""
        self.versions_checked += 1
        path, ours = commit_path(version), commits[version].sha256
        if data is None:
            # A version imported from its checkpoint alone never had a commit file.
            if ours is not None or version not in files.checkpoints:
                yield broken(version, path, "it is missing")
            return
        theirs = sha256_of(data)
        # Without a hash, another writer published it.
        if ours is not None and ours != theirs:
            message = f"{path} was changed since it was published"
            yield Difference(version, path, "sha256", ours, theirs, message)

    def _actions(
        self, version: int, actions: _Actions, files: LogFiles
    ) -> Iterator[Difference]:
        """Compare the actions of a commit's file with those in the catalog."""
        ours, theirs = lambda: self._committed(version, files).actions, lambda: actions
        return compare(version, commit_path(version), ours, theirs, as_written)

    def _head(self, version: int, files: LogFiles) -> Head:
        if version in files.commits:
            return self._committed(version, files).head
        return self._sql.head(version)

    def _committed(self, version: int, files: LogFiles) -> LoggedCommit:
        """Return a commit of the catalog, loaded together with commits that follow it.

        As many are loaded as are read from the log at a time, because a query for each
        commit takes longer than reading its file.
        """
        if version not in self._window:
            following = takewhile(files.commits.__contains__, count(version))
            some = next(batches(files.commits[v] for v in following), [])
            upto = min(version + max(len(some), 1) - 1, self._published)
            found = load_commits(self._backend, self._name, version - 1, upto)
            self._window = {commit.head.version: commit for commit in found}
        return self._window[version]

    def _state(self, files: LogFiles) -> Iterator[Difference]:
        """Compare the published version, as the log replays to it, with the catalog."""
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
        """Compare each checkpoint with the catalog's state at its version."""
        found = sorted(v for v in files.checkpoints if v in versions)
        parts = [files.checkpoints[version] for version in found]
        with closing(read_groups(self._store, parts)) as stores:
            for version, store, group in zip(found, stores, parts, strict=True):
                paths = [part.path for part in group]
                log = CheckpointSide(store, paths, self._reading)
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
        ours = sum_rows(self._files(version, schema))
        # A part that can't be read is reported by the comparison below.
        with suppress(*UNREADABLE):
            if sum_log(log.files(), schema) == ours:
                return
        files = lambda: self._sql.adds(version), lambda: as_actions(log.files())
        yield from compare(version, where, *files, form)

    def _files(self, version: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the live files of a version, and report how many were compared."""
        head, done = self._sql.head(version), 0
        for batch in load_files(self._backend, head, schema):
            yield batch
            done += batch.num_rows
            what, total = f"verify {self._name}", head.num_files
            report(Progress(what=what, done=done, total=total, unit="files"))

    def _kept(self, version: int) -> Form:
        """Return the form of the actions that a version's checkpoint keeps."""
        metadata = self._sql.head(version).metadata
        properties = parse_properties(metadata)
        if properties.checkpoint_write_stats_as_json:
            return as_checkpointed
        if properties.checkpoint_write_stats_as_struct:
            return as_parsed(parse_schema(metadata.schema_string))
        return as_unmeasured

    def _others_of(self, version: int) -> Iterator[Action]:
        """Yield all actions of a version but its live files."""
        state = self._sql.state(version)
        yield from (state.protocol, state.metadata)
        yield from self._sql.txns(version).values()
        yield from self._sql.domains(version).values()
        yield from self._sql.removes(version)

    def _unexpired(self, metadata: Metadata) -> Callable[[Action], bool]:
        """Return a test for actions that a checkpoint must keep: not expired."""
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
        """Look for the live files in the store, and compare their sizes."""
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
    """Return the oldest version whose commit both sides have."""
    return max(head.first_version, min([*files.commits, published]))


def _asked(files: LogFiles, version: int) -> Iterator[ObjectMeta]:
    """Yield the commit of a version, listed or not, and its `.crc` if it is listed."""
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
    """Return the replay with one more commit, None if a commit can't be read."""
    if tail is None or version <= tail.version:
        return tail
    if actions is None:
        return None
    tail.apply(version, actions)
    return tail


def _gap(files: LogFiles) -> Iterator[Difference]:
    """Yield a difference if the log begins neither at version 0 nor at a checkpoint."""
    first = min(files.commits, default=0)
    if first and files.checkpoints.keys().isdisjoint({first - 1, first}):
        yield broken(first - 1, commit_path(first - 1), "it is missing")
