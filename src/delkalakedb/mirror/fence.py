"""Fence a table that is there already."""

from collections.abc import Mapping

from delkalakedb.catalog import Catalog, connect
from delkalakedb.mirror.publish import publish
from delkalakedb.model.actions import CommitInfo
from delkalakedb.model.codec import encode_struct
from delkalakedb.model.fencing import fenced, is_fenced
from delkalakedb.model.txnlog import Reads, Staged
from delkalakedb.uri import parse_uri, require_table

__all__ = ["fence", "fence_uri"]


def fence_uri(uri: str, *, storage_options: Mapping[str, str] | None = None) -> int:
    """Shut out writers that don't ask the catalog; the newest version in the log.

    Args:
        uri: the URI of a table.
        storage_options: of the table's object store, as deltalake takes them.
    """
    parsed = parse_uri(uri)
    with connect(parsed) as catalog:
        return fence(catalog, require_table(parsed), storage_options)


def fence(
    catalog: Catalog, name: str, storage_options: Mapping[str, str] | None = None
) -> int:
    """The same for an open catalog.

    What was ratified before is published first: a foreign commit is found while it can
    still be adopted.
    """
    publish(catalog, name, storage_options)
    state = catalog.log(name).state()
    if not is_fenced(state.protocol):
        protocol, metadata = fenced(state.protocol, state.metadata)
        info = {
            "operation": "UPGRADE PROTOCOL",
            "operationParameters": {"newProtocol": encode_struct(protocol).decode()},
        }
        actions = (CommitInfo(info), protocol, metadata)
        catalog.commit(Staged(name, actions, Reads(version=state.version)))
    return publish(catalog, name, storage_options)
