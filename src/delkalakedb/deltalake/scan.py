"""deltalake's own handles on tables of a catalog, for scans by delta-rs.

A handle is opened on the published log. If delta-rs can't open that log at the version,
or the version isn't published and can't be, the handle is opened on a private log in a
temporary folder. The private log has the
protocol without features that don't concern files, the metadata, and the files, through
a link to the table's folder. Nothing is committed to either log.
"""

import atexit
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from arro3.core import RecordBatchReader
from deltalake._internal import RawDeltaTable

from delkalakedb.catalog import (
    Catalog,
    PendingSnapshot,
    Snapshot,
    has_odd_paths,
)
from delkalakedb.catalog.read import add_from_row
from delkalakedb.errors import (
    CatalogError,
    DeltalakeDBError,
    ProtocolError,
    StorageError,
    VersionNotFoundError,
)
from delkalakedb.mirror.publisher import publish
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
from delkalakedb.model.paths import Inside, Outside, log_path
from delkalakedb.model.rules.features import LOG_ONLY
from delkalakedb.model.vectors import relocated_vector, vector_path
from delkalakedb.storage import canonical_location, local_folder, resolve_readable
from delkalakedb.write import folder_of
from delkalakedb.write.engines.deltars import check_delta_rs, explained, open_private

_LINK = "table"


class _Folder:
    """A temporary folder that is deleted with the last reference to it."""

    def __init__(self) -> None:
        self.path = folder_of(self, "delkalakedb-scans")


_kept_folders: list[_Folder] = []


@dataclass(frozen=True)
class Real:
    """A handle of deltalake's, and the folder of its private log if it reads one."""

    version: int
    location: str
    raw: RawDeltaTable
    folder: _Folder | None = None

    @property
    def seen(self) -> Path:
        """The folder that delta-rs sees: the table's, or a link to it."""
        if self.folder is not None:
            return self.folder.path / _LINK
        return Path(local_folder(self.location) or self.location)

    def keeping(self, reader: RecordBatchReader) -> RecordBatchReader:
        """Return the reader, which keeps the private folder until it is read.

        In a forked child the returned reader raises an error, where delta-rs's own
        would abort the process.
        """
        source = pa.RecordBatchReader.from_stream(reader)
        batches = _held(source, self.folder)
        _unread.add(batches)
        return RecordBatchReader.from_arrow(
            pa.RecordBatchReader.from_batches(source.schema, batches)
        )

    def lasting(self) -> RawDeltaTable:
        """Return the handle, and keep its private folder until the process ends."""
        if self.folder is not None:
            _kept_folders.append(self.folder)
        return self.raw

    def deletion_vectors(self) -> RecordBatchReader:
        """Return the rows to keep of each file that has a deletion vector.

        Files have the names of `file_uris`, because polars joins the two by name, and
        would miss a vector of another name.
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
    """Return deltalake's own handle on a version."""
    table, version = snapshot.table, snapshot.version
    features = known(snapshot.protocol.reader_features) or ()
    ratified = not isinstance(snapshot, PendingSnapshot)
    if ratified:
        # Raises if another table has taken the location.
        catalog.log(table.name, snapshot.identity).head()
    # delta-rs doesn't find every file whose path isn't in its shortest form.
    odd = has_odd_paths(snapshot) and local_folder(table.location) is not None
    if ratified and not odd and LOG_ONLY.isdisjoint(features):
        try:
            return _open_published(catalog, snapshot, storage_options)
        except DeltalakeDBError:
            # This role may not publish, or the log was cleaned up to a later version.
            if local_folder(table.location) is None:
                raise
    return _open_own(snapshot, [(version, _state(snapshot))])


def _open_published(
    catalog: Catalog, snapshot: Snapshot, storage_options: Mapping[str, str] | None
) -> Real:
    """Open a version in the published log, and publish the version if need be."""
    table, version = snapshot.table, snapshot.version
    location = canonical_location(table.location)
    if catalog._mirror_state(table.name)[0] < version:
        try:
            publish(catalog, table.name, storage_options)
        except CatalogError as error:
            error.args = (
                f"{table.name}: version {version} isn't published yet, and in "
                f"{location} delta-rs can scan only what is published; publish it with "
                f"`deltasql mirror run`, or read it with to_pyarrow_dataset(): {error}",
            )
            raise
    what = f"{table.name}: open version {version}"
    with explained(what, Path(local_folder(location) or location), location):
        opened = deltalake.DeltaTable(
            table.location, version, dict(storage_options or {})
        )
    return Real(version, location, opened._table)


def open_rows(rows: pa.RecordBatchReader) -> Real:
    """Return a handle on a private table, in a temporary folder, that has `rows`."""
    folder = _Folder()
    # not by delta-rs, in whose threads `rows` couldn't read from an object store
    with pq.ParquetWriter(folder.path / "rows.parquet", rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)
    deltalake.convert_to_deltalake(folder.path)
    raw = deltalake.DeltaTable(folder.path)._table
    return Real(0, str(folder.path), raw, folder)


def open_changes(catalog: Catalog, snapshot: Snapshot, since: int) -> Real:
    """Return a handle on a private log that has each commit since a version."""
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
    adapted = {
        version: [_adapted(a, location) for a in actions if isinstance(a, _ADAPTED)]
        for version, actions in entries
    }
    raw = open_private(root, adapted)._table
    return Real(snapshot.version, location, raw, folder)


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
    """Return the protocol with only the features that concern reading files."""
    readers = known(protocol.reader_features)
    if readers is None:
        return protocol
    kept = [name for name in readers if name not in LOG_ONLY]
    return msgspec.structs.replace(protocol, reader_features=kept, writer_features=kept)


def _linked(path: str, location: str) -> str:
    """Return a file's path as the private log has it."""
    place = resolve_readable(path, location)
    if isinstance(place, Outside):
        return place.url
    return f"{_LINK}/{log_path(place.path)}"


def _linked_vector(vector: DeletionVector, location: str) -> DeletionVector:
    """Return the vector, its file named as the private log has it."""
    path = vector_path(vector)
    if path is None:
        return vector
    place = resolve_readable(path, location)
    if vector.storage_type == "u" and place == Inside(path):
        return relocated_vector(vector, _LINK)
    if isinstance(place, Outside):
        url = place.url
    else:
        url = f"{location}/{log_path(place.path)}"
    return msgspec.structs.replace(vector, storage_type="p", path_or_inline_dv=url)


def _held(
    source: pa.RecordBatchReader, folder: _Folder | None
) -> Generator[pa.RecordBatch]:
    """Yield the batches, with a reference to the folder until the last one."""
    with source:
        while True:
            # before each batch, because this process may have been forked since
            check_delta_rs("the rows of a table")
            if (batch := next(source, None)) is None:
                break
            yield batch
    del folder


# Arrow doesn't free the Python objects that it holds when the interpreter ends.
_unread: weakref.WeakSet[Generator[pa.RecordBatch]] = weakref.WeakSet()


@atexit.register
def _end_unread() -> None:
    for batches in list(_unread):
        batches.close()
