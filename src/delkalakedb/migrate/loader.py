"""The loader of an import: a log's checkpoint and commits become a staged table."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.engine import CLIENT, Actor
from delkalakedb.catalog.load import (
    Entry,
    StagedTable,
    adds_of,
    base_writes,
    batch_writes,
    history_writes,
    indexed,
    state_rows,
)
from delkalakedb.catalog.read import Head
from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.mirror import decode_entry
from delkalakedb.model.actions import (
    FILELESS,
    NAMES,
    NO_SCHEMA,
    Action,
    Add,
    Metadata,
    Protocol,
    Remove,
    dv_id,
)
from delkalakedb.model.log import FileKey, Replay
from delkalakedb.model.paths import ODD_PATH, check_inside
from delkalakedb.model.rules.protocol import check_adoptable, check_readable
from delkalakedb.storage import ObjectMeta, Store
from delkalakedb.storage.log import LogFiles, Part, Reading, read_checkpoint


@dataclass(frozen=True, slots=True)
class ImportRange:
    """The part of a log that an import reads.

    `first` is the oldest version; `checkpoint` holds the files of its checkpoint, and
    is empty for version 0.
    """

    first: int
    checkpoint: tuple[ObjectMeta, ...] = ()

    @property
    def key(self) -> str:
        """A hash that identifies the first version and its checkpoint."""
        parts = [(m.path, m.size_bytes, m.last_modified_ms) for m in self.checkpoint]
        digest = hashlib.sha256(repr((self.first, parts)).encode())
        return digest.hexdigest()[:16]


def choose_range(log: LogFiles, *, history: bool) -> ImportRange:
    """Return the part of a log to import.

    Args:
        log: the listed log.
        history: begin with the oldest version that the log has without a gap; otherwise
            with its newest checkpoint.
    """
    first = log.latest + 1
    while first - 1 in log.commits:
        first -= 1
    if first == 0 and (history or not log.checkpoints):
        return ImportRange(0)
    usable = [version for version in log.checkpoints if version >= first - 1]
    if not usable:
        missing = "is missing" if first else "can't be read"
        raise DeltaError(f"{log.url}: version {max(first - 1, 0)} {missing}")
    base = min(usable) if history else max(usable)
    return ImportRange(base, log.checkpoints[base])


def read_entries(
    store: Store, commits: Iterable[tuple[int, ObjectMeta]], reading: Reading
) -> Iterator[Entry]:
    """Read commits, and yield them decoded in the order given."""
    commits, listed = tee(commits)
    bodies = reading.commits(store, (meta for _, meta in listed))
    for (version, meta), data in zip(commits, bodies, strict=True):
        yield decode_entry(store.url, version, meta, data)


_FILES = frozenset({"add", "remove"})
# Actions, and commits, written in one transaction.
_TOGETHER = 20_000
_COMMITS_TOGETHER = 5_000


class Loader:
    """Loads a log into a staged table, part by part."""

    def __init__(
        self,
        catalog: Catalog,
        staged: StagedTable,
        store: Store,
        tell: Callable[[Head], None],
        reading: Reading,
        *,
        outside_files: bool = False,
    ) -> None:
        self._staged = staged
        self._store = store
        self._tell = tell
        self._reading = reading
        self._outside_files = outside_files
        self._actor = Actor(catalog._backend.db_user(), None, None, CLIENT)
        self._limit = catalog.settings.stats.indexed_columns
        # The replay of all commits, if the log has no checkpoint and is read from the
        # start.
        self.replay: Replay | None = None

    def load_base(self, source: ImportRange, log: LogFiles) -> None:
        """Load the first version from its checkpoint, unless it is loaded already."""
        head = self._staged.head
        if not source.checkpoint or (head and head.version >= source.first):
            return
        paths = [meta.path for meta in source.checkpoint]
        first = self._first_entry(source.first, log)
        if head is None:
            self._write_state(source, read_checkpoint(self._store, paths, FILELESS))
        said = {_key(a) for a in first.actions if isinstance(a, Add | Remove)}
        parts = self._reading.files(self._store, paths, _FILES, said)
        for part in _remaining(parts, self._head.next_file):
            self._write_files(part)
        self._write([first])

    def load_commits(self, log: LogFiles) -> None:
        """Load the versions that the log has and the staged table lacks."""
        head = self._staged.head
        first = head.version + 1 if head else 0
        if head is None and not log.checkpoints:
            self.replay = Replay()
        commits = ((v, log.commits[v]) for v in range(first, log.latest + 1))
        for entries in _groups(self._read(commits)):
            if self._staged.head is None:
                self._begin(entries[0])
            self._write(entries)

    def check(self) -> None:
        """Raise `ProtocolError` if the newest version can't be read here."""
        head = self._head
        check_adoptable((head.protocol, head.metadata), None, None, head.version)
        if head.metadata.schema_string == NO_SCHEMA:
            raise ProtocolError(
                f"the metaData of the newest version, {head.version}, has no "
                "schemaString; import the table after a commit that adds one"
            )

    def _read(self, commits: Iterable[tuple[int, ObjectMeta]]) -> Iterator[Entry]:
        return read_entries(self._store, commits, self._reading)

    @property
    def _head(self) -> Head:
        assert self._staged.head is not None
        return self._staged.head

    def _first_entry(self, version: int, log: LogFiles) -> Entry:
        """Return the first version's commit, without actions if the file is missing."""
        if version in log.commits:
            return next(self._read([(version, log.commits[version])]))
        return Entry(version, (), log.times_ms()[version], None)

    def _begin(self, entry: Entry) -> None:
        head = self._new_head(entry.version, entry.actions)
        with self._staged.writing() as session:
            self._staged.write(session, head, [])

    def _write_state(self, source: ImportRange, actions: Iterable[Action]) -> None:
        # At the version before, because the first version's own commit is applied next.
        state = list(actions)
        head = self._new_head(source.first, state)
        head = indexed(head, self._limit)
        with self._staged.writing() as session:
            self._staged.write(session, head, state_rows(head, state))

    def _write_files(self, part: Part) -> None:
        self._check_places(_odd_adds(part))
        before = self._head
        write = batch_writes if isinstance(part, pa.RecordBatch) else base_writes
        with self._staged.writing() as session:
            head, writes = write(before, part)
            self._staged.write(session, head, writes)
        # A part with only tombstones is no progress to report.
        if head.num_files > before.num_files:
            self._tell(head)

    def _new_head(self, first: int, actions: Iterable[Action]) -> Head:
        """Return the head before the first version, with the first version's state."""
        found: dict[type, Action] = {type(action): action for action in actions}
        metadata, protocol = found.get(Metadata), found.get(Protocol)
        if not isinstance(metadata, Metadata) or not isinstance(protocol, Protocol):
            raise DeltaError(
                f"{self._store.url}: version {first} has no protocol or no metaData"
            )
        check_readable(protocol)
        return Head(
            table_id=self._staged.table_id,
            name=self._staged.name,
            location=self._store.url,
            created_at_ms=0,
            current_version=first - 1,
            first_version=first,
            next_file=0,
            version=first - 1,
            timestamp_ms=-1,
            num_files=0,
            size_bytes=0,
            metadata_version=first - 1,
            protocol_version=first - 1,
            stat_columns=(),
            metadata=metadata,
            protocol=protocol,
        )

    def _write(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._check_entry(entry)
            if self.replay is not None:
                self.replay.apply(entry.version, entry.actions)
        with self._staged.writing() as session:
            head, writes = history_writes(
                session, self._head, entries, self._actor, self._limit
            )
            self._staged.write(session, head, writes)
        self._tell(head)

    def _check_places(self, actions: Iterable[Action]) -> None:
        location, taken = self._store.url, self._outside_files
        check_inside(actions, location, outside_files=taken)

    def _check_entry(self, entry: Entry) -> None:
        self._check_places(entry.actions)
        state = [a for a in entry.actions if isinstance(a, Protocol | Metadata)]
        for kind, count in Counter(map(type, state)).items():
            if count > 1:
                raise ProtocolError(
                    f"{self._store.url}: version {entry.version} has {count} "
                    f"{NAMES[kind]} actions; a commit can have only one"
                )
        for action in state:
            if isinstance(action, Protocol):
                try:
                    check_readable(action)
                except ProtocolError as error:
                    raise ProtocolError(
                        f"version {entry.version}: {error}. If a later version dropped "
                        "the feature, import from the newest checkpoint with "
                        "history=False"
                    ) from error


def _odd_adds(part: Part) -> Sequence[Action]:
    """Return the actions of a part of a checkpoint whose paths need a check."""
    if not isinstance(part, pa.RecordBatch):
        return part
    odd = pc.match_substring_regex(part["path"], ODD_PATH)
    return adds_of(part.filter(pc.or_(odd, part["deletionVector"].is_valid())))


def _key(action: Add | Remove) -> FileKey:
    return action.path, dv_id(action)


def _remaining(parts: Iterable[Part], done: int) -> Iterator[Part]:
    """Yield the parts without the first `done` rows, which are loaded already."""
    for part in parts:
        rest = part[done:]
        done -= len(part) - len(rest)
        for start in range(0, len(rest), _TOGETHER):
            yield rest[start : start + _TOGETHER]


def _groups(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += len(entry.actions)
        if size >= _TOGETHER or len(group) >= _COMMITS_TOGETHER:
            yield group
            group, size = [], 0
    if group:
        yield group
