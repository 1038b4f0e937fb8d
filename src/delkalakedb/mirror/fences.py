"""Fences: shut out writers that bypass the catalog, or let them in again."""

from collections.abc import Callable, Mapping

from delkalakedb.catalog import Catalog, CatalogOrUri, using_table
from delkalakedb.catalog.commit import Committed
from delkalakedb.mirror.publisher import deliver, publish
from delkalakedb.model.actions import Metadata, Protocol, encode_struct
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.new_actions import new_commit_info
from delkalakedb.model.rules.protocol import DROP_FEATURE, fenced, is_fenced, unfenced

_Options = Mapping[str, str] | None


def fence(
    uri: CatalogOrUri, *, table: str | None = None, storage_options: _Options = None
) -> int:
    """Shut out writers that bypass the catalog.

    Ratified versions are published first, so that a foreign commit is found while it
    can still be adopted.

    Args:
        uri: the URI of a table, or a catalog.
        table: the table's name, if the URI has none.
        storage_options: of the table's object store, as deltalake takes them.

    Returns:
        The newest published version.

    Raises:
        TableNotFoundError: The catalog has no such table.
        DivergedError: The log has a commit that the catalog didn't ratify.

    Examples:
        >>> uri = "deltasql://sqlite/meta.db?table=sales"
        >>> dk.mirror.fence(uri)
        2
        >>> "catalogManaged" in dk.DeltaTable(uri).protocol().writer_features
        True
    """
    with using_table(uri, table) as (catalog, name):
        publish(catalog, name, storage_options)
        if not is_fenced(catalog.log(name).state().protocol):
            committed = _change(catalog, name, fenced, "UPGRADE PROTOCOL")
            deliver(catalog, [committed], storage_options, mode="inline")
        return catalog._mirror_state(name)[0]


def unfence(catalog: Catalog, name: str, storage_options: _Options = None) -> int:
    """Remove a table's fence; return the newest published version."""
    if is_fenced(catalog.log(name).state().protocol):
        _change(catalog, name, unfenced, DROP_FEATURE)
    return publish(catalog, name, storage_options)


def _change(
    catalog: Catalog,
    name: str,
    rule: Callable[[Protocol, Metadata], tuple[Protocol, Metadata]],
    operation: str,
) -> Committed:
    state = catalog.log(name).state()
    protocol, metadata = rule(state.protocol, state.metadata)
    said = {"newProtocol": encode_struct(protocol).decode()}
    info = new_commit_info(operation, said)
    actions = (info, protocol, metadata)
    staged = Staged(name, actions, Reads(version=state.version))
    (committed,) = catalog.commit(staged)
    # Only a commit with a `txn` action is ever skipped.
    assert isinstance(committed, Committed)
    return committed
