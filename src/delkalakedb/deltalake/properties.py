"""Table properties: each change is a commit."""

from collections.abc import Mapping, Sequence

import msgspec

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.engine import CLIENT
from delkalakedb.deltalake.raw import SqlRawTable
from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import known
from delkalakedb.model.new_actions import new_commit_info
from delkalakedb.model.schema.properties import check_changeable, check_values
from delkalakedb.write import Operation, Target, perform
from delkalakedb.write.engines import InPlace, Work

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
    check_values(properties)
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
    # As Delta Spark writes it.
    listed = msgspec.json.encode(list(keys)).decode()
    parameters = {"properties": listed, "ifExists": if_exists}

    def unset(target: Target) -> Work[None]:
        metadata = target.base.metadata
        before = known(metadata.configuration) or {}
        if (missing := sorted(set(keys) - before.keys())) and not if_exists:
            raise DeltaError(f"{name}: {', '.join(missing)} isn't set")
        if before.keys().isdisjoint(keys):
            return Work(None)
        left = {key: value for key, value in before.items() if key not in keys}
        changed = msgspec.structs.replace(metadata, configuration=left)
        info = new_commit_info("UNSET TBLPROPERTIES", parameters, engine_info=CLIENT)
        return Work(None, [[info, changed]])

    snapshot = catalog.snapshot(name)
    operation = Operation("unset properties", InPlace(unset))
    _, version = perform(catalog, snapshot, operation, storage_options=storage_options)
    return snapshot.version if version is None else version
