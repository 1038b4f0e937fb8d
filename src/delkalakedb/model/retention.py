"""How long a table's history is kept: the same rule for its log and its catalog."""

from delkalakedb.model.properties import TableProperties

__all__ = ["DAY_MS", "log_cutoff_ms", "midnight_ms", "tombstone_cutoff_ms"]

DAY_MS = 86_400_000


def midnight_ms(time_ms: int) -> int:
    """The midnight, in UTC, that a time's day began with."""
    return time_ms - time_ms % DAY_MS


def log_cutoff_ms(properties: TableProperties, now_ms: int) -> int | None:
    """The time since when every state of the table is kept; None: none may go."""
    if not properties.enable_expired_log_cleanup:
        return None
    return midnight_ms(now_ms - properties.log_retention_ms)


def tombstone_cutoff_ms(properties: TableProperties, now_ms: int) -> int:
    """The time of the newest removes whose tombstones have expired."""
    return now_ms - properties.deleted_file_retention_ms
