"""Staged tables: written in many transactions, shown in one, or taken up again.

Until it is shown a table has no current version, a name that no URI can have and no
place in the outbox: nothing else sees it. Who writes it has a number; who comes later
takes another one, and what the first writes from then on is refused.
"""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from delkalakedb.catalog.backend import Row, Run, Session, Write
from delkalakedb.catalog.catalog import Catalog
from delkalakedb.catalog.head import FILES_PER_TABLE, Head, parse_head
from delkalakedb.catalog.names import check_place
from delkalakedb.catalog.outbox import Mirror, find_mirror
from delkalakedb.catalog.transaction import lock_queries
from delkalakedb.errors import CatalogNotFoundError, MirrorError, TableExistsError
from delkalakedb.model.codec import encode_struct
from delkalakedb.model.txnlog import Staged

__all__ = [
    "StagedTable",
    "find_table_at",
    "forget_table",
    "forgetting",
    "locked_mirror",
]

_FORGET = (
    "forget_versions",
    "forget_metadata",
    "forget_protocols",
    "forget_txns",
    "forget_domains",
    "forget_cdc_files",
    "forget_mirror",
    "forget_number_stats",
    "forget_text_stats",
    "forget_files",
    "forget_table",
)
_METADATA = 15


def find_table_at(catalog: Catalog, location: str) -> str | None:
    """The name of the table at a location; one that is only staged has none."""
    try:
        with catalog.backend.reading() as session:
            rows = session.query("load_staged", {"location": location})
    except CatalogNotFoundError:
        return None
    return str(rows[0][1]) if rows and rows[0][4] >= 0 else None


class StagedTable:
    """A table that is being written.

    `head` is how far it has come, None where nothing is written yet; its version is
    the one before the first while that isn't there.
    """

    def __init__(self, catalog: Catalog, name: str, location: str, source: str) -> None:
        """Begin, or go on where the last one stopped.

        Args:
            catalog: where the table will be.
            name: what it will be called.
            location: where its log is.
            source: tells what is staged; what was staged of another is dropped.
        """
        self._catalog = catalog
        self.name = name
        self._token = random.getrandbits(62)
        check_place(name, location)
        catalog.init()
        # A control character: no name in a URI has one.
        label = f"\x1f{source}\x1f{name}"
        stale = self._begin(label, location)
        if stale is not None:
            self._drop(stale)
            self._begin(label, location)

    def _begin(self, label: str, location: str) -> int | None:
        """Take the staged table, or make it; the id of one that is in the way."""
        with self._creating() as session:
            self._check_name(session)
            rows = session.query("load_staged", {"location": location})
            if rows and rows[0][1] != label:
                _check_staged(self.name, rows[0])
                return int(rows[0][0])
            if not rows:
                rows = [_new(session, label, location)]
            self.table_id = rows[0][0]
            take = {"table_id": self.table_id, "token": self._token}
            session.query("take_staged", take)
            self.head = _parse(session, rows[0])
        return None

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction for the next part."""
        # Lost by a power cut, it is written again: `show` makes all of it durable.
        with self._catalog.backend.writing(durable=False) as session:
            yield session

    def write(self, session: Session, head: Head, writes: Sequence[Write]) -> None:
        """Write a part of the table, which leaves it at a head."""
        self._check_held(session.query("move_staged", self._params(head)))
        session.apply(writes)
        self.head = head

    def show(
        self,
        checkpoint_version: int,
        hold: str | None = None,
        *,
        published: int | None = None,
    ) -> None:
        """Make it a table of the catalog, published so far or, by default, wholly."""
        assert self.head is not None
        version = self.head.version
        key = {"table_id": self.table_id, "version": version}
        now_ms = int(time.time() * 1000)
        shown = {"name": self.name, "now_ms": now_ms, "hold": hold}
        mirror = key | {"checkpoint_version": checkpoint_version}
        if published is not None:
            mirror |= {"version": published}
        with self._creating() as session:
            self._check_name(session)
            params = key | shown | {"token": self._token}
            self._check_held(session.query("show_staged", params))
            session.apply([Run("insert_published", mirror)])

    def drop(self) -> None:
        """Forget what was staged."""
        self._drop(self.table_id)

    def _drop(self, table_id: int) -> None:
        with self._creating() as session:
            # Taken first: whoever is at work on it has ended by then, or is refused.
            take = {"table_id": table_id, "token": self._token}
            if session.query("take_staged", take):
                session.apply(forgetting(table_id))

    @contextmanager
    def _creating(self) -> Iterator[Session]:
        """A transaction in which nobody else creates a table."""
        backend = self._catalog.backend
        with backend.writing() as session:
            if locks := lock_queries(backend, [Staged(self.name, (), location="")]):
                session.query_many(locks)
            yield session

    def _check_name(self, session: Session) -> None:
        if session.query("find_table", {"name": self.name}):
            raise TableExistsError(
                f"{self.name}: the catalog has a table of that name elsewhere"
            )

    def _check_held(self, rows: list[Row]) -> None:
        if not rows:
            raise MirrorError(
                f"{self.name}: another process imports the table; this one stops"
            )

    def _params(self, head: Head) -> dict[str, object]:
        return {
            "table_id": self.table_id,
            "token": self._token,
            "first_version": head.first_version,
            "next_file": head.next_file,
            "timestamp_ms": head.timestamp_ms,
            "num_files": head.num_files,
            "size_bytes": head.size_bytes,
            "stat_columns": msgspec.json.encode(head.stat_columns).decode(),
            "metadata_version": head.metadata_version,
            "metadata": encode_struct(head.metadata).decode(),
            "protocol_version": head.protocol_version,
            "protocol": encode_struct(head.protocol).decode(),
        }


@contextmanager
def locked_mirror(catalog: Catalog, name: str) -> Iterator[tuple[Session, Mirror]]:
    """A table's mirror in a transaction; until its end nobody commits to the table."""
    backend = catalog.backend
    with backend.writing() as session:
        if locks := lock_queries(backend, [Staged(name, ())]):
            session.query_many(locks)
        yield session, find_mirror(session, name)


def forget_table(
    catalog: Catalog, name: str, version: int, *, published: bool = True
) -> bool:
    """Forget a table, if it is at that version still; its files stay.

    Args:
        catalog: where the table is.
        name: the table.
        version: what was seen of it.
        published: only if all of it is in the log.
    """
    with locked_mirror(catalog, name) as (session, mirror):
        same = mirror.ratified_version == version
        if published:
            same = same and mirror.published_version == version
        if same:
            session.apply(forgetting(mirror.table_id))
    return same


def forgetting(table_id: int) -> list[Run]:
    """The statements that forget a table."""
    first = table_id * FILES_PER_TABLE
    by_file = {"first_file": first, "end_file": first + FILES_PER_TABLE}
    by_table = {"table_id": table_id}
    return [
        Run(name, by_file if name.endswith("_stats") else by_table) for name in _FORGET
    ]


def _new(session: Session, label: str, location: str) -> Row:
    ((table_id,),) = session.query("take_table_id", {})
    params = {
        "table_id": table_id,
        "name": label,
        "location": location,
        "created_at_ms": 0,
    }
    session.apply([Run("insert_table", params)])
    (row,) = session.query("load_staged", {"location": location})
    return row


def _check_staged(name: str, row: Row) -> None:
    if row[4] >= 0:
        raise TableExistsError(f"{name}: its location belongs to table {row[1]}")


def _parse(session: Session, row: Row) -> Head | None:
    if not row[_METADATA]:
        return None
    head = parse_head(session, row)
    version = head.version if row[7] is not None else head.first_version - 1
    return replace(head, version=version, current_version=version)
