"""Clone a table: a new table with the files of another one, or with copies of them."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import msgspec
from msgspec import UNSET

from delkalakedb.catalog import Snapshot
from delkalakedb.clock import now_ms
from delkalakedb.errors import DeltaError, StorageError
from delkalakedb.model.actions import (
    Action,
    Add,
    DomainMetadata,
    Metadata,
    Protocol,
    dv_id,
    known,
)
from delkalakedb.model.new_actions import changed_state, removed
from delkalakedb.model.paths import Inside, file_path, log_path
from delkalakedb.model.predicate.predicate import Anything
from delkalakedb.model.rules.conflicts import ROW_TRACKING_DOMAIN
from delkalakedb.model.rules.protocol import (
    check_writable,
    fenced,
    is_fenced,
    supported_features,
    supporting,
    unfenced,
)
from delkalakedb.model.vectors import renamed_vector, vector_file_name, vector_path
from delkalakedb.spark.reader import Files
from delkalakedb.spark.writer import commit_info
from delkalakedb.storage import Store, open_store, resolve_readable
from delkalakedb.write import Operation, Target, folder_of, table_files
from delkalakedb.write.engines import InPlace, Work

# files copied at a time
_AT_ONCE = 8


@dataclass(frozen=True)
class Clone:
    """A clone of one version of a table.

    Args:
        source: the version.
        shallow: name the source's files instead of copying them.
        properties: table properties that replace the source's.
        storage_options: the options of the object stores of both tables.
    """

    source: Snapshot
    shallow: bool
    properties: Mapping[str, str]
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def operation(self) -> Operation[None]:
        """Return the operation that makes a new table, or replaces the files of one."""
        return Operation("clone", InPlace(self._run), Anything())

    def _run(self, to: Target) -> Work[None]:
        if to.location == self.source.location:
            raise DeltaError(f"{to.name} can't be a clone of itself: give another path")
        protocol, metadata = self._state(to.snapshot)
        check_writable(protocol, metadata)
        adds, new_paths = self._adds(to)
        there = [] if to.snapshot is None else _adds_of(to.snapshot)
        kept = {(a.path, dv_id(a)) for a in there} & {(a.path, dv_id(a)) for a in adds}
        gone = [a for a in there if (a.path, dv_id(a)) not in kept]
        come = [a for a in adds if (a.path, dv_id(a)) not in kept]
        removed_ms, table = now_ms(), self.source.table
        parameters = {
            "source": table.location,
            "sourceVersion": self.source.version,
            "isShallow": self.shallow,
        }
        metrics = {
            "sourceTableSize": table.size_bytes,
            "sourceNumOfFiles": table.num_files,
            "numRemovedFiles": len(gone),
            "removedFilesSize": sum(add.size for add in gone),
            "numCopiedFiles": 0 if self.shallow else len(come),
            "copiedFilesSize": 0 if self.shallow else sum(add.size for add in come),
        }
        actions: list[Action] = [commit_info("CLONE", parameters, metrics)]
        state: tuple[Protocol | Metadata, ...] = (protocol, metadata)
        if to.snapshot is not None:
            before = (to.snapshot.protocol, to.snapshot.metadata)
            state = changed_state(before, (protocol, metadata))
        actions += [*state, *self._domains(to.snapshot)]
        actions += [removed(add, removed_ms) for add in gone]
        return Work(None, [[*actions, *come]], new_paths)

    def _state(self, there: Snapshot | None) -> tuple[Protocol, Metadata]:
        """Return the clone's protocol and metadata; fences aren't cloned."""
        protocol, metadata = self.source.protocol, self.source.metadata
        if is_fenced(protocol):
            protocol, metadata = unfenced(protocol, metadata)
        identity = str(uuid4()) if there is None else there.metadata.id
        metadata = msgspec.structs.replace(
            metadata,
            id=identity,
            created_time=now_ms(),
            configuration={**(known(metadata.configuration) or {}), **self.properties},
        )
        if there is None:
            return protocol, metadata
        missing = supported_features(protocol) - supported_features(there.protocol)
        merged = supporting(there.protocol, missing) if missing else there.protocol
        return fenced(merged, metadata) if is_fenced(merged) else (merged, metadata)

    def _domains(self, there: Snapshot | None) -> Iterator[DomainMetadata]:
        come = self.source.domains()
        for name, domain in ({} if there is None else there.domains()).items():
            if name not in come and name != ROW_TRACKING_DOMAIN:
                yield msgspec.structs.replace(domain, removed=True)
        yield from (
            domain for name, domain in come.items() if name != ROW_TRACKING_DOMAIN
        )

    def _adds(self, to: Target) -> tuple[list[Add], list[str]]:
        """Return the clone's files, and the paths of those that were copied."""
        plain = [
            msgspec.structs.replace(
                add,
                data_change=True,
                base_row_id=UNSET,
                default_row_commit_version=UNSET,
            )
            for add in _adds_of(self.source)
        ]
        location = self.source.location
        if self.shallow:
            return [_absolute(add, location) for add in plain], []
        copies = _Copies(plain, location, to, self.storage_options)
        return copies.run(), copies.new_paths


def _adds_of(snapshot: Snapshot) -> list[Add]:
    return Files(snapshot.files().read_all()).adds


def _absolute(add: Add, location: str) -> Add:
    """Return `add` with the absolute paths of its file and deletion vector."""
    vector = known(add.deletion_vector)
    if vector is not None and (path := vector_path(vector)) is not None:
        vector = msgspec.structs.replace(
            vector, storage_type="p", path_or_inline_dv=_url_of(path, location)
        )
    path = _url_of(add.path, location)
    given = UNSET if vector is None else vector
    return msgspec.structs.replace(add, path=path, deletion_vector=given)


def _url_of(path: str, location: str) -> str:
    place = resolve_readable(path, location)
    if isinstance(place, Inside):
        return f"{location.rstrip('/')}/{log_path(place.path)}"
    return place.url


class _Copies:
    """Copies of a table's files, under new names at another location."""

    def __init__(
        self,
        adds: Sequence[Add],
        source: str,
        to: Target,
        options: Mapping[str, str] | None,
    ) -> None:
        self._adds = adds
        self._source = source
        self._to = to
        self._options = options
        self._files = {
            add.path: file_path(
                f"part-{i:05d}-{uuid4()}.parquet", dict(add.partition_values)
            )
            for i, add in enumerate(adds)
        }
        vectors = (known(add.deletion_vector) for add in adds)
        paths = {vector_path(vector) for vector in vectors if vector is not None}
        self._vectors = {path: uuid4() for path in paths if path is not None}

    @property
    def _moves(self) -> dict[str, str]:
        """The new paths by those in the source's log."""
        vectors = self._vectors.items()
        return self._files | {p: vector_file_name(uuid) for p, uuid in vectors}

    @property
    def new_paths(self) -> list[str]:
        """The paths of the copies."""
        return list(self._moves.values())

    def run(self) -> list[Add]:
        """Copy the files; return the add actions of the copies."""
        moves = self._moves
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                # consumed, so that the first failure is raised
                list(pool.map(self._copy, moves, moves.values()))
        except (OSError, StorageError):
            self._to.files.discard(self.new_paths)
            raise
        return list(map(self._renamed, self._adds))

    def _renamed(self, add: Add) -> Add:
        vector = known(add.deletion_vector)
        if vector is not None and (path := vector_path(vector)) is not None:
            vector = renamed_vector(vector, self._vectors[path])
        return msgspec.structs.replace(
            add,
            path=log_path(self._files[add.path]),
            deletion_vector=UNSET if vector is None else vector,
        )

    @cached_property
    def _store(self) -> Store:
        return open_store(self._to.location, self._options)

    @cached_property
    def _folder(self) -> Path:
        """A private folder for files of another machine."""
        return folder_of(self, "_delta_clone")

    def _copy(self, path: str, target: str) -> None:
        url = _url_of(path, self._source)
        parent, _, name = url.rpartition("/")
        parts = urlsplit(url)
        if parts.scheme == "file":
            self._store.put_file(target, Path(unquote(parts.path)))
            return
        local = self._folder / str(uuid4())
        files = table_files(parent, self._options)
        files.bring({local.name: unquote(name)}, self._folder)
        self._store.put_file(target, local)
        local.unlink()
