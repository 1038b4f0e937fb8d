"""Departure: how a table leaves the catalog, detached or dropped.

Detach publishes every version, writes a checkpoint of the newest one and verifies the
log before the catalog forgets the table; its files stay as a plain Delta table.

Drop publishes every version, too, unless the files are deleted as well. Then the log is
deleted first, so that a concurrent reader finds no table rather than a part of one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from delkalakedb.catalog import Catalog, CatalogOrUri, using_table
from delkalakedb.catalog.commit import Outbox
from delkalakedb.catalog.engine import event
from delkalakedb.catalog.load import (
    forget_table,
    forgetting,
    hold_mirror,
    locked_mirror,
)
from delkalakedb.catalog.read import Head, load_commits
from delkalakedb.clock import now_ms
from delkalakedb.errors import DeltaError, MirrorError, StorageError
from delkalakedb.mirror import unfence
from delkalakedb.mirror.checkpoint import write_checkpoint, write_last_checkpoint
from delkalakedb.mirror.publisher import (
    Stores,
    publish,
    publish_table,
    put_commit,
    stores_with,
)
from delkalakedb.mirror.verify import Report, verify_table
from delkalakedb.model.paths import LOG
from delkalakedb.model.rules.protocol import is_fenced
from delkalakedb.progress import ProgressOption, reporting
from delkalakedb.storage import (
    ObjectMeta,
    Store,
    delete_counted,
    open_store,
    real_location,
)

# Attempts to forget a table at the version that was verified.
_ATTEMPTS = 10
_Options = Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Detached:
    """A table that the catalog has forgotten, and the report on its log.

    Args:
        table: the table's name.
        location: where the table's files are.
        version: the table's newest version.
        report: the comparison of the log with the catalog before it forgot the table.

    Examples:
        >>> detached = dk.detach("deltasql://sqlite/meta.db?table=sales", dry_run=True)
        >>> detached.table, detached.version, detached.report.ok
        ('sales', 1, True)
    """

    table: str
    location: str
    version: int
    report: Report

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values.

        Returns:
            The values by field.

        Examples:
            >>> uri = "deltasql://sqlite/meta.db?table=sales"
            >>> dk.detach(uri, dry_run=True).to_dict()["report"]["ok"]
            True
        """
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {**values, "report": self.report.to_dict()}


def detach(
    uri: CatalogOrUri,
    *,
    table: str | None = None,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Detached:
    """Leave a plain, complete Delta table at the location; remove it from the catalog.

    If the log and the catalog differ, the catalog keeps the table and a `MirrorError`
    names the differences.

    Args:
        uri: the URI of a table, or a catalog.
        table: the table's name, if the URI has none.
        deep: verify every version and the data files, not only the latest state.
        storage_options: of the table's object store, as deltalake takes them.
        dry_run: only verify.

    Returns:
        The table's location and newest version, and the report on its log.

    Raises:
        TableNotFoundError: The catalog has no such table.
        MirrorError: The log and the catalog differ, or other writers commit without a
            pause.
        StorageError: The object store can't be reached.

    Examples:
        >>> detached = dk.detach("deltasql://sqlite/meta.db?table=sales")
        >>> dk.DeltaTable(detached.location).count()
        3
    """
    with using_table(uri, table) as (catalog, name):
        head = catalog.log(name).head()
        store = open_store(head.location, storage_options)
        if dry_run:
            report = _verified(catalog, name, store, deep)
            return Detached(name, head.location, head.version, report)
        if head.hold is not None:
            return _forgotten(catalog, head)
        version = publish(catalog, name, storage_options)
        ours = head.read_only is None
        if ours and is_fenced(head.protocol):
            # Verified before, so that a table that can't be detached stays fenced.
            _verified(catalog, name, store, deep)
            version = unfence(catalog, name, storage_options)
        for _ in range(_ATTEMPTS):
            if ours:
                _complete_log(catalog, name, store, version)
            report = _verified(catalog, name, store, deep)
            if forget_table(catalog, name, version, what="detach"):
                return Detached(name, head.location, version, report)
            version = publish(catalog, name, storage_options)
    raise MirrorError(
        f"{name} isn't detached: other writers commit without a pause; try again"
    )


def _forgotten(catalog: Catalog, head: Head) -> Detached:
    """Forget a held table at once, because its log belongs to other writers."""
    published, ratified, _ = catalog._mirror_state(head.name)
    forget_table(catalog, head.name, head.version, what="detach", published=False)
    report = Report(head.name, ratified, published, versions_checked=0)
    return Detached(head.name, head.location, head.version, report)


def _verified(catalog: Catalog, name: str, store: Store, deep: bool) -> Report:
    report = verify_table(catalog, name, store, deep=deep)
    if not report.ok:
        raise MirrorError(f"{name} isn't detached: {report}")
    return report


def _complete_log(catalog: Catalog, name: str, store: Store, version: int) -> None:
    mirror = Outbox(catalog._backend).load(name)
    if mirror.checkpoint_version < version:
        checkpoint = write_checkpoint(catalog, name, version, store, now_ms())
        write_last_checkpoint(store, checkpoint)
        Outbox(catalog._backend).mark_checkpoint(mirror, version)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A table that the catalog has forgotten.

    Args:
        table: the table's name.
        location: where the table's files are, or were.
        version: the table's newest version.
        unpublished_versions: how many versions aren't in the log.
        deleted_files: how many files were deleted.
        deleted_bytes: the size of the deleted files.

    Examples:
        >>> catalog = dk.connect("deltasql://sqlite/meta.db")
        >>> dropped = catalog.drop_table("sales", with_data=True)
        >>> dropped.version, dropped.deleted_files > 2
        (1, True)
    """

    table: str
    location: str
    version: int
    unpublished_versions: int = 0
    deleted_files: int = 0
    deleted_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values.

        Returns:
            The values by field.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> catalog.drop_table("sales").to_dict()["unpublished_versions"]
            0
        """
        return asdict(self)


def drop_table(
    catalog: Catalog,
    name: str,
    *,
    with_data: bool = False,
    force: bool = False,
    storage_options: _Options = None,
    progress: ProgressOption = None,
) -> Dropped:
    """Forget a table, and delete its files if `with_data` is set.

    Args:
        catalog: the table's catalog.
        name: the table's name.
        with_data: delete everything below the table's location, too; symbolic links are
            deleted, and their targets stay.
        force: forget the table even if some of its versions can't be published.
        storage_options: of the table's object store.
        progress: called with a `Progress` of the files deleted; True draws a bar.

    Returns:
        The version that the table had, and the number and size of deleted files.

    Raises:
        TableNotFoundError: The catalog has no such table.
        MirrorError: Some versions can't be published, and `force` isn't set.
        DeltaError: With `with_data`, another table lies below the table's location.

    Examples:
        >>> from delkalakedb.migrate import drop_table
        >>> catalog = dk.connect("deltasql://sqlite/meta.db")
        >>> drop_table(catalog, "sales").version
        1
    """
    if not with_data:
        return _forget(catalog, name, storage_options, complete=True, force=force)
    list_objects(catalog, name, storage_options)
    dropped = _forget(catalog, name, storage_options, complete=False, force=force)
    # Listed again, because writers may have added files since.
    found = _listed(dropped.location, storage_options)
    store = open_store(dropped.location, storage_options)
    with reporting(progress):
        delete_counted(store, [file.path for file in found], f"drop {name}")
    store.delete_remains()
    size_bytes = sum(file.size_bytes for file in found)
    return replace(dropped, deleted_files=len(found), deleted_bytes=size_bytes)


def list_objects(
    catalog: Catalog, name: str, storage_options: _Options = None
) -> list[ObjectMeta]:
    """List everything below a table's location, its log first.

    Raise `DeltaError` if another table lies below the location, and `ReadOnlyError` if
    the table isn't the catalog's own.
    """
    catalog.log(name).head().check_ours()
    location = catalog.table(name).location
    real = real_location(location)
    tables = [t for t in catalog.tables() if t.name != name]
    below = [t.name for t in tables if _is_below(real_location(t.location), real)]
    if below:
        raise DeltaError(
            f"{name}: its files can't be deleted, because {', '.join(below)} "
            f"{'lies' if len(below) == 1 else 'lie'} below {location}"
        )
    found = _listed(location, storage_options)
    for file in found:
        folder, log, _ = file.path.rpartition(f"/{LOG}/")
        if log:
            raise DeltaError(
                f"{name}: its files can't be deleted, because another Delta table lies "
                f"below {location} in {folder}"
            )
    return found


def _listed(location: str, options: _Options) -> list[ObjectMeta]:
    found = open_store(location, options).list_own()
    return sorted(found, key=lambda file: not f"{file.path}/".startswith(f"{LOG}/"))


def _is_below(location: str, above: str) -> bool:
    return location.startswith(f"{above.rstrip('/')}/")


def _forget(
    catalog: Catalog, name: str, options: _Options, *, complete: bool, force: bool
) -> Dropped:
    stores = stores_with(options)
    if complete:
        # Before the lock is taken, because writers wait while it is held.
        with _complaining(name, force):
            _publish(catalog, name, stores)
    with (
        hold_mirror(catalog, name),
        locked_mirror(catalog, name) as (session, mirror),
    ):
        published, ratified = mirror.published_version, mirror.ratified_version
        # The log of a held table belongs to other writers.
        if complete and published < ratified and mirror.hold is None:
            with _complaining(name, force):
                rest = load_commits(
                    catalog._backend, name, published, ratified, session
                )
                for commit in rest:
                    put_commit(stores(mirror), name, commit)
                    published = commit.head.version
        noted = event("drop", name, version=ratified)
        session.apply([*forgetting(mirror.table_id), noted])
    return Dropped(name, mirror.location, ratified, ratified - published)


def _publish(catalog: Catalog, name: str, stores: Stores) -> None:
    wait_s = catalog.settings.mirror.wait
    upto = Outbox(catalog._backend).load(name).ratified_version
    done = publish_table(catalog, name, stores, upto, wait_s=wait_s, early=True)
    if done.version < upto and done.mirror.hold is None:
        owner = done.mirror.lease_owner or "another process"
        raise MirrorError(f"{owner} is publishing it; try again")


@contextmanager
def _complaining(name: str, force: bool) -> Iterator[None]:
    """Raise a `MirrorError` about an incomplete log, unless `force` is set."""
    try:
        yield
    except (MirrorError, StorageError) as error:
        if not force:
            raise MirrorError(
                f"{name} isn't dropped: its log isn't complete, and can't be "
                f"completed: {error}. If you drop it by force (--force, or "
                "force=True), versions that aren't in the log are lost"
            ) from error
