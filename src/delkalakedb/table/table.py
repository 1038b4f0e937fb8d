"""`DeltaTable` and `write_deltalake` for `deltasql://` URIs.

Any other URI or path goes to deltalake itself, untouched.
"""

from functools import cache
from typing import Any

import deltalake
import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler

from delkalakedb.catalog import Catalog, connect
from delkalakedb.catalog.backend import load_backend
from delkalakedb.errors import DeltaError, TableExistsError, TableNotFoundError
from delkalakedb.model.txnlog import Reads, Staged, State
from delkalakedb.storage import canonical_location
from delkalakedb.table.raw import SqlRawTable
from delkalakedb.transaction import commit
from delkalakedb.uri import Uri, is_deltasql, parse_uri, require_table
from delkalakedb.workspace import stage_append

__all__ = ["DeltaTable", "write_deltalake"]

_OF_THE_LOG = frozenset({"catalogManaged", "v2Checkpoint", "vacuumProtocolCheck"})


class DeltaTable(deltalake.DeltaTable):
    """A deltalake `DeltaTable` whose metadata comes from the catalog."""

    def __init__(
        self,
        table_uri: str,
        version: int | None = None,
        storage_options: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        if not is_deltasql(table_uri):
            super().__init__(table_uri, version, storage_options, **options)
            return
        uri = parse_uri(table_uri)
        self._storage_options = storage_options
        self._catalog_uri = uri
        self._table = SqlRawTable(  # type: ignore[assignment]
            _catalog(uri.catalog), require_table(uri), version, storage_options
        )

    @property
    def catalog_uri(self) -> str:
        """The `deltasql://` URI, without credentials."""
        return str(self._catalog_uri)

    def to_pyarrow_dataset(self, *args: Any, **options: Any) -> Any:
        """The table as a `pyarrow.dataset.Dataset`."""
        raw: Any = self._table
        if options.get("filesystem") is None and isinstance(raw, SqlRawTable):
            handler = DeltaStorageHandler(
                self.table_uri,
                self._storage_options,
                raw.get_add_file_sizes(),
            )
            options["filesystem"] = pa_fs.PyFileSystem(handler)
        return _Scan(self).to_pyarrow_dataset(*args, **options)


class _Scan(deltalake.DeltaTable):
    """The table as its files have it: features of its log are none of a scan's."""

    def __init__(self, table: deltalake.DeltaTable) -> None:
        self.__dict__.update(vars(table))

    def protocol(self) -> Any:
        """The protocol without the features that files know nothing of."""
        protocol = super().protocol()
        features = protocol.reader_features
        if features is not None:
            features = [name for name in features if name not in _OF_THE_LOG]
        return protocol._replace(reader_features=features)


def write_deltalake(
    table_or_uri: Any, data: Any, *, mode: Any = "error", **options: Any
) -> None:
    """Append to a table of the catalog, creating it on the first write."""
    if isinstance(table_or_uri, DeltaTable) and hasattr(table_or_uri, "_catalog_uri"):
        table_or_uri = table_or_uri._catalog_uri
    elif not is_deltasql(table_or_uri):
        deltalake.write_deltalake(table_or_uri, data, mode=mode, **options)
        return
    else:
        table_or_uri = parse_uri(table_or_uri)
    if mode not in ("append", "error", "ignore"):
        raise DeltaError(f"mode={mode!r} isn't available for deltasql:// tables yet")
    _append(table_or_uri, data, mode, options)


def _append(uri: Uri, data: Any, mode: str, options: dict[str, Any]) -> None:
    name = require_table(uri)
    catalog = _catalog(uri.catalog)
    state = _load_state(catalog, name)
    if state is not None and mode == "error":
        raise TableExistsError(f"{name}: A table already exists at {uri}")
    if state is not None and mode == "ignore":
        return
    if state is None:
        location = canonical_location(uri.location or catalog.default_location(name))
        actions = stage_append(location, None, data, mode="append", **options)
        staged = Staged(name, actions, location=location)
    else:
        location = catalog.table(name).location
        actions = stage_append(location, state, data, mode="append", **options)
        staged = Staged(name, actions, Reads(version=state.version))
    commit(catalog, staged)


def _load_state(catalog: Catalog, name: str) -> State | None:
    try:
        return catalog.log(name).state()
    except TableNotFoundError:
        return None


def _catalog(uri: Uri) -> Catalog:
    # A relative path names another database in another working directory.
    return _opened(uri, load_backend(uri.engine).identity(uri))


@cache
def _opened(uri: Uri, identity: tuple[object, ...]) -> Catalog:
    return connect(uri)
