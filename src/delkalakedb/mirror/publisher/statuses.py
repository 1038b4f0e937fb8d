"""How far each table's mirror is behind, for people and for monitoring."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from delkalakedb.catalog import Catalog, CatalogOrUri, uri_of, using_catalog
from delkalakedb.catalog.commit import (
    Mirror,
    MirrorState,
    Outbox,
    load_reconcilers,
)
from delkalakedb.model.display import format_span
from delkalakedb.model.markup import Listing, StateWord
from delkalakedb.model.times import from_ms


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """A table's mirror.

    Args:
        table: the table's name.
        location: where its log is.
        ratified_version: the newest version in the catalog.
        published_version: the newest version in the log; -1 for none.
        versions_behind: how many versions wait to be published.
        seconds_behind: how long the oldest unpublished version has been waiting.
        state: `published`, `pending`, `failed` (to be retried), `diverged` (a writer
            bypassed the catalog, and publishing has stopped), or `held` (the table is
            followed here, or another catalog has it).
        attempts: failures in a row.
        last_error: the message of the last failure.
        next_try_ms: the time of the next attempt, in milliseconds since the epoch.
        checkpoint_version: the newest version with a checkpoint; -1 for none.

    Examples:
        >>> (status,) = dk.mirror.status("deltasql://sqlite/meta.db")
        >>> status.state, status.published_version, status.versions_behind
        ('published', 1, 0)
    """

    table: str
    location: str
    ratified_version: int
    published_version: int
    versions_behind: int
    seconds_behind: float
    state: MirrorState
    attempts: int
    last_error: str | None
    next_try_ms: int | None
    checkpoint_version: int

    @property
    def next_try(self) -> datetime | None:
        """The time of the next attempt after a failure, in UTC."""
        return None if self.next_try_ms is None else from_ms(self.next_try_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values.

        Returns:
            The values by field.

        Examples:
            >>> (status,) = dk.mirror.status("deltasql://sqlite/meta.db")
            >>> status.to_dict()["state"]
            'published'
        """
        return asdict(self)


class Statuses(Listing[MirrorStatus]):
    """The mirrors of several tables: a list that a notebook shows as a table."""

    @staticmethod
    def _row(item: MirrorStatus) -> Mapping[str, object]:
        return {
            "table": item.table,
            "state": StateWord(item.state),
            "version": item.ratified_version,
            "published": item.published_version,
            "behind": item.versions_behind,
            "for": format_span(item.seconds_behind) if item.versions_behind else None,
            "last error": item.last_error,
        }


def status(uri: CatalogOrUri, table: str | None = None) -> list[MirrorStatus]:
    """Return the mirror of a table, or of every table of a catalog.

    Args:
        uri: the URI of a table, or a catalog.
        table: the table's name, if the URI has none; all tables by default.

    Returns:
        The status of each mirror, sorted by the table's name.

    Raises:
        TableNotFoundError: The catalog has no such table.

    Examples:
        >>> uri = "deltasql://sqlite/meta.db"
        >>> [(status.table, status.state) for status in dk.mirror.status(uri)]
        [('sales', 'published')]
    """
    table = table or uri_of(uri).table
    with using_catalog(uri) as catalog:
        outbox = Outbox(catalog._backend)
        mirrors = outbox.load_all() if table is None else [outbox.load(table)]
        return Statuses(map(status_of, mirrors))


def absence(catalog: Catalog) -> str | None:
    """Return that no reconciler runs, if only a reconciler would publish."""
    if catalog.settings.mirror.mode != "external":
        return None
    seen = load_reconcilers(catalog._backend)
    if any(one.runs for one in seen):
        return None
    last = "none was seen in the last day"
    if seen:
        last = f"the last one, on {seen[0].host}, was seen {seen[0].silent_ms // 1000}"
        last += " s ago"
    return f"mirror.mode is external, but no reconciler runs: {last}"


def status_of(mirror: Mirror) -> MirrorStatus:
    """Return a mirror's status at the time when it was loaded."""
    now_ms, since_ms = mirror.now_ms, mirror.waiting_since_ms
    behind = mirror.ratified_version - mirror.published_version
    since_ms = now_ms if since_ms is None else since_ms
    return MirrorStatus(
        table=mirror.name,
        location=mirror.location,
        ratified_version=mirror.ratified_version,
        published_version=mirror.published_version,
        versions_behind=behind,
        seconds_behind=max(0.0, (now_ms - since_ms) / 1000) if behind else 0.0,
        state=mirror.condition,
        attempts=mirror.attempts,
        last_error=mirror.last_error,
        next_try_ms=mirror.next_try_ms,
        checkpoint_version=mirror.checkpoint_version,
    )
