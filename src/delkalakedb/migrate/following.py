"""Follow: the catalog takes in a table that others still write by file.

Until the cut-over the table is read-only here: every commit is refused, and nothing is
written to its log. After it the catalog decides, as for any table of its own.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from delkalakedb.catalog import Catalog, connect
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.holds import FOLLOWING, set_hold
from delkalakedb.catalog.staging import find_table_at
from delkalakedb.errors import DeltaError, MirrorError
from delkalakedb.migrate.importing import Imported, Tell, import_into
from delkalakedb.mirror.foreign import adopt
from delkalakedb.mirror.verify import verify
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.segment import list_log
from delkalakedb.uri import Uri, parse_uri, require_table

__all__ = [
    "Synced",
    "cut_over",
    "cut_over_in",
    "follow",
    "follow_into",
    "sync",
    "sync_in",
]

_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Synced:
    """How far a followed table has come.

    Args:
        table: its name.
        location: where its log is.
        hold: why it is read-only here; None after the cut-over, and where a feature
            is why.
        version: the newest version that is in the catalog.
        versions: how many of them came in just now.
        versions_behind: how many the log has by now that didn't.
        num_files: its live files.
        timestamp_ms: when its newest version was made.
    """

    table: str
    location: str
    hold: str | None
    version: int
    versions: int
    versions_behind: int
    num_files: int
    timestamp_ms: int

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return asdict(self)


def follow(
    location: str,
    uri: str | Uri,
    *,
    storage_options: Mapping[str, str] | None = None,
    history: bool = True,
    outside_files: bool = False,
    progress: Tell | None = None,
) -> Imported:
    """Bring a table into a catalog, read-only there, while others go on writing it.

    Args:
        location: where the table is: a path or a URL.
        uri: the URI that it will have, with the table's name.
        storage_options: of the table's object store, as deltalake takes them.
        history: as far back as the log goes; without it from the newest checkpoint.
        outside_files: take in a shallow clone, whose log names files of another
            location by absolute paths; they are read, and never deleted.
        progress: called after each part that is in the catalog.
    """
    parsed = parse_uri(uri) if isinstance(uri, str) else uri
    store = open_store(location, storage_options)
    name = require_table(parsed)
    with connect(parsed) as catalog:
        return follow_into(
            catalog,
            name,
            store,
            history=history,
            outside_files=outside_files,
            progress=progress,
        )


def follow_into(
    catalog: Catalog,
    name: str,
    store: Store,
    *,
    history: bool = True,
    outside_files: bool = False,
    progress: Tell | None = None,
) -> Imported:
    """The same for an open catalog and the store at the table's location."""
    if find_table_at(catalog, store.url) == name:
        _followed(catalog, name)
    return import_into(
        catalog,
        name,
        store,
        history=history,
        outside_files=outside_files,
        progress=progress,
        hold=FOLLOWING,
    )


def sync(
    uri: str | Uri,
    *,
    storage_options: Mapping[str, str] | None = None,
    outside_files: bool = False,
) -> Synced:
    """Take in what others wrote to a followed table since.

    Args:
        uri: the URI of the table.
        storage_options: of the table's object store, as deltalake takes them.
        outside_files: take in a shallow clone, whose log names files of another
            location by absolute paths; they are read, and never deleted.
    """
    parsed = parse_uri(uri) if isinstance(uri, str) else uri
    name = require_table(parsed)
    with connect(parsed) as catalog:
        return sync_in(catalog, name, storage_options, outside_files=outside_files)


def sync_in(
    catalog: Catalog,
    name: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    outside_files: bool = False,
) -> Synced:
    """The same for an open catalog."""
    _followed(catalog, name)
    store = open_store(catalog.table(name).location, storage_options)
    return _caught_up(catalog, name, store, outside_files)


def cut_over(
    uri: str | Uri,
    *,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
    outside_files: bool = False,
) -> Synced:
    """Take over a table that others wrote so far; from now on the catalog decides.

    They have stopped by then: what they still write is foreign. Where the log and the
    catalog don't agree it stays as it was, and a `MirrorError` says on what.

    Args:
        uri: the URI of the table.
        deep: verify every version and the data files, not only the latest state.
        storage_options: of the table's object store, as deltalake takes them.
        outside_files: take in a shallow clone, whose log names files of another
            location by absolute paths; they are read, and never deleted.
    """
    parsed = parse_uri(uri) if isinstance(uri, str) else uri
    name = require_table(parsed)
    with connect(parsed) as catalog:
        return cut_over_in(
            catalog,
            name,
            deep=deep,
            storage_options=storage_options,
            outside_files=outside_files,
        )


def cut_over_in(
    catalog: Catalog,
    name: str,
    *,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
    outside_files: bool = False,
) -> Synced:
    """The same for an open catalog."""
    head = _followed(catalog, name)
    # Nobody could write it after the cut-over.
    head.check_writable()
    store = open_store(catalog.table(name).location, storage_options)
    versions = 0
    for _ in range(_ATTEMPTS):
        synced = _caught_up(catalog, name, store, outside_files)
        versions += synced.versions
        report = verify(catalog, name, store, deep=deep)
        if report.ok and set_hold(catalog, name, None, before=head.hold):
            return _synced(catalog, name, store, versions)
        if all(d.version <= synced.version for d in report.differences):
            raise MirrorError(f"{name} isn't cut over: {report}")
    raise MirrorError(f"{name} isn't cut over: others write to it without a pause")


def _followed(catalog: Catalog, name: str) -> Head:
    """The head of a table that only others write: there is somebody to follow."""
    head = catalog.log(name).head()
    if head.read_only is None:
        raise DeltaError(
            f"{name}: it is this catalog's own, and there is nobody to follow; commits "
            "that went round the catalog are settled with mirror.adopt(uri)"
        )
    return head


def _caught_up(
    catalog: Catalog, name: str, store: Store, outside_files: bool
) -> Synced:
    versions = len(adopt(catalog, name, store, outside_files=outside_files))
    return _synced(catalog, name, store, versions)


def _synced(catalog: Catalog, name: str, store: Store, versions: int) -> Synced:
    head, log = catalog.log(name).head(), list_log(store)
    if log.latest > head.version and head.version + 1 not in log.commits:
        raise MirrorError(
            f"{name}: the log has lost version {head.version + 1} before it was taken "
            "in; detach the table, and follow it anew"
        )
    return Synced(
        table=name,
        location=head.location,
        hold=head.hold,
        version=head.version,
        versions=versions,
        versions_behind=max(0, log.latest - head.version),
        num_files=head.num_files,
        timestamp_ms=head.timestamp_ms,
    )
