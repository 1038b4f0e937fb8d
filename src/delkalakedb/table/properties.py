"""Table properties set and unset, each time as a commit of its own."""

from collections.abc import Mapping, Sequence

import msgspec

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.ratify import CLIENT
from delkalakedb.commits import commit
from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import CommitInfo, known
from delkalakedb.model.properties import check_changeable, parse_properties
from delkalakedb.model.txnlog import Reads, Staged
from delkalakedb.table.raw import SqlRawTable

__all__ = ["set_properties", "unset_properties"]

_Options = Mapping[str, str] | None


def set_properties(
    catalog: Catalog,
    name: str,
    properties: Mapping[str, str],
    storage_options: _Options = None,
) -> int:
    """Set properties of a table; the version that this made.

    Refuses values that can't be understood, names below `delta.` that nobody knows,
    and properties that aren't for people to change.
    """
    check_changeable(properties)
    parse_properties(dict(properties))
    table = SqlRawTable(catalog, name, None, storage_options)
    # Names of one's own are as good as Delta's, which are checked by now.
    table.set_table_properties(dict(properties), False)
    return table.version()


def unset_properties(
    catalog: Catalog,
    name: str,
    keys: Sequence[str],
    *,
    if_exists: bool = False,
    storage_options: _Options = None,
) -> int:
    """Take properties from a table, so that defaults apply; the version it is at.

    Args:
        catalog: where the table is.
        name: the table.
        keys: the properties.
        if_exists: it is fine if some aren't set.
        storage_options: of its object store.
    """
    check_changeable(keys)
    snapshot = catalog.snapshot(name)
    before = known(snapshot.metadata.configuration) or {}
    if (missing := sorted(set(keys) - before.keys())) and not if_exists:
        raise DeltaError(f"{name}: {', '.join(missing)} isn't set")
    if before.keys().isdisjoint(keys):
        return snapshot.version
    left = {key: value for key, value in before.items() if key not in keys}
    metadata = msgspec.structs.replace(snapshot.metadata, configuration=left)
    reads = Reads(version=snapshot.version, identity=snapshot.identity)
    staged = Staged(name, (_info(keys, if_exists=if_exists), metadata), reads)
    (done,) = commit(catalog, staged, storage_options=storage_options)
    return done.version


def _info(keys: Sequence[str], *, if_exists: bool) -> CommitInfo:
    """As Delta Spark says it."""
    properties = msgspec.json.encode(list(keys)).decode()
    return CommitInfo(
        {
            "operation": "UNSET TBLPROPERTIES",
            "operationParameters": {"properties": properties, "ifExists": if_exists},
            "engineInfo": CLIENT,
        }
    )
