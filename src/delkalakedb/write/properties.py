"""Table properties: each change is a commit."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.engine import CLIENT
from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import known
from delkalakedb.model.new_actions import new_commit_info
from delkalakedb.model.schema.properties import check_changeable, check_values
from delkalakedb.write.committer import perform
from delkalakedb.write.engines import InPlace, Work
from delkalakedb.write.engines.deltars import IN_PRIVATE, DeltaRs, split_properties
from delkalakedb.write.operation import Operation, Target

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
    given, ours = split_properties(dict(properties))

    def change(raw: Any) -> None:
        # Without delta-rs's check of names, because `delta.` names are checked above.
        raw.set_table_properties(given, False, post_commithook_properties=IN_PRIVATE)

    operation = Operation("set properties", DeltaRs(change, properties=ours))
    return _version(catalog, name, operation, storage_options)


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

    operation = Operation("unset properties", InPlace(unset))
    return _version(catalog, name, operation, storage_options)


def _version(
    catalog: Catalog, name: str, operation: Operation[None], storage_options: _Options
) -> int:
    """Commit the operation, unless it changes nothing; return the table's version."""
    snapshot = catalog.snapshot(name)
    _, version = perform(catalog, snapshot, operation, storage_options=storage_options)
    return snapshot.version if version is None else version
