"""deltalake's own handles on our tables, for what only delta-rs can do: scans.

They are opened on the published log. Where delta-rs can't open that one at a version,
they are opened on an equal log of one's own, in a temporary folder: the version's
protocol without the features that files know nothing of, its metadata and its files,
which are reached through a link to the table's folder. Nothing is committed to either.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import msgspec
import pyarrow as pa
from arro3.core import RecordBatchReader
from deltalake._internal import RawDeltaTable

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.catalog.pending import PendingSnapshot
from delkalakedb.catalog.rows import add_from_row
from delkalakedb.errors import (
    DeltaError,
    ProtocolError,
    StorageError,
    VersionNotFoundError,
)
from delkalakedb.mirror.publish import publish
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DeletionVector,
    Metadata,
    Protocol,
    Remove,
    known,
)
from delkalakedb.model.codec import encode_commit
from delkalakedb.model.features import LOG_ONLY
from delkalakedb.model.paths import Inside, Outside, log_path
from delkalakedb.model.vectors import vector_path
from delkalakedb.storage import canonical_location
from delkalakedb.table.files import has_odd_paths, local_folder, resolve_readable
from delkalakedb.workspace.failures import explained
from delkalakedb.workspace.folder import folder_of

__all__ = ["Real", "open_changes", "open_real"]

_LINK = "table"
# The encoded UUID at the end of a deletion vector's name.
_UUID_LENGTH = 20


class _Folder:
    """A temporary folder that goes with the last who refers to it."""

    def __init__(self) -> None:
        self.path = folder_of(self, "delkalakedb-scans")


@dataclass(frozen=True)
class Real:
    """A handle of deltalake's; `folder` is where it reads a log of one's own."""

    version: int
    location: str
    raw: RawDeltaTable
    folder: _Folder | None = None

    @property
    def seen(self) -> Path:
        """The folder that delta-rs sees instead of a table's, or the table's."""
        if self.folder is not None:
            return self.folder.path / _LINK
        return Path(local_folder(self.location) or self.location)

    def keeping(self, reader: RecordBatchReader) -> RecordBatchReader:
        """A reader that keeps what it reads from as long as it lasts."""
        if self.folder is None:
            return reader
        source = pa.RecordBatchReader.from_stream(reader)
        batches = _held(source, self.folder)
        return RecordBatchReader.from_arrow(
            pa.RecordBatchReader.from_batches(source.schema, batches)
        )

    def lasting(self) -> RawDeltaTable:
        """The handle, for somebody who may keep it for as long as the process lasts."""
        if self.folder is not None:
            _kept_folders().append(self.folder)
        return self.raw

    def deletion_vectors(self) -> RecordBatchReader:
        """The rows to keep of each file that has a deletion vector.

        Files are named as `file_uris` names them: who joins the two by name, as polars
        does, would take a vector that has another name for none.
        """
        table = pa.RecordBatchReader.from_stream(self.raw.deletion_vectors()).read_all()
        names = pa.array(map(self._named, table["filepath"].to_pylist()))
        field = table.schema.field("filepath")
        renamed = table.set_column(0, field, names.cast(field.type))
        return RecordBatchReader.from_arrow(renamed)

    def _named(self, url: str) -> str:
        read = self.location if self.folder is None else self.seen.as_uri()
        folder = local_folder(self.location)
        root = self.location if folder is None else f"file://{folder}"
        if not url.startswith(f"{read}/"):
            return url if folder is None else unquote(url)
        return f"{root}/{unquote(url.removeprefix(f'{read}/'))}"


def open_real(
    catalog: Catalog, snapshot: Snapshot, storage_options: Mapping[str, str] | None
) -> Real:
    """deltalake's own handle on a version."""
    table, version = snapshot.table, snapshot.version
    features = known(snapshot.protocol.reader_features) or ()
    ratified = not isinstance(snapshot, PendingSnapshot)
    if ratified:
        # Its place may be another table's by now.
        catalog.log(table.name, snapshot.identity).head()
    # delta-rs doesn't find each file that has a roundabout path.
    odd = has_odd_paths(snapshot) and local_folder(table.location) is not None
    if ratified and not odd and LOG_ONLY.isdisjoint(features):
        if catalog.mirror_state(table.name)[0] < version:
            publish(catalog, table.name, storage_options)
        options = dict(storage_options or {})
        location = canonical_location(table.location)
        what = f"{table.name}: open version {version}"
        try:
            with explained(what, Path(local_folder(location) or location), location):
                opened = deltalake.DeltaTable(table.location, version, options)
        except DeltaError:
            # The log may have been cleaned up to a later version.
            if local_folder(table.location) is None:
                raise
        else:
            return Real(version, location, opened._table)
    return _open_own(snapshot, [(version, _state(snapshot))])


def open_changes(catalog: Catalog, snapshot: Snapshot, since: int) -> Real:
    """A handle on a log of one's own that has each commit since a version."""
    name = snapshot.table.name
    log = catalog.log(name, snapshot.identity)
    first = log.head(snapshot.version).first_version
    if 0 < first >= since:
        raise VersionNotFoundError(
            f"{name}: changes are known since version {first + 1}, not {since}"
        )
    since = min(since, snapshot.version)
    entries: list[tuple[int, Iterable[Action]]] = []
    if since > 0:
        before = catalog.snapshot(name, since - 1)
        entries.append((since - 1, _state(before)))
    versions = range(since, snapshot.version + 1)
    entries += [(version, log.commit(version)) for version in versions]
    return _open_own(snapshot, entries)


def _state(snapshot: Snapshot) -> Iterator[Action]:
    yield from (snapshot.protocol, snapshot.metadata)
    for batch in snapshot.files():
        columns = batch.to_pydict().values()
        yield from map(add_from_row, zip(*columns, strict=True))


def _open_own(
    snapshot: Snapshot, entries: Iterable[tuple[int, Iterable[Action]]]
) -> Real:
    location = canonical_location(snapshot.table.location)
    target = local_folder(location)
    if target is None:
        raise ProtocolError(
            f"{snapshot.table.name}: in {location} delta-rs can't scan a fenced table "
            "or a transaction's own writes, only on a local disk; read it with "
            "to_pyarrow_dataset()"
        )
    folder = _Folder()
    root = folder.path
    try:
        (root / _LINK).symlink_to(target, target_is_directory=True)
    except (NotImplementedError, OSError) as error:
        raise StorageError(
            f"{snapshot.table.name}: {root} can't have a link to {location}, which "
            "delta-rs needs to scan this table; set TMPDIR to a file system with "
            "links, or read the table with to_pyarrow_dataset()"
        ) from error
    (root / "_delta_log").mkdir()
    for version, actions in entries:
        _write(root, version, actions, location)
    raw = deltalake.DeltaTable(root, snapshot.version)._table
    return Real(snapshot.version, location, raw, folder)


def _write(root: Path, version: int, actions: Iterable[Action], location: str) -> None:
    kept = [a for a in actions if isinstance(a, _ADAPTED)]
    entry = root / "_delta_log" / f"{version:020}.json"
    entry.write_bytes(encode_commit(_adapted(action, location) for action in kept))
    for info in kept:
        if isinstance(info, CommitInfo):
            seconds = info.fields.get("timestamp", 0) / 1000
            os.utime(entry, (seconds, seconds))


_ADAPTED = CommitInfo | Protocol | Metadata | Add | Remove | Cdc


def _adapted(action: Action, location: str) -> Action:
    if isinstance(action, Protocol):
        return _readable(action)
    if isinstance(action, Add | Remove | Cdc):
        changes: dict[str, Any] = {"path": _linked(action.path, location)}
        vector = None if isinstance(action, Cdc) else known(action.deletion_vector)
        if vector is not None:
            changes["deletion_vector"] = _linked_vector(vector, location)
        return msgspec.structs.replace(action, **changes)
    return action


def _readable(protocol: Protocol) -> Protocol:
    """The protocol with nothing but what matters to who reads the files."""
    readers = known(protocol.reader_features)
    if readers is None:
        return protocol
    kept = [name for name in readers if name not in LOG_ONLY]
    return msgspec.structs.replace(protocol, reader_features=kept, writer_features=kept)


def _linked(path: str, location: str) -> str:
    """A file's path as seen from the own log."""
    place = resolve_readable(path, location)
    if isinstance(place, Outside):
        return place.url
    return f"{_LINK}/{log_path(place.path)}"


def _linked_vector(vector: DeletionVector, location: str) -> DeletionVector:
    """The vector with its file's name, if it has one, as seen from the own log."""
    path = vector_path(vector)
    if path is None:
        return vector
    place = resolve_readable(path, location)
    if vector.storage_type == "u" and place == Inside(path):
        text = vector.path_or_inline_dv
        folder, identity = text[:-_UUID_LENGTH], text[-_UUID_LENGTH:]
        folder = f"{_LINK}/{folder}" if folder else _LINK
        return msgspec.structs.replace(vector, path_or_inline_dv=folder + identity)
    if isinstance(place, Outside):
        url = place.url
    else:
        url = f"{location}/{log_path(place.path)}"
    return msgspec.structs.replace(vector, storage_type="p", path_or_inline_dv=url)


def _held(source: pa.RecordBatchReader, folder: _Folder) -> Iterator[pa.RecordBatch]:
    """The batches; as long as there may be more, the folder stays."""
    with source:
        yield from source
    del folder


@cache
def _kept_folders() -> list[_Folder]:
    return []
