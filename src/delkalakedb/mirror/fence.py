"""Fence a table that is there already, or take its fence away."""

from collections.abc import Callable, Mapping

from delkalakedb.catalog import Catalog, connect
from delkalakedb.mirror.deliver import publish_now
from delkalakedb.mirror.publish import publish
from delkalakedb.model.actions import CommitInfo, Metadata, Protocol
from delkalakedb.model.codec import encode_struct
from delkalakedb.model.fencing import fenced, is_fenced, unfenced
from delkalakedb.model.protocol import DROP_FEATURE
from delkalakedb.model.txnlog import Reads, Staged
from delkalakedb.uri import parse_uri, require_table

__all__ = ["fence", "fence_uri", "unfence"]

_Options = Mapping[str, str] | None


def fence_uri(uri: str, *, storage_options: Mapping[str, str] | None = None) -> int:
    """Shut out writers that don't ask the catalog; the newest version in the log.

    Args:
        uri: the URI of a table.
        storage_options: of the table's object store, as deltalake takes them.
    """
    parsed = parse_uri(uri)
    name = require_table(parsed)
    with connect(parsed) as catalog:
        return fence(catalog, name, storage_options)


def fence(catalog: Catalog, name: str, storage_options: _Options = None) -> int:
    """The same for an open catalog.

    What was ratified before is published first: a foreign commit is found while it can
    still be adopted.
    """
    publish(catalog, name, storage_options)
    if not is_fenced(catalog.log(name).state().protocol):
        version = _change(catalog, name, fenced, "UPGRADE PROTOCOL")
        publish_now(catalog, {name: version}, storage_options)
    return catalog.mirror_state(name)[0]


def unfence(catalog: Catalog, name: str, storage_options: _Options = None) -> int:
    """Let other writers in again; the newest version in the log."""
    if is_fenced(catalog.log(name).state().protocol):
        _change(catalog, name, unfenced, DROP_FEATURE)
    return publish(catalog, name, storage_options)


def _change(
    catalog: Catalog,
    name: str,
    rule: Callable[[Protocol, Metadata], tuple[Protocol, Metadata]],
    operation: str,
) -> int:
    state = catalog.log(name).state()
    protocol, metadata = rule(state.protocol, state.metadata)
    said = {"newProtocol": encode_struct(protocol).decode()}
    info = CommitInfo({"operation": operation, "operationParameters": said})
    actions = (info, protocol, metadata)
    staged = Staged(name, actions, Reads(version=state.version))
    (done,) = catalog.commit(staged)
    return done.version
