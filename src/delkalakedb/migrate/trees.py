"""Trees of tables: each folder with a `_delta_log` is imported under its own name."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.load import find_table_at
from delkalakedb.errors import CatalogError, DeltalakeDBError, ProtocolError
from delkalakedb.migrate.importer import import_table
from delkalakedb.migrate.loader import choose_range
from delkalakedb.model.actions import Metadata, Protocol
from delkalakedb.model.paths import LOG
from delkalakedb.model.rules.protocol import check_adoptable, check_writable
from delkalakedb.progress import ProgressOption
from delkalakedb.settings import redact
from delkalakedb.storage import Store, canonical_location, open_store
from delkalakedb.storage.log import FileTxnLogReader, list_log

State = Literal[
    "imported", "caught up", "already there", "differs", "refused", "would import"
]


@dataclass(frozen=True, slots=True)
class Place:
    """A table's store, and its name in the catalog."""

    name: str
    store: Store


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of importing one table of a tree.

    `versions` and `num_files` count what the catalog has of the table; `newer` holds
    the versions that other writers made meanwhile.
    """

    name: str
    location: str
    state: State
    version: int | None = None
    versions: int | None = None
    num_files: int | None = None
    newer: tuple[int, ...] = ()
    seconds: float = 0.0
    message: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def find_tables(store: Store, folder: str = "") -> Iterator[str]:
    """Yield the paths of the tables below a location; hidden folders are left out."""
    names = store.folders(folder)
    if LOG in names:
        # Below a table lie partitions, never another table.
        yield folder
        return
    for name in names:
        if not name.startswith((".", "_")):
            yield from find_tables(store, f"{folder}/{name}" if folder else name)


def name_tables(paths: Iterable[str]) -> dict[str, str]:
    """Return a name for each path of a table.

    The name is that of the folder, or the whole path with dots for slashes if two
    folders have one name.
    """
    paths = list(paths)
    last = Counter(map(_last, paths))
    return {
        path: path.replace("/", ".") if last[name := _last(path)] > 1 else name
        for path in paths
    }


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def name_of(location: str) -> str:
    """Return the default name of a table at a location: the last part of its path."""
    parts = urlsplit(canonical_location(location))
    return unquote(_last(parts.path)) or parts.netloc


def find_places(
    catalog: Catalog,
    location: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    prefix: str = "",
) -> list[Place]:
    """Find the tables below a location; a table that the catalog has keeps its name.

    Args:
        catalog: the catalog that the tables will be in.
        location: a folder or a URL.
        storage_options: of the object store, as deltalake takes them.
        prefix: the beginning of each name.
    """
    root = open_store(location, storage_options)
    names = name_tables(find_tables(root))
    # The location itself may be a table.
    names = {path: name or name_of(location) for path, name in names.items()}
    stores = {path: open_store(_below(root, path), storage_options) for path in names}
    return [
        Place(find_table_at(catalog, store.url) or f"{prefix}{names[path]}", store)
        for path, store in stores.items()
    ]


def _below(root: Store, path: str) -> str:
    return f"{root.url}/{quote(path)}" if path else root.url


def import_place(
    catalog: Catalog,
    place: Place,
    *,
    history: bool = True,
    deep: bool = False,
    outside_files: bool = False,
    progress: ProgressOption = None,
) -> Outcome:
    """Import a table; return a refusal as an outcome, too."""
    started = time.monotonic()
    try:
        done = import_table(
            place.store,
            catalog,
            table=place.name,
            history=history,
            deep=deep,
            outside_files=outside_files,
            progress=progress,
        )
    except CatalogError:
        raise
    except DeltalakeDBError as error:
        return _refused(place, error, started)
    return Outcome(
        name=place.name,
        location=done.location,
        state=_state(done.ok, done.versions, done.adopted),
        version=done.version,
        versions=done.version - done.first_version + 1,
        num_files=done.num_files,
        newer=done.newer,
        seconds=_since(started),
        message=_read_only(catalog, place.name) if done.ok else str(done.report),
    )


def _read_only(catalog: Catalog, name: str) -> str | None:
    head = catalog.log(name).head()
    if head.hold is not None:
        return f"it is {head.hold}, and read-only here"
    return _unwritable(head.protocol, head.metadata)


def _unwritable(protocol: Protocol, metadata: Metadata) -> str | None:
    try:
        check_writable(protocol, metadata)
    except ProtocolError as error:
        return f"read-only here: {error}"
    return None


def _state(ok: bool, versions: int, adopted: int) -> State:
    if not ok:
        return "differs"
    if versions > adopted:
        return "imported"
    return "caught up" if adopted else "already there"


def preview(catalog: Catalog, place: Place, *, history: bool = True) -> Outcome:
    """Return what an import would do, as far as the log's metadata says."""
    started = time.monotonic()
    try:
        log = list_log(place.store)
        state = FileTxnLogReader(place.store).state()
        check_adoptable((state.protocol, state.metadata), None, None, state.version)
        first = choose_range(log, history=history).first
    except DeltalakeDBError as error:
        return _refused(place, error, started)
    name = find_table_at(catalog, place.store.url)
    newest = None if name is None else catalog.table(name).version
    return Outcome(
        name=place.name,
        location=place.store.url,
        state="already there" if newest == log.latest else "would import",
        version=log.latest,
        versions=log.latest - (first if newest is None else newest + 1) + 1,
        seconds=_since(started),
        message=_unwritable(state.protocol, state.metadata),
    )


def _refused(place: Place, error: Exception, started: float) -> Outcome:
    message = redact(str(error))
    return Outcome(
        place.name,
        place.store.url,
        "refused",
        seconds=_since(started),
        message=message,
    )


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)
