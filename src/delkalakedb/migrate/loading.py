"""Load: a log's state and its commits go into a staged table, part by part.

Each part is one transaction. Killed between two of them, the next one goes on from the
head that the last left: within a checkpoint by counting its rows, after it by version.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.adopt import Entry, indexed
from delkalakedb.catalog.base import adds_of, batch_writes
from delkalakedb.catalog.commit import Actor
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.history import base_writes, history_writes, state_rows
from delkalakedb.catalog.ratify import CLIENT
from delkalakedb.catalog.staging import StagedTable
from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.migrate.source import Source, read_entries
from delkalakedb.model.actions import (
    NO_SCHEMA,
    Action,
    Add,
    Metadata,
    Protocol,
    Remove,
    dv_id,
)
from delkalakedb.model.paths import ODD_PATH, check_inside
from delkalakedb.model.protocol import check_adoptable, check_readable
from delkalakedb.model.replay import FileKey, Replay
from delkalakedb.storage import ObjectMeta, Store
from delkalakedb.storage.checkpoint import read_checkpoint
from delkalakedb.storage.columns import Part
from delkalakedb.storage.reading import Reading
from delkalakedb.storage.segment import LogFiles

__all__ = ["Loader"]

_FILELESS = frozenset({"protocol", "metaData", "txn", "domainMetadata"})
_FILES = frozenset({"add", "remove"})
# Actions, or commits, that are written in one transaction.
_TOGETHER = 20_000
_COMMITS_TOGETHER = 5_000


class Loader:
    """Brings a staged table forward."""

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
        self._actor = Actor(catalog.backend.db_user(), None, None, CLIENT)
        self._limit = catalog.settings.stats.indexed_columns
        # What the commits come to, where they are all there is and all read here.
        self.replay: Replay | None = None

    def load_base(self, source: Source, log: LogFiles) -> None:
        """The first version, from its checkpoint, unless it is there."""
        head = self._staged.head
        if not source.checkpoint or (head and head.version >= source.first):
            return
        paths = [meta.path for meta in source.checkpoint]
        first = self._first_entry(source.first, log)
        if head is None:
            self._write_state(source, read_checkpoint(self._store, paths, _FILELESS))
        said = {_key(a) for a in first.actions if isinstance(a, Add | Remove)}
        parts = self._reading.files(self._store, paths, _FILES, said)
        for part in _remaining(parts, self._head.next_file):
            self._write_files(part)
        self._write([first])

    def load_commits(self, log: LogFiles) -> None:
        """The versions that the log has and the table hasn't."""
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
        """Refuse a table that can't be read here, and say why."""
        head = self._head
        check_adoptable((head.protocol, head.metadata), None, None, head.version)
        if head.metadata.schema_string == NO_SCHEMA:
            raise ProtocolError(
                f"the metaData of its newest version, {head.version}, has no "
                "schemaString; import it when a later commit has brought one"
            )

    def _read(self, commits: Iterable[tuple[int, ObjectMeta]]) -> Iterator[Entry]:
        return read_entries(self._store, commits, self._reading)

    @property
    def _head(self) -> Head:
        assert self._staged.head is not None
        return self._staged.head

    def _first_entry(self, version: int, log: LogFiles) -> Entry:
        """The commit of the first version; one without actions where it is gone."""
        if version in log.commits:
            return next(self._read([(version, log.commits[version])]))
        return Entry(version, (), log.times_ms()[version], None)

    def _begin(self, entry: Entry) -> None:
        head = self._new_head(entry.version, entry.actions)
        with self._staged.writing() as session:
            self._staged.write(session, head, [])

    def _write_state(self, source: Source, actions: Iterable[Action]) -> None:
        # As of the version before: the first one's own commit comes on top of it.
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
        # Of tombstones alone there is nothing to see.
        if head.num_files > before.num_files:
            self._tell(head)

    def _new_head(self, first: int, actions: Iterable[Action]) -> Head:
        """The head one step before the first version, with that one's state."""
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
                    f"{kind.__name__} actions"
                )
        for action in state:
            if isinstance(action, Protocol):
                try:
                    check_readable(action)
                except ProtocolError as error:
                    raise ProtocolError(
                        f"version {entry.version}: {error}. If a later version dropped "
                        "that, import from the newest checkpoint: history=False"
                    ) from error


def _odd_adds(part: Part) -> Sequence[Action]:
    """The actions of a part of a checkpoint whose paths have to be looked at."""
    if not isinstance(part, pa.RecordBatch):
        return part
    odd = pc.match_substring_regex(part["path"], ODD_PATH)
    return adds_of(part.filter(pc.or_(odd, part["deletionVector"].is_valid())))


def _key(action: Add | Remove) -> FileKey:
    return action.path, dv_id(action)


def _remaining(parts: Iterable[Part], done: int) -> Iterator[Part]:
    """What comes after the rows that are there already."""
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
