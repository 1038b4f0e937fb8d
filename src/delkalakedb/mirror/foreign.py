"""Foreign commits: log entries that were written without the catalog.

An entry is ours if it has the transaction id that the catalog has for its version.
Foreign entries are never overwritten: `adopt` makes them versions of the catalog, or
moves them to a folder of discarded entries.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from delkalakedb.catalog import Catalog, CatalogOrUri, using_table
from delkalakedb.catalog.commit import Lease, Outbox
from delkalakedb.catalog.engine import Run
from delkalakedb.catalog.load import Entry, adopt_entry, hold_mirror
from delkalakedb.errors import CodecError, MirrorError
from delkalakedb.model.actions import CommitInfo, decode_commit, sha256_of
from delkalakedb.model.paths import LAST_CHECKPOINT, LOG, VERSION, commit_path
from delkalakedb.progress import Progress, ProgressOption, report, reporting
from delkalakedb.storage import ObjectMeta, ObjectNotFoundError, Store, open_store
from delkalakedb.telemetry import log_event

_DISCARDED = f"{LOG}/_discarded"
_SHA_DIGITS = 16
_log = logging.getLogger("delkalakedb.mirror")


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A log entry that the catalog didn't ratify."""

    version: int
    path: str
    operation: str | None
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class _Found:
    """A log entry with its content."""

    version: int
    meta: ObjectMeta
    data: bytes
    ours: bool


def find_foreign(
    catalog: Catalog, name: str, store: Store
) -> tuple[ForeignCommit, ...]:
    """Return the foreign commits that follow the last published version.

    Costs one listing, and one read for each entry above that version.
    """
    published, *_ = catalog._mirror_state(name)
    found = _read_following(catalog, name, store, published)
    return tuple(_foreign(entry) for entry in found if not entry.ours)


def adopt(
    uri: CatalogOrUri,
    *,
    table: str | None = None,
    discard: bool = False,
    storage_options: Mapping[str, str] | None = None,
    store: Store | None = None,
    outside_files: bool = False,
    progress: ProgressOption = None,
) -> tuple[int, ...] | tuple[str, ...]:
    """Adopt a table's foreign commits, or discard them.

    Each commit is adopted in its own transaction. If one can't be adopted, the commits
    before it are, and the next call continues with that commit.

    Args:
        uri: the URI of a table, or a catalog.
        table: the table's name, if the URI has none.
        discard: delete the foreign commits from the log instead, and keep copies.
        storage_options: of the table's object store, as deltalake takes them.
        store: the store at the table's location, if it is open already.
        outside_files: also adopt commits of a shallow clone, which name files of
            another location by absolute paths; such files are read, never deleted.
        progress: called with a `Progress` after each adopted version; True draws a bar.

    Returns:
        The adopted versions, or the paths of the copies.

    Raises:
        TableNotFoundError: The catalog has no such table.
        ProtocolError: A foreign commit needs a feature that this package doesn't know.
        MirrorError: A foreign commit can't be adopted, or another process is
            publishing.

    Examples:
        >>> import deltalake
        >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
        >>> more = pa.table({"id": [4], "city": ["Bern"], "amount": [40.0]})
        >>> deltalake.write_deltalake(table.table_uri, more, mode="append")
        >>> dk.mirror.adopt(table.catalog_uri)
        (2,)
    """
    with using_table(uri, table) as (catalog, name), reporting(progress):
        store = store or open_store(catalog.table(name).location, storage_options)
        if discard:
            return _discard(catalog, name, store)
        return _adopt(catalog, name, store, outside_files=outside_files)


def _adopt(
    catalog: Catalog, name: str, store: Store, *, outside_files: bool
) -> tuple[int, ...]:
    adopted = []
    with hold_mirror(catalog, name) as lease:
        published = lease.mirror.published_version
        for entry in _read_following(catalog, name, store, published):
            if entry.ours:
                # Published by a process that died before it could tell the catalog.
                _mark_ours(catalog, lease, entry)
                continue
            lease = _renewed(catalog, lease)
            decoded = decode_entry(name, entry.version, entry.meta, entry.data)
            adopt_entry(catalog, lease, decoded, outside_files=outside_files)
            adopted.append(entry.version)
            _tell(name, entry.version, "adopted", logging.INFO)
            report(_progress(name, len(adopted)))
        _settle(catalog, name)
    return tuple(adopted)


def _progress(name: str, adopted: int) -> Progress:
    what = f"adopt commits of {name}"
    return Progress(what=what, done=adopted, total=None, unit="versions")


def _discard(catalog: Catalog, name: str, store: Store) -> tuple[str, ...]:
    """Delete the foreign commits from the log; return the paths of the copies.

    The checkpoints and checksums of these versions are deleted, too; data files stay.
    All copies are made before the first file is deleted, and the newest version is
    deleted first. So a reader never meets a gap, and an interrupted call can be
    repeated.
    """
    catalog.log(name).head().check_ours()
    with hold_mirror(catalog, name) as lease:
        published = lease.mirror.published_version
        files = list(_list_log(store))
        above = [file for file in files if file[0] > published]
        entries = _read(catalog, name, store, above, published)
        versions = {entry.version for entry in entries if not entry.ours}
        doomed = [meta.path for version, meta in files if version in versions]
        copies = {path: _copied(store, path) for path in doomed}
        _drop_hint(store, versions)
        for path in sorted(doomed, key=_newest_first):
            lease = _renewed(catalog, lease)
            _delete(store, path, copies[path])
        for version in sorted(versions):
            _tell(name, version, "discarded", logging.WARNING)
        _settle(catalog, name)
    return tuple(copies.values())


def _read_following(
    catalog: Catalog, name: str, store: Store, published: int
) -> Iterator[_Found]:
    """Yield the entries that follow the published version without a gap."""
    start_after = commit_path(published) if published >= 0 else None
    listed = _list_log(store, start_after)
    entries = _read(catalog, name, store, list(listed), published)
    for expected, entry in enumerate(entries, start=published + 1):
        if entry.version != expected:
            return
        yield entry


def _list_log(
    store: Store, start_after: str | None = None
) -> Iterator[tuple[int, ObjectMeta]]:
    for meta in store.list(LOG, start_after):
        if meta.path > f"{LOG}/:":
            # Entries begin with digits; sidecars and `_discarded` sort after them.
            return
        if match := VERSION.match(meta.path):
            yield int(match[1]), meta


class _CommitId(NamedTuple):
    version: int
    transaction_id: str


def _read(
    catalog: Catalog,
    name: str,
    store: Store,
    files: Iterable[tuple[int, ObjectMeta]],
    published: int,
) -> Iterator[_Found]:
    """Yield the commits among listed files, by version."""
    commits = [(v, meta) for v, meta in files if meta.path == commit_path(v)]
    # Loaded after the listing, so that the versions of our listed entries are known.
    ids: dict[int, str] = {}
    if commits:
        params = {"name": name, "after": published}
        with catalog._backend.reading() as session:
            ids = dict(session.rows(_CommitId, "load_transaction_ids", params))
    for version, meta in commits:
        data = store.get(meta.path)
        transaction_id = _commit_info(data).get("txnId")
        ours = version in ids and ids[version] == transaction_id
        yield _Found(version, meta, data, ours)


def _commit_info(data: bytes) -> dict[str, Any]:
    for line in data.split(b"\n"):
        if b'"commitInfo"' in line:
            try:
                actions = list(decode_commit(line))
            except CodecError:
                return {}
            for action in actions:
                if isinstance(action, CommitInfo):
                    return action.fields
    return {}


def _foreign(entry: _Found) -> ForeignCommit:
    operation = _commit_info(entry.data).get("operation")
    return ForeignCommit(
        version=entry.version,
        path=entry.meta.path,
        operation=operation if isinstance(operation, str) else None,
        timestamp_ms=entry.meta.last_modified_ms,
    )


def decode_entry(where: str, version: int, meta: ObjectMeta, data: bytes) -> Entry:
    """Decode a log file; an error begins with `where`, a table or a location."""
    try:
        actions = tuple(decode_commit(data))
    except CodecError as error:
        raise CodecError(f"{where}: {meta.path}: {error}") from error
    return Entry(version, actions, meta.last_modified_ms, sha256_of(data))


def _copied(store: Store, path: str) -> str:
    """Copy a log file; return the copy's path, which has a hash of its content."""
    data = store.get(path)
    version, rest = path.removeprefix(f"{LOG}/").split(".", 1)
    copy = f"{_DISCARDED}/{version}.{sha256_of(data)[:_SHA_DIGITS]}.{rest}"
    store.put_new(copy, data)
    if store.get(copy) != data:
        raise MirrorError(
            f"{store.url}: {copy} differs from {path}; nothing is deleted"
        )
    return copy


def _drop_hint(store: Store, versions: Set[int]) -> None:
    """Delete `_last_checkpoint` if it names a checkpoint of `versions`."""
    try:
        hint = msgspec.json.decode(store.get(LAST_CHECKPOINT))
    except (ObjectNotFoundError, msgspec.DecodeError):
        return
    if isinstance(hint, dict) and hint.get("version") in versions:
        store.delete(LAST_CHECKPOINT)


def _newest_first(path: str) -> tuple[int, bool]:
    """Return the key that sorts log files for deletion.

    A version's commit comes after its other files, because it shows that the version
    isn't wholly deleted yet.
    """
    match = VERSION.match(path)
    version = int(match[1]) if match else -1
    return -version, path == commit_path(version)


def _delete(store: Store, path: str, copy: str) -> None:
    # Read again, because another process may have discarded it and published ours.
    if f".{sha256_of(store.get(path))[:_SHA_DIGITS]}." not in copy:
        raise MirrorError(
            f"{store.url}: {path} changed during discard; the file is kept"
        )
    store.delete(path)


def _mark_ours(catalog: Catalog, lease: Lease, entry: _Found) -> None:
    hashes = {entry.version: sha256_of(entry.data)}
    if not Outbox(catalog._backend).mark_published(lease, hashes, release=False):
        raise MirrorError(f"{lease.mirror.name}: the lease was lost; try again")


def _renewed(catalog: Catalog, lease: Lease) -> Lease:
    """Return the lease, renewed unless it is fresh."""
    if lease.fresh:
        return lease
    if (renewed := Outbox(catalog._backend).renew(lease)) is None:
        raise MirrorError(f"{lease.mirror.name}: the lease was lost; try again")
    return renewed


def _settle(catalog: Catalog, name: str) -> None:
    with catalog._backend.writing() as session:
        session.apply([Run("settle_mirror", {"name": name})])


def _tell(name: str, version: int, done: str, level: int) -> None:
    message = f"{name}: foreign version {version} was {done}"
    log_event(_log, level, message, event=done, table=name, version=version)
