"""Table properties: each change is a commit."""

from collections.abc import Mapping, Sequence

import msgspec

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.commit import Conflicted
from delkalakedb.catalog.engine import CLIENT
from delkalakedb.deltalake.raw import SqlRawTable
from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import known
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.new_actions import new_commit_info
from delkalakedb.model.schema.properties import check_changeable, parse_properties
from delkalakedb.write import commit

_Options = Mapping[str, str] | None


def set_properties(
    catalog: Catalog,
    name: str,
    properties: Mapping[str, str],
    storage_options: _Options = None,
) -> int:
    """Set properties of a table; return the version of the commit.

    Raise an error for a value that can't be parsed, an unknown name below `delta.`, and
    a property that users can't change.
    """
    check_changeable(properties)
    parse_properties(dict(properties))
    table = SqlRawTable(catalog, name, None, storage_options)
    # Without delta-rs's check of names, because `delta.` names are checked above.
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
    """Unset properties of a table, so that defaults apply; return its version then.

    Args:
        catalog: the table's catalog.
        name: the table's name.
        keys: the properties.
        if_exists: ignore properties that aren't set.
        storage_options: of the table's object store.
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
    # As Delta Spark writes it.
    listed = msgspec.json.encode(list(keys)).decode()
    parameters = {"properties": listed, "ifExists": if_exists}
    info = new_commit_info("UNSET TBLPROPERTIES", parameters, engine_info=CLIENT)
    staged = Staged(name, (info, metadata), reads)
    done = commit(catalog, staged, storage_options=storage_options)
    if isinstance(done, Conflicted):
        raise done.error()
    return done[-1].version
