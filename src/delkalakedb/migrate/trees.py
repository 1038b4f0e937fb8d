"""Trees of tables: every folder with a `_delta_log` is imported, under its own name."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.staging import find_table_at
from delkalakedb.errors import CatalogError, DeltalakeDBError, ProtocolError
from delkalakedb.migrate.importing import ImportProgress, import_into
from delkalakedb.migrate.source import choose_source
from delkalakedb.model.actions import Metadata, Protocol
from delkalakedb.model.protocol import check_adoptable, check_writable
from delkalakedb.redaction import redact
from delkalakedb.storage import FileTxnLogReader, Store, canonical_location, open_store
from delkalakedb.storage.segment import LOG, list_log

__all__ = [
    "Outcome",
    "Place",
    "find_places",
    "find_tables",
    "import_place",
    "name_of",
    "name_tables",
    "preview",
]

State = Literal[
    "imported", "caught up", "already there", "differs", "refused", "would import"
]


@dataclass(frozen=True, slots=True)
class Place:
    """A table that lies somewhere, and what it is called in the catalog."""

    name: str
    store: Store


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one table of a tree.

    `versions` and `num_files` are those that the catalog has of it; `newer` the
    versions that others wrote meanwhile.
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
        """A dictionary of JSON values."""
        return asdict(self)


def find_tables(store: Store, folder: str = "") -> Iterator[str]:
    """The paths of the tables below a location, in order; hidden folders have none."""
    names = store.folders(folder)
    if LOG in names:
        # Partitions lie below a table, never another table.
        yield folder
        return
    for name in names:
        if not name.startswith((".", "_")):
            yield from find_tables(store, f"{folder}/{name}" if folder else name)


def name_tables(paths: Iterable[str]) -> dict[str, str]:
    """Names for the tables at paths: a folder's own, or the whole path's with dots
    where two folders are called the same."""
    paths = list(paths)
    last = Counter(path.rsplit("/", 1)[-1] for path in paths)
    return {
        path: name if last[name := path.rsplit("/", 1)[-1]] == 1 else _dotted(path)
        for path in paths
    }


def _dotted(path: str) -> str:
    return path.replace("/", ".")


def name_of(location: str) -> str:
    """What a table at a location is called, unless it is given a name."""
    parts = urlsplit(canonical_location(location))
    return unquote(parts.path.rsplit("/", 1)[-1]) or parts.netloc


def find_places(
    catalog: Catalog,
    location: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    prefix: str = "",
) -> list[Place]:
    """The tables below a location; one that the catalog has keeps its name.

    Args:
        catalog: where they will be.
        location: a folder or a URL.
        storage_options: of the object store, as deltalake takes them.
        prefix: what the names begin with.
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
    progress: Callable[[ImportProgress], None] | None = None,
) -> Outcome:
    """Import a table; that it is refused is an outcome, too."""
    started = time.monotonic()
    try:
        done = import_into(
            catalog,
            place.name,
            place.store,
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
    """What an import would do, as far as the log's metadata tells."""
    started = time.monotonic()
    try:
        log = list_log(place.store)
        state = FileTxnLogReader(place.store).state()
        check_adoptable((state.protocol, state.metadata), None, None, state.version)
        first = choose_source(log, history=history).first
    except DeltalakeDBError as error:
        return _refused(place, error, started)
    newest = _newest(catalog, place)
    return Outcome(
        name=place.name,
        location=place.store.url,
        state="already there" if newest == log.latest else "would import",
        version=log.latest,
        versions=log.latest - (first if newest is None else newest + 1) + 1,
        seconds=_since(started),
        message=_unwritable(state.protocol, state.metadata),
    )


def _newest(catalog: Catalog, place: Place) -> int | None:
    """The newest version that the catalog has of what lies there."""
    name = find_table_at(catalog, place.store.url)
    return None if name is None else catalog.table(name).version


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
