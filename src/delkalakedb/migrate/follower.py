"""Follow: the catalog takes in a table that other writers still write by path.

Until the cut-over the table is held: the catalog refuses every commit to it, and writes
nothing to its log. After the cut-over the catalog decides, as for any table of its own.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from os import PathLike
from typing import Any

from delkalakedb.catalog import Catalog, CatalogOrUri, using_table
from delkalakedb.catalog.load import find_table_at, set_hold
from delkalakedb.catalog.read import FOLLOWING, Head
from delkalakedb.errors import DeltaError, MirrorError
from delkalakedb.migrate.importer import Imported, import_table, store_at
from delkalakedb.mirror import adopt
from delkalakedb.mirror.verify import verify_table
from delkalakedb.model.times import from_ms
from delkalakedb.progress import ProgressOption, reporting
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.log import list_log

# Attempts to catch up with the other writers before the cut-over.
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Synced:
    """The state of a followed table.

    Args:
        table: the table's name.
        location: where its log is.
        hold: why the table is read-only here; None after the cut-over, and for a table
            that is read-only because of a feature.
        version: the newest version in the catalog.
        versions: how many versions this call took in.
        versions_behind: how many versions of the log aren't in the catalog yet.
        num_files: the number of live files.
        timestamp_ms: when the newest version was made, in milliseconds since 1970.

    Examples:
        >>> import deltalake
        >>> deltalake.write_deltalake("events", pa.table({"id": [1]}))
        >>> uri = "deltasql://sqlite/meta.db?table=events"
        >>> followed = dk.follow("events", uri)
        >>> synced = dk.sync(uri)
        >>> synced.version, synced.versions, synced.versions_behind
        (0, 0, 0)
    """

    table: str
    location: str
    hold: str | None
    version: int
    versions: int
    versions_behind: int
    num_files: int
    timestamp_ms: int

    @property
    def timestamp(self) -> datetime:
        """The time of the newest version, in UTC."""
        return from_ms(self.timestamp_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values.

        Returns:
            The values by field.

        Examples:
            >>> import deltalake
            >>> deltalake.write_deltalake("events", pa.table({"id": [1]}))
            >>> uri = "deltasql://sqlite/meta.db?table=events"
            >>> followed = dk.follow("events", uri)
            >>> dk.sync(uri).to_dict()["num_files"]
            1
        """
        return asdict(self)


def follow(
    location: str | PathLike[str] | Store,
    uri: CatalogOrUri,
    *,
    table: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    history: bool = True,
    outside_files: bool = False,
    progress: ProgressOption = None,
) -> Imported:
    """Import a table that other writers still write; the catalog can only read it.

    Args:
        location: the table's path or URL, or the store there.
        uri: the URI that the table will have, or a catalog.
        table: the name that the table will have, if the URI has none.
        storage_options: of the table's object store, as deltalake takes them.
        history: import all versions of the log; otherwise those from the newest
            checkpoint on.
        outside_files: accept a shallow clone, whose log names files of another location
            by absolute paths; such files are read, never deleted.
        progress: called with a `Progress` as in `import_table`; True draws a bar.

    Returns:
        The versions brought in, and the comparison of the catalog with the log.

    Raises:
        TableNotFoundError: There is no Delta table at the location.
        TableExistsError: Another table has the name or the location.
        DeltaError: The table at the location is this catalog's own already.

    Examples:
        >>> import deltalake
        >>> deltalake.write_deltalake("events", pa.table({"id": [1]}))
        >>> uri = "deltasql://sqlite/meta.db?table=events"
        >>> dk.follow("events", uri).version
        0
        >>> dk.DeltaTable(uri).count()
        1
    """
    store = store_at(location, storage_options)
    with using_table(uri, table) as (catalog, name):
        if find_table_at(catalog, store.url) == name:
            _followed(catalog, name)
        return import_table(
            store,
            catalog,
            table=name,
            history=history,
            outside_files=outside_files,
            progress=progress,
            hold=FOLLOWING,
        )


def sync(
    uri: CatalogOrUri,
    *,
    table: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    outside_files: bool = False,
    progress: ProgressOption = None,
) -> Synced:
    """Import the commits that other writers made to a followed table.

    Args:
        uri: the URI of the table, or a catalog.
        table: the table's name, if the URI has none.
        storage_options: of the table's object store, as deltalake takes them.
        outside_files: accept commits of a shallow clone, which name files of another
            location by absolute paths; such files are read, never deleted.
        progress: called with a `Progress` after each version that is in the catalog;
            True draws a bar.

    Returns:
        The newest version, and how many versions were taken in.

    Raises:
        DeltaError: The table isn't followed.
        MirrorError: The log has lost a version that the catalog hasn't taken in.

    Examples:
        >>> import deltalake
        >>> deltalake.write_deltalake("events", pa.table({"id": [1]}))
        >>> uri = "deltasql://sqlite/meta.db?table=events"
        >>> followed = dk.follow("events", uri)
        >>> deltalake.write_deltalake("events", pa.table({"id": [2]}), mode="append")
        >>> dk.sync(uri).version
        1
    """
    with using_table(uri, table) as (catalog, name), reporting(progress):
        head = _followed(catalog, name)
        store = open_store(head.location, storage_options)
        return _caught_up(catalog, name, store, outside_files)


def cut_over(
    uri: CatalogOrUri,
    *,
    table: str | None = None,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
    outside_files: bool = False,
    progress: ProgressOption = None,
) -> Synced:
    """End the following of a table: from now on commits go through the catalog.

    The other writers must have stopped, because a commit that they make later is
    foreign. If the log and the catalog differ, the table stays followed and a
    `MirrorError` names the differences.

    Args:
        uri: the URI of the table, or a catalog.
        table: the table's name, if the URI has none.
        deep: verify every version and the data files, not only the latest state.
        storage_options: of the table's object store, as deltalake takes them.
        outside_files: accept commits of a shallow clone, which name files of another
            location by absolute paths; such files are read, never deleted.
        progress: called with a `Progress` after each version that is in the catalog,
            and while the table is verified; True draws a bar.

    Returns:
        The newest version, and how many versions were taken in.

    Raises:
        DeltaError: The table isn't followed.
        ReadOnlyFeatureError: The table has a feature that this package can't write.
        MirrorError: The log and the catalog differ, or other writers commit without a
            pause.

    Examples:
        >>> import deltalake
        >>> deltalake.write_deltalake("events", pa.table({"id": [1]}))
        >>> uri = "deltasql://sqlite/meta.db?table=events"
        >>> followed = dk.follow("events", uri)
        >>> print(dk.cut_over(uri).hold)
        None
    """
    with using_table(uri, table) as (catalog, name), reporting(progress):
        head = _followed(catalog, name)
        # After the cut-over a table that isn't writable here would have no writer.
        head.check_writable()
        store = open_store(head.location, storage_options)
        versions = 0
        for _ in range(_ATTEMPTS):
            synced = _caught_up(catalog, name, store, outside_files)
            versions += synced.versions
            report = verify_table(catalog, name, store, deep=deep)
            if report.ok and set_hold(catalog, name, None, before=head.hold):
                return _synced(catalog, name, store, versions)
            if all(d.version <= synced.version for d in report.differences):
                raise MirrorError(f"{name} isn't cut over: {report}")
    raise MirrorError(
        f"{name} isn't cut over: other writers commit without a pause; try again"
    )


def _followed(catalog: Catalog, name: str) -> Head:
    """Return the head of a followed table; raise `DeltaError` for the catalog's own."""
    head = catalog.log(name).head()
    if head.read_only is None:
        raise DeltaError(
            f"{name}: the table is this catalog's own, so there is no other writer to "
            "follow; settle commits that bypassed the catalog with mirror.adopt(uri)"
        )
    return head


def _caught_up(
    catalog: Catalog, name: str, store: Store, outside_files: bool
) -> Synced:
    taken = adopt(catalog, table=name, store=store, outside_files=outside_files)
    return _synced(catalog, name, store, len(taken))


def _synced(catalog: Catalog, name: str, store: Store, versions: int) -> Synced:
    head, log = catalog.log(name).head(), list_log(store)
    if log.latest > head.version and head.version + 1 not in log.commits:
        raise MirrorError(
            f"{name}: the log lost version {head.version + 1} before the catalog took "
            "it in; detach the table, and follow it again"
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
