"""Staged tables, which many transactions write and one shows; holds; dropped tables."""

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import msgspec

from delkalakedb.catalog.catalog import Catalog
from delkalakedb.catalog.commit import Mirror, find_mirror, lock_queries
from delkalakedb.catalog.engine import HeadRow, Run, Session, Write, event
from delkalakedb.catalog.read import (
    FILES_PER_TABLE,
    Head,
    check_place,
    parse_head,
)
from delkalakedb.clock import now_ms
from delkalakedb.errors import CatalogNotFoundError, MirrorError, TableExistsError
from delkalakedb.model.actions import encode_struct
from delkalakedb.model.log import Staged

# what a hold on a table begins with, before the other catalog's URI
MOVING = "moving to "
MOVED = "moved to "
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


def find_table_at(catalog: Catalog, location: str) -> str | None:
    """Return the name of the table at `location`; None if there is none.

    A staged table isn't a table of the catalog yet.
    """
    try:
        with catalog._backend.reading() as session:
            found = _load_staged(session, location)
    except CatalogNotFoundError:
        return None
    return found.name if found and found.current_version >= 0 else None


class StagedTable:
    """A table that is being written, and that no name shows yet.

    `head` is the state that was written last; None before the first write. Before the
    first version is written, the version of `head` is one less than the first.
    """

    def __init__(self, catalog: Catalog, name: str, location: str, source: str) -> None:
        """Begin, or continue what another process began for `source` and `name`.

        Args:
            catalog: the catalog of the table.
            name: the name of the table once it is shown.
            location: the location of the table's log.
            source: identifies what is staged. A table that was staged at the location
                for another source or name is dropped.
        """
        self._catalog = catalog
        self.name = name
        self._token = random.getrandbits(62)
        check_place(name, location)
        catalog.init()
        # No table has such a name, because of the control character.
        label = f"\x1f{source}\x1f{name}"
        stale = self._begin(label, location)
        if stale is not None:
            self._drop(stale)
            self._begin(label, location)

    def _begin(self, label: str, location: str) -> int | None:
        """Take over or create the staged table.

        Return the id of another table that is staged at the location, else None.
        """
        with self._creating() as session:
            self._check_name(session)
            found = _load_staged(session, location)
            if found and found.name != label:
                if found.current_version >= 0:
                    raise TableExistsError(
                        f"{self.name}: location {location} is already used by table "
                        f"{found.name}"
                    )
                return found.table_id
            row = found or _new(session, label, location)
            self.table_id = row.table_id
            take = {"table_id": self.table_id, "token": self._token}
            session.query("take_staged", take)
            self.head = _parse(session, row)
        return None

    def writing(self) -> AbstractContextManager[Session]:
        """Begin a transaction for the next part."""
        # Not durable: a part that a power cut undid is written again, and `show` makes
        # all parts durable.
        return self._catalog._backend.writing(durable=False)

    def write(self, session: Session, head: Head, writes: Sequence[Write]) -> None:
        """Write a part of the table; `head` is the table's state after the part."""
        self._check_held(bool(session.query("move_staged", self._params(head))))
        session.apply(writes)
        self.head = head

    def show(
        self,
        checkpoint_version: int,
        hold: str | None = None,
        *,
        published: int | None = None,
    ) -> None:
        """Make the staged table a table of the catalog.

        Args:
            checkpoint_version: the version of the log's newest checkpoint, or -1.
            hold: why this catalog may not commit to the table.
            published: the newest version in the log; by default the newest version.
        """
        assert self.head is not None
        version = self.head.version
        key = {"table_id": self.table_id, "version": version}
        shown = {"name": self.name, "now_ms": now_ms(), "hold": hold}
        mirror = key | {"checkpoint_version": checkpoint_version}
        if published is not None:
            mirror |= {"version": published}
        with self._creating() as session:
            self._check_name(session)
            params = key | shown | {"token": self._token}
            self._check_held(bool(session.query("show_staged", params)))
            session.apply([Run("insert_published", mirror)])

    def drop(self) -> None:
        """Drop the staged table."""
        self._drop(self.table_id)

    def _drop(self, table_id: int) -> None:
        with self._creating() as session:
            # First, so that a process that still writes the table is refused.
            take = {"table_id": table_id, "token": self._token}
            if session.query("take_staged", take):
                session.apply(forgetting(table_id))

    def _creating(self) -> AbstractContextManager[Session]:
        """Begin a transaction during which no other one creates a table."""
        return locked(self._catalog, Staged(self.name, (), location=""))

    def _check_name(self, session: Session) -> None:
        if session.query("find_table", {"name": self.name}):
            raise TableExistsError(
                f"{self.name}: the catalog has a table of this name at another location"
            )

    def _check_held(self, held: bool) -> None:
        if not held:
            raise MirrorError(
                f"{self.name}: another process has taken over the import of the table"
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
def locked(catalog: Catalog, *staged: Staged) -> Iterator[Session]:
    """Begin a transaction that holds the locks that commits of `staged` take."""
    with catalog._backend.writing() as session:
        session.rows_many(lock_queries(catalog._backend, staged))
        yield session


@contextmanager
def locked_mirror(catalog: Catalog, name: str) -> Iterator[tuple[Session, Mirror]]:
    """Begin a transaction that blocks commits to a table, and yield its mirror."""
    with locked(catalog, Staged(name, ())) as session:
        yield session, find_mirror(session, name)


def forget_table(
    catalog: Catalog, name: str, version: int, *, what: str, published: bool = True
) -> bool:
    """Delete the rows of a table if its newest version is `version`.

    The table's files stay. Return whether the rows were deleted.

    Args:
        catalog: the catalog of the table.
        name: the table.
        version: the newest version that the caller has seen.
        what: the event, for the audit trail.
        published: delete only if all versions are in the log.
    """
    with locked_mirror(catalog, name) as (session, mirror):
        same = mirror.ratified_version == version
        if published:
            same = same and mirror.published_version == version
        if same:
            noted = event(what, name, version=version)
            session.apply([*forgetting(mirror.table_id), noted])
    return same


def forgetting(table_id: int) -> list[Run]:
    """Return the statements that delete all rows of a table."""
    first = table_id * FILES_PER_TABLE
    by_file = {"first_file": first, "end_file": first + FILES_PER_TABLE}
    by_table = {"table_id": table_id}
    return [
        Run(name, by_file if name.endswith("_stats") else by_table) for name in _FORGET
    ]


def _load_staged(session: Session, location: str) -> HeadRow | None:
    found = session.rows(HeadRow, "load_staged", {"location": location})
    return found[0] if found else None


def _new(session: Session, label: str, location: str) -> HeadRow:
    (table_id,) = session.values("take_table_id", {})
    params = {
        "table_id": table_id,
        "name": label,
        "location": location,
        "created_at_ms": 0,
    }
    session.apply([Run("insert_table", params)])
    row = _load_staged(session, location)
    assert row is not None
    return row


def _parse(session: Session, row: HeadRow) -> Head | None:
    if not row.metadata:
        return None
    version = row.first_version - 1 if row.version is None else row.version
    return parse_head(session, row._replace(version=version, current_version=version))


def set_hold(
    catalog: Catalog, name: str, hold: str | None, *, before: str | None
) -> bool:
    """Set or clear the hold on a table, if the hold is still `before`.

    Return whether the hold was set.
    """
    with locked(catalog, Staged(name, ())) as session:
        params = {"name": name, "hold": hold, "before": before or ""}
        done = bool(session.query("set_hold", params))
        if done:
            session.apply([event("hold" if hold else "release", name, detail=hold)])
        return done
