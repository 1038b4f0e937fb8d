"""Events: what was done to a catalog besides commits, as rows of its audit trail."""

import getpass
import socket
from contextlib import suppress

from delkalakedb.catalog.engine.backend import CLIENT, Actor, Backend, Run
from delkalakedb.clock import now_ms
from delkalakedb.errors import CatalogError
from delkalakedb.settings import redact


def actor_of(backend: Backend) -> Actor:
    """Return who this process is, for the audit trail."""
    return Actor(backend.db_user(), _os_user(), socket.gethostname(), CLIENT)


def event(
    what: str,
    table: str | None = None,
    *,
    version: int | None = None,
    detail: str | None = None,
) -> Run:
    """Return the statement that notes an event, for the transaction that makes it so.

    Args:
        what: what was done, such as `drop`.
        table: the table that it was done to.
        version: the table's newest version then.
        detail: more about it, for people.
    """
    params = {
        "now_ms": now_ms(),
        "event": what,
        "table_name": table,
        "version": version,
        "detail": None if detail is None else redact(detail).replace("\0", ""),
        "os_user": _os_user(),
        "host": socket.gethostname(),
        "client": CLIENT,
    }
    return Run("insert_event", params)


def note_event(backend: Backend, noted: Run) -> None:
    """Note an event that changed nothing in the catalog.

    A catalog that can't be written to, such as a replica, goes without.
    """
    with suppress(CatalogError), backend.writing(durable=False) as session:
        session.apply([noted])


def _os_user() -> str | None:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return None
