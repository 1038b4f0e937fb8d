"""Drop: the catalog forgets a table; its files stay, or go after that.

What stays is a plain Delta table, since all of it is in its log by then. What goes is
all that lies below its location, the log first: whoever looks meanwhile finds no table
rather than half of one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.adopt import hold_mirror
from delkalakedb.catalog.commits import load_commits
from delkalakedb.catalog.outbox import Outbox
from delkalakedb.catalog.staging import forgetting, locked_mirror
from delkalakedb.errors import DeltaError, MirrorError, StorageError
from delkalakedb.mirror.publish import (
    Stores,
    publish_table,
    put_commit,
    stores_with,
)
from delkalakedb.storage import ObjectMeta, Store, open_store
from delkalakedb.storage.segment import LOG

__all__ = ["Dropped", "drop_table", "list_objects"]

_AT_ONCE = 1000
_Options = Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A table that the catalog has forgotten.

    Args:
        table: its name.
        location: where its files are, or were.
        version: its newest version.
        unpublished_versions: how many of its versions aren't in its log.
        deleted_files: how many files were deleted.
        deleted_bytes: how large they were.
    """

    table: str
    location: str
    version: int
    unpublished_versions: int = 0
    deleted_files: int = 0
    deleted_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return asdict(self)


def drop_table(
    catalog: Catalog,
    name: str,
    *,
    with_data: bool = False,
    force: bool = False,
    storage_options: _Options = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Dropped:
    """Forget a table, and delete its files if that is asked.

    Args:
        catalog: where the table is.
        name: the table.
        with_data: delete all that lies below its location, too; symbolic links go,
            and what is behind them stays.
        force: forget it even if versions of it can't be published.
        storage_options: of its object store.
        progress: called with the number of files deleted so far, and of all.
    """
    if not with_data:
        return _forget(catalog, name, storage_options, publish=True, force=force)
    list_objects(catalog, name, storage_options)
    dropped = _forget(catalog, name, storage_options, publish=False, force=force)
    # Again: its writers may have gone on until now.
    found = _listed(dropped.location, storage_options)
    _delete(open_store(dropped.location, storage_options), found, progress)
    size_bytes = sum(file.size_bytes for file in found)
    return replace(dropped, deleted_files=len(found), deleted_bytes=size_bytes)


def list_objects(
    catalog: Catalog, name: str, storage_options: _Options = None
) -> list[ObjectMeta]:
    """All that lies below a table's location, its log first.

    A location that other tables share is refused, and a table that others write.
    """
    catalog.log(name).head().check_ours()
    location = catalog.table(name).location
    below = [t.name for t in catalog.tables() if _is_below(t.location, location)]
    if below:
        raise DeltaError(
            f"{name}: its files can't be deleted, since {', '.join(below)} "
            f"{'lies' if len(below) == 1 else 'lie'} below {location}"
        )
    found = _listed(location, storage_options)
    for file in found:
        folder, log, _ = file.path.rpartition(f"/{LOG}/")
        if log:
            raise DeltaError(
                f"{name}: its files can't be deleted, since another Delta table lies "
                f"below {location} in {folder}"
            )
    return found


def _listed(location: str, options: _Options) -> list[ObjectMeta]:
    found = open_store(location, options).list_own()
    return sorted(found, key=lambda file: not f"{file.path}/".startswith(f"{LOG}/"))


def _is_below(location: str, above: str) -> bool:
    return location != above and location.startswith(f"{above.rstrip('/')}/")


def _forget(
    catalog: Catalog, name: str, options: _Options, *, publish: bool, force: bool
) -> Dropped:
    stores = stores_with(options)
    if publish:
        # Most of it while others go on: for the rest they have to wait.
        with _complaining(name, force):
            _publish(catalog, name, stores)
    with (
        hold_mirror(catalog, name),
        locked_mirror(catalog, name) as (session, mirror),
    ):
        published, ratified = mirror.published_version, mirror.ratified_version
        # Others write the log of a table that is held, and see to it.
        if publish and published < ratified and mirror.hold is None:
            with _complaining(name, force):
                rest = load_commits(catalog.backend, name, published, ratified, session)
                for commit in rest:
                    put_commit(stores(mirror), name, commit)
                    published = commit.head.version
        session.apply(forgetting(mirror.table_id))
    return Dropped(name, mirror.location, ratified, ratified - published)


def _publish(catalog: Catalog, name: str, stores: Stores) -> None:
    wait_s = catalog.settings.mirror.wait
    upto = Outbox(catalog.backend).load(name).ratified_version
    done = publish_table(catalog, name, stores, upto, wait_s=wait_s, early=True)
    if done.version < upto and done.mirror.hold is None:
        owner = done.mirror.lease_owner or "someone"
        raise MirrorError(f"{owner} is at work on it; try again")


@contextmanager
def _complaining(name: str, force: bool) -> Iterator[None]:
    """Say what an incomplete log means, or go on by force."""
    try:
        yield
    except (MirrorError, StorageError) as error:
        if not force:
            raise MirrorError(
                f"{name} isn't dropped: its log isn't complete, and can't be "
                f"completed: {error}. Dropped by force, what isn't in the log is lost"
            ) from error


def _delete(
    store: Store, files: Sequence[ObjectMeta], progress: Callable[[int, int], None]
) -> None:
    for start in range(0, len(files), _AT_ONCE):
        part = files[start : start + _AT_ONCE]
        store.delete_own(file.path for file in part)
        progress(start + len(part), len(files))
    store.delete_remains()
