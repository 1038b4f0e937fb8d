"""Foreign commits: log entries that someone wrote round the catalog.

An entry is ours if it carries the transaction id that the catalog has for its version.
The others are never overwritten: `adopt` makes them versions of the catalog, `discard`
takes them out of the log and keeps a copy.
"""

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import msgspec

from delkalakedb.catalog import Catalog, connect
from delkalakedb.catalog.adopt import Entry, adopt_entry, hold_mirror
from delkalakedb.catalog.backend import Run
from delkalakedb.catalog.outbox import Lease, Outbox
from delkalakedb.errors import CodecError, MirrorError
from delkalakedb.model.actions import CommitInfo
from delkalakedb.model.codec import decode_commit
from delkalakedb.storage import ObjectMeta, ObjectNotFoundError, Store, open_store
from delkalakedb.storage.segment import LOG, commit_path
from delkalakedb.telemetry import log_event
from delkalakedb.uri import parse_uri, require_table

__all__ = ["ForeignCommit", "adopt", "adopt_uri", "discard", "find_foreign"]

_DISCARDED = f"{LOG}/_discarded"
_LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
# The version of a log file; of a compacted one the last of its versions.
_VERSION = re.compile(r"(?:\d{20}\.(?=\d{20}\.))?(\d{20})\.")
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
    """A log entry, read."""

    version: int
    meta: ObjectMeta
    data: bytes
    ours: bool


def find_foreign(
    catalog: Catalog, name: str, store: Store
) -> tuple[ForeignCommit, ...]:
    """The foreign commits that follow the last published version.

    One listing, and one read for each entry above that version.
    """
    published, *_ = catalog.mirror_state(name)
    found = _read_following(catalog, name, store, published)
    return tuple(_foreign(entry) for entry in found if not entry.ours)


def adopt(
    catalog: Catalog, name: str, store: Store, *, outside_files: bool = False
) -> tuple[int, ...]:
    """Make the foreign commits versions of the catalog; the versions.

    One transaction each: where one can't be adopted, those before it are, and calling
    again goes on from there. A commit that adds files by absolute paths outside of the
    table's location is adopted only with `outside_files`.
    """
    adopted = []
    with hold_mirror(catalog, name) as lease:
        published = lease.mirror.published_version
        for entry in _read_following(catalog, name, store, published):
            if entry.ours:
                # It was published, and the publisher died before it could say so.
                _mark_ours(catalog, lease, entry)
                continue
            lease = _renewed(catalog, lease)
            decoded = _decoded(name, entry)
            adopt_entry(catalog, lease, decoded, outside_files=outside_files)
            adopted.append(entry.version)
            _tell(name, entry.version, "adopted", logging.INFO)
        _settle(catalog, name)
    return tuple(adopted)


def discard(catalog: Catalog, name: str, store: Store) -> tuple[str, ...]:
    """Take the foreign commits out of the log; the paths of the copies that are kept.

    Their checkpoints and checksums go with them, their data files stay. All copies are
    there before the first file goes, and the newest version goes first, so that a
    reader never meets a gap and a call that was cut short can be made again.
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


def adopt_uri(
    uri: str,
    *,
    discard: bool = False,
    storage_options: Mapping[str, str] | None = None,
    outside_files: bool = False,
) -> tuple[int, ...] | tuple[str, ...]:
    """Adopt a table's foreign commits, or discard them.

    Args:
        uri: the URI of a table.
        discard: take them out of the log instead, and keep copies.
        storage_options: of the table's object store, as deltalake takes them.
        outside_files: take commits of a shallow clone, which name files of another
            location by absolute paths; they are read, and never deleted.

    Returns:
        The adopted versions, or the paths of the copies.
    """
    parsed = parse_uri(uri)
    name = require_table(parsed)
    with connect(parsed) as catalog:
        store = open_store(catalog.table(name).location, storage_options)
        if discard:
            return _discard(catalog, name, store)
        return adopt(catalog, name, store, outside_files=outside_files)


_discard = discard


def _read_following(
    catalog: Catalog, name: str, store: Store, published: int
) -> Iterator[_Found]:
    """The entries that follow a published version without a gap."""
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
        name = meta.path.removeprefix(f"{LOG}/")
        if name > ":":
            # Past the digits: sidecars, and what was discarded.
            return
        if match := _VERSION.match(name):
            yield int(match[1]), meta


def _read(
    catalog: Catalog,
    name: str,
    store: Store,
    files: Iterable[tuple[int, ObjectMeta]],
    published: int,
) -> Iterator[_Found]:
    """The commits among the files that were listed, by version."""
    commits = [(v, meta) for v, meta in files if meta.path == commit_path(v)]
    # Asked after the listing: what of it is ours has been ratified by now.
    ids = _load_transaction_ids(catalog, name, published) if commits else {}
    for version, meta in commits:
        data = store.get(meta.path)
        transaction_id = _commit_info(data).get("txnId")
        ours = version in ids and ids[version] == transaction_id
        yield _Found(version, meta, data, ours)


def _load_transaction_ids(catalog: Catalog, name: str, after: int) -> dict[int, str]:
    params = {"name": name, "after": after}
    with catalog.backend.reading() as session:
        rows = session.query("load_transaction_ids", params)
    return dict(rows)


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


def _decoded(name: str, entry: _Found) -> Entry:
    try:
        actions = tuple(decode_commit(entry.data))
    except CodecError as error:
        raise CodecError(f"{name}: {entry.meta.path}: {error}") from error
    modified_ms = entry.meta.last_modified_ms
    return Entry(entry.version, actions, modified_ms, _sha256(entry.data))


def _copied(store: Store, path: str) -> str:
    """Where a copy of a log file is kept, named after what is in it."""
    data = store.get(path)
    version, rest = path.removeprefix(f"{LOG}/").split(".", 1)
    copy = f"{_DISCARDED}/{version}.{_sha256(data)[:_SHA_DIGITS]}.{rest}"
    store.put_new(copy, data)
    if store.get(copy) != data:
        raise MirrorError(f"{store.url}: {copy} isn't a true copy; nothing is deleted")
    return copy


def _drop_hint(store: Store, versions: Set[int]) -> None:
    """Forget a `_last_checkpoint` that names a checkpoint about to go."""
    try:
        hint = msgspec.json.decode(store.get(_LAST_CHECKPOINT))
    except (ObjectNotFoundError, msgspec.DecodeError):
        return
    if isinstance(hint, dict) and hint.get("version") in versions:
        store.delete(_LAST_CHECKPOINT)


def _newest_first(path: str) -> tuple[int, bool]:
    """A version's commit is the last of it to go: it tells that there is more to do."""
    match = _VERSION.match(path.removeprefix(f"{LOG}/"))
    version = int(match[1]) if match else -1
    return -version, path == commit_path(version)


def _delete(store: Store, path: str, copy: str) -> None:
    # Looked at once more: it may be ours by now, if a rival discarded it first.
    if f".{_sha256(store.get(path))[:_SHA_DIGITS]}." not in copy:
        raise MirrorError(f"{store.url}: {path} has changed meanwhile; it stays")
    store.delete(path)


def _mark_ours(catalog: Catalog, lease: Lease, entry: _Found) -> None:
    hashes = {entry.version: _sha256(entry.data)}
    if not Outbox(catalog.backend).mark_published(lease, hashes, release=False):
        raise MirrorError(f"{lease.mirror.name}: it took too long; try again")


def _renewed(catalog: Catalog, lease: Lease) -> Lease:
    """The lease, with time left for what comes next."""
    if lease.fresh:
        return lease
    if (renewed := Outbox(catalog.backend).renew(lease)) is None:
        raise MirrorError(f"{lease.mirror.name}: it took too long; try again")
    return renewed


def _settle(catalog: Catalog, name: str) -> None:
    with catalog.backend.writing() as session:
        session.apply([Run("settle_mirror", {"name": name})])


def _tell(name: str, version: int, done: str, level: int) -> None:
    message = f"{name}: version {version} of someone else was {done}"
    log_event(_log, level, message, event=done, table=name, version=version)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
