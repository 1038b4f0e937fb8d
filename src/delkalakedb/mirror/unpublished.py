"""What is said of a commit that stands but couldn't be published, to log and caller."""

import logging
from collections.abc import Hashable, Iterable

from delkalakedb.catalog import Catalog
from delkalakedb.errors import DeltalakeDBError, DivergedError
from delkalakedb.telemetry import PublishWarning, log_event, tell_unpublished

__all__ = ["note_failure", "tell_all"]

_log = logging.getLogger("delkalakedb.mirror")
_RETRIED = (
    "It is published with the next commit to the table, by `deltasql mirror run`, or "
    "at once by `deltasql mirror retry`"
)
_STUCK = "Until then no version of the table is published"


def note_failure(name: str, version: int, error: Exception) -> PublishWarning:
    """Log that a version couldn't be published; return the warning for the caller."""
    known = isinstance(error, DeltalakeDBError)
    reason = str(error) if known else f"{type(error).__name__}: {error}"
    outlook = _STUCK if isinstance(error, DivergedError) else _RETRIED
    failure = PublishWarning(name, version, reason, outlook)
    if not known:
        # A mistake of ours: only its traceback says where.
        _log.error("%s: version %s: publishing failed", name, version, exc_info=error)
    values: dict[str, str | int] = {"table": name, "version": version}
    log_event(_log, logging.WARNING, str(failure), event="publish failed", **values)
    return failure


def tell_all(catalog: Catalog, failures: Iterable[PublishWarning]) -> None:
    """Warn the caller of every failure; where warnings are errors, raise the first."""
    raised: PublishWarning | None = None
    for failure in failures:
        try:
            tell_unpublished(_identity(catalog, failure.table), failure)
        except PublishWarning as error:
            raised = raised or error
    if raised is not None:
        raise raised


def _identity(catalog: Catalog, name: str) -> Hashable:
    """What tells a table from others, also of one of its name that is gone."""
    place = str(catalog.uri.catalog)
    try:
        return place, name, catalog.log(name).head().metadata.id
    except DeltalakeDBError:
        # The database may be what has failed.
        return place, name
