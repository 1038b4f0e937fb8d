"""Detach: a table leaves the catalog and goes on as a plain Delta table.

All of it is in its log by then, with a checkpoint of the newest version, and verified.
Only after that does the catalog forget it; its files stay where they are.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from delkalakedb.catalog import Catalog, connect
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.outbox import Outbox
from delkalakedb.catalog.staging import forget_table
from delkalakedb.errors import MirrorError
from delkalakedb.mirror.checkpoint import write_checkpoint
from delkalakedb.mirror.fence import unfence
from delkalakedb.mirror.last_checkpoint import write_last_checkpoint
from delkalakedb.mirror.publish import publish
from delkalakedb.mirror.report import Report
from delkalakedb.mirror.verify import verify
from delkalakedb.model.fencing import is_fenced
from delkalakedb.storage import Store, open_store
from delkalakedb.uri import Uri, parse_uri, require_table

__all__ = ["Detached", "detach", "detach_from"]

_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Detached:
    """A table that the catalog has forgotten, and where it is."""

    table: str
    location: str
    version: int
    report: Report

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {**values, "report": self.report.to_dict()}


def detach(
    uri: str | Uri,
    *,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Detached:
    """Leave a plain, complete Delta table at the same place, and forget it.

    Where the log and the catalog don't agree, nothing is forgotten and a `MirrorError`
    says on what.

    Args:
        uri: the URI of a table.
        deep: verify every version and the data files, not only the latest state.
        storage_options: of the table's object store, as deltalake takes them.
    """
    parsed = parse_uri(uri) if isinstance(uri, str) else uri
    name = require_table(parsed)
    with connect(parsed) as catalog:
        return detach_from(catalog, name, deep=deep, storage_options=storage_options)


def detach_from(
    catalog: Catalog,
    name: str,
    *,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Detached:
    """The same for an open catalog; `dry_run` only verifies."""
    head = catalog.log(name).head()
    store = open_store(head.location, storage_options)
    if dry_run:
        report = _verified(catalog, name, store, deep)
        return Detached(name, head.location, head.version, report)
    if head.hold is not None:
        return _forgotten(catalog, head)
    version = publish(catalog, name, storage_options)
    ours = head.read_only is None
    if ours and is_fenced(head.protocol):
        # Looked at first: what can't be detached stays fenced.
        _verified(catalog, name, store, deep)
        version = unfence(catalog, name, storage_options)
    for _ in range(_ATTEMPTS):
        if ours:
            _complete_log(catalog, name, store, version)
        report = _verified(catalog, name, store, deep)
        if forget_table(catalog, name, version):
            return Detached(name, head.location, version, report)
        version = publish(catalog, name, storage_options)
    raise MirrorError(f"{name} isn't detached: others write to it without a pause")


def _forgotten(catalog: Catalog, head: Head) -> Detached:
    """Others write the log of a table that is held, and see to it."""
    published, ratified, _ = catalog.mirror_state(head.name)
    forget_table(catalog, head.name, head.version, published=False)
    report = Report(head.name, ratified, published, versions_checked=0)
    return Detached(head.name, head.location, head.version, report)


def _verified(catalog: Catalog, name: str, store: Store, deep: bool) -> Report:
    report = verify(catalog, name, store, deep=deep)
    if not report.ok:
        raise MirrorError(f"{name} isn't detached: {report}")
    return report


def _complete_log(catalog: Catalog, name: str, store: Store, version: int) -> None:
    mirror = Outbox(catalog.backend).load(name)
    if mirror.checkpoint_version < version:
        now_ms = int(time.time() * 1000)
        checkpoint = write_checkpoint(catalog, name, version, store, now_ms)
        write_last_checkpoint(store, checkpoint)
        Outbox(catalog.backend).mark_checkpoint(mirror, version)
