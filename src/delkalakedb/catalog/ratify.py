"""Ratify: the one SQL transaction in which staged actions become versions.

In order, and all of it or nothing:

1. lock the head row of every table involved, in id order;
2. for each staged commit: check the protocol's rules, the conflict rules against the
   versions since it read, and that what it removes is live;
3. give it the next version, a timestamp after the last one, and row ids;
4. insert its rows and move the head, `WHERE current_version = version - 1`;
5. commit. A table's versions above the published one are its outbox.

Killed before 5, nothing happened. A connection lost during 5 is resolved by asking
for the transaction's id under the same locks, so that an unfinished COMMIT has ended.
"""

import getpass
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING

import msgspec

from delkalakedb.catalog.backend import (
    Backend,
    Row,
    Run,
    Session,
    UnknownOutcomeError,
)
from delkalakedb.catalog.commit import (
    Actor,
    LiveFile,
    RemovedAll,
    commit_writes,
    of_kind,
)
from delkalakedb.catalog.head import Head, parse_head
from delkalakedb.catalog.rows import path_hash
from delkalakedb.catalog.statcolumns import revise
from delkalakedb.catalog.winners import conflicted, find_conflict, newest
from delkalakedb.errors import (
    DeltaError,
    ProtocolError,
    TableExistsError,
    TableNotFoundError,
)
from delkalakedb.model.actions import (
    Action,
    Add,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    known,
)
from delkalakedb.model.codec import decode_struct
from delkalakedb.model.conflicts import (
    ROW_TRACKING_DOMAIN,
    check_liveness,
    is_blind_append,
    isolation_of,
)
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.protocol import check_actions
from delkalakedb.model.rebase import (
    carry_row_ids,
    gives_row_ids,
    in_commit_timestamp,
    row_id_high_water_mark,
    with_commit_info,
    with_row_ids,
    with_timestamp_enablement,
)
from delkalakedb.model.txnlog import Committed, Conflicted, Skipped, Staged
from delkalakedb.telemetry import log_commit

if TYPE_CHECKING:
    from delkalakedb.config import Settings

__all__ = ["CLIENT", "SqlTxnLogWriter"]

CLIENT = f"delkalakedb/{package_version('delkalakedb')}"
_Query = tuple[str, dict[str, object]]
_MAX_NAME_BYTES = 255
_MAX_LOCATION_BYTES = 2000


class _LostError(Exception):
    """Ends the transaction; its outcome is a value to the caller."""

    def __init__(self, outcome: Conflicted) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass(slots=True)
class _Table:
    """A locked table as the transaction sees it, its own commits included."""

    head: Head | None
    # Versions from here on are this transaction's own.
    first_own: int


class SqlTxnLogWriter:
    """Commits to the tables of one catalog; a `TxnLogWriter`."""

    def __init__(self, backend: Backend, settings: "Settings") -> None:
        self._backend = backend
        self._indexed_columns = settings.stats.indexed_columns
        self._retries = settings.concurrency.retries
        self._actor: Actor | None = None

    def ratify(
        self, staged: Sequence[Staged]
    ) -> tuple[Committed | Skipped, ...] | Conflicted:
        """Make all of `staged` true, or none of it."""
        started = time.monotonic()
        try:
            outcomes = self._ratify(staged, str(uuid.uuid4()))
        except _LostError as lost:
            return lost.outcome
        duration_ms = (time.monotonic() - started) * 1000
        for outcome in outcomes:
            if isinstance(outcome, Committed):
                _log(outcome, duration_ms)
        return outcomes

    def _ratify(
        self, staged: Sequence[Staged], transaction_id: str
    ) -> tuple[Committed | Skipped, ...]:
        retries = self._retries
        while True:
            try:
                return self._attempt(staged, transaction_id)
            except UnknownOutcomeError:
                if found := self._resolve(staged, transaction_id):
                    return found
                # It is certain now that nothing happened.
                if retries == 0:
                    raise
                retries -= 1

    def _attempt(
        self, staged: Sequence[Staged], transaction_id: str
    ) -> tuple[Committed | Skipped, ...]:
        actor = self._actor = self._actor or _actor(self._backend)
        with self._backend.writing() as session:
            return _Transaction(
                session,
                self._backend,
                transaction_id,
                actor,
                self._indexed_columns,
            ).ratify(staged)

    def _resolve(
        self, staged: Sequence[Staged], transaction_id: str
    ) -> tuple[Committed, ...] | None:
        with self._backend.writing() as session:
            session.query_many(_locks(self._backend, staged))
            rows = session.query("load_transaction", {"transaction_id": transaction_id})
        found: defaultdict[str, list[Row]] = defaultdict(list)
        for row in rows:
            found[row[0]].append(row)
        if not found:
            return None
        return tuple(Committed(*found[commit.table].pop(0)) for commit in staged)


class _Transaction:
    def __init__(
        self,
        session: Session,
        backend: Backend,
        transaction_id: str,
        actor: Actor,
        indexed_columns: int,
    ) -> None:
        self._session = session
        self._backend = backend
        self._id = transaction_id
        self._actor = actor
        self._indexed_columns = indexed_columns
        self._tables: dict[str, _Table] = {}
        self._now_ms = int(time.time() * 1000)

    def ratify(self, staged: Sequence[Staged]) -> tuple[Committed | Skipped, ...]:
        self._lock(staged)
        return self._skipped(staged) or tuple(map(self._commit, staged))

    def _lock(self, staged: Sequence[Staged]) -> None:
        """Lock the tables and load their heads, in one go."""
        names = list(dict.fromkeys(commit.table for commit in staged))
        locks = _locks(self._backend, staged)
        load = self._backend.statements["load_head"]
        heads: list[_Query] = [(load, {"name": n, "version": None}) for n in names]
        answers = self._session.query_many([*locks, *heads])[len(locks) :]
        for name, rows in zip(names, answers, strict=True):
            head = parse_head(self._session, rows[0]) if rows else None
            self._tables[name] = _Table(head, head.version + 1 if head else 0)

    def _skipped(self, staged: Sequence[Staged]) -> tuple[Skipped, ...] | None:
        """The outcome of a replay: every application transaction is there already."""
        asked = [(c, t) for c in staged for t in of_kind(c.actions, Txn)]
        asked = [(c, t) for c, t in asked if t.app_id in c.reads.app_ids]
        done = [
            Skipped(commit.table, version, txn.app_id)
            for commit, txn in asked
            if (version := self._applied(commit.table, txn)) is not None
        ]
        return tuple(done) if done and len(done) == len(asked) else None

    def _applied(self, name: str, txn: Txn) -> int | None:
        head = self._tables[name].head
        if head is None:
            return None
        params = {"table_id": head.table_id, "app_id": txn.app_id}
        rows = self._session.query("load_applied", params | {"txn": txn.version})
        return int(rows[0][0]) if rows else None

    def _commit(self, staged: Staged) -> Committed:
        table = self._tables[staged.table]
        head = table.head
        if head is None:
            return self._create(staged)
        if staged.location is not None and staged.reads.version < 0:
            raise TableExistsError(f"{staged.table}: the table exists already")
        # First: what a winner forbids since is a conflict, not a mistake of the caller.
        winners = self._winners(staged, head, table.first_own)
        if lost := find_conflict(self._session, head, staged, winners):
            raise _LostError(lost)
        check_actions(staged.actions, head.protocol, head.metadata, head.version + 1)
        _check_append_only(staged, head)
        file_rows = self._files(staged, head)
        live, removed = _live(file_rows)
        self._check_liveness(staged, live, removed, winners, head)
        return self._write(staged, head, live, file_rows)

    def _winners(self, staged: Staged, head: Head, first_own: int) -> list[Row]:
        if staged.reads.version >= first_own - 1:
            return []
        params = {"table_id": head.table_id, "after": staged.reads.version}
        rows = self._session.query("load_winners", params)
        return [row for row in rows if row[0] < first_own]

    def _files(self, staged: Staged, head: Head) -> list[Row]:
        """The files at the commit's paths that are live, or were when it read."""
        paths = {a.path for a in staged.actions if isinstance(a, Add | Remove)}
        if not paths:
            return []
        params = {
            "table_id": head.table_id,
            "after": staged.reads.version,
            "hashes": msgspec.json.encode([path_hash(p) for p in paths]).decode(),
        }
        return self._session.query("load_files_at_paths", params)

    def _create(self, staged: Staged) -> Committed:
        if staged.location is None:
            raise TableNotFoundError(f"{staged.table}: the catalog has no such table")
        _check_size("name", staged.table, _MAX_NAME_BYTES)
        _check_size("location", staged.location, _MAX_LOCATION_BYTES)
        check_actions(staged.actions, None, None, 0)
        taken = self._session.query("find_location", {"location": staged.location})
        if taken:
            raise TableExistsError(
                f"{staged.table}: its location belongs to table {taken[0][0]}"
            )
        ((last,),) = self._session.query("load_max_table_id", {})
        head = _empty_head(staged, last + 1, self._now_ms)
        params = {
            "table_id": head.table_id,
            "name": head.name,
            "location": head.location,
            "created_at_ms": head.created_at_ms,
        }
        mirror = {"table_id": head.table_id}
        self._session.apply([Run("insert_table", params), Run("insert_mirror", mirror)])
        return self._write(staged, head, {}, [])

    def _check_liveness(
        self,
        staged: Staged,
        live: dict[str, list[LiveFile]],
        removed: frozenset[str],
        winners: list[Row],
        head: Head,
    ) -> None:
        if staged.remove_all and live:
            raise ProtocolError(
                f"{staged.table}: {next(iter(live))} can't be added and removed at once"
            )
        conflict = check_liveness(
            of_kind(staged.actions, Remove),
            of_kind(staged.actions, Add),
            {path: frozenset(f.dv_id for f in files) for path, files in live.items()},
            removed,
        )
        if conflict is not None:
            raise _LostError(conflicted(staged.table, newest(winners, head), conflict))

    def _write(
        self,
        staged: Staged,
        head: Head,
        live: dict[str, list[LiveFile]],
        file_rows: list[Row],
    ) -> Committed:
        previous = head
        head, actions = _rebased(head, staged, self._now_ms)
        actions = self._with_row_ids(actions, head, file_rows)
        actions = _described(actions, staged, head, self._id)
        if of_kind(actions, Metadata):
            columns = revise(
                head.stat_columns,
                head.metadata,
                table_id=head.table_id,
                version=head.version,
                limit=self._indexed_columns,
            )
            head = replace(head, stat_columns=columns)
        rows = commit_writes(
            head,
            actions,
            live,
            removed_all=self._removed_all(staged, previous),
            transaction_id=self._id,
            actor=self._actor,
        )
        self._session.apply(rows.writes)
        self._tables[staged.table].head = rows.head
        return rows.committed

    def _removed_all(self, staged: Staged, head: Head) -> RemovedAll | None:
        if not staged.remove_all or head.version < 0:
            return None
        own = head.version >= self._tables[staged.table].first_own
        read = head.version if own else staged.reads.version
        if read == head.version:
            return RemovedAll(read, head.num_files, head.size_bytes)
        params = {"table_id": head.table_id, "read_version": read}
        ((files, size_bytes),) = self._session.query("load_live_totals", params)
        return RemovedAll(read, files, int(size_bytes))

    def _with_row_ids(
        self, actions: tuple[Action, ...], head: Head, file_rows: list[Row]
    ) -> tuple[Action, ...]:
        if not gives_row_ids(head.protocol, head.metadata):
            return actions
        rows = self._session.query(
            "load_domain",
            {
                "table_id": head.table_id,
                "domain": ROW_TRACKING_DOMAIN,
                "version": head.version,
            },
        )
        domain = decode_struct(rows[0][0], DomainMetadata) if rows else None
        carried = carry_row_ids(actions, _last_adds(file_rows))
        return with_row_ids(carried, row_id_high_water_mark(domain), head.version)


def _live(
    rows: Sequence[Row],
) -> tuple[dict[str, list[LiveFile]], frozenset[str]]:
    """The live files by path, and the paths that lost one since the read version."""
    live: defaultdict[str, list[LiveFile]] = defaultdict(list)
    removed = set()
    for file_id, path, vector, size, removed_version, *_ in rows:
        if removed_version is None:
            live[path].append(LiveFile(file_id, vector, size))
        else:
            removed.add(path)
    return dict(live), frozenset(removed)


def _last_adds(rows: Sequence[Row]) -> dict[str, Add]:
    return {
        path: Add(
            path=path,
            partition_values={},
            size=size,
            modification_time=0,
            data_change=False,
            base_row_id=base,
            default_row_commit_version=committed,
        )
        for _, path, _, size, _, base, committed in sorted(rows)
        if base is not None
    }


def _rebased(
    head: Head, staged: Staged, now_ms: int
) -> tuple[Head, tuple[Action, ...]]:
    """The head that the commit makes, and its actions fit for that version."""
    version = head.version + 1
    previous_ms = head.timestamp_ms if head.version >= 0 else None
    timestamp_ms = in_commit_timestamp(now_ms, previous_ms)
    previous = head.metadata if head.version >= 0 else None
    actions = tuple(
        with_timestamp_enablement(a, previous, version, timestamp_ms)
        if isinstance(a, Metadata)
        else a
        for a in staged.actions
    )
    metadata = next(iter(of_kind(actions, Metadata)), None)
    protocol = next(iter(of_kind(actions, Protocol)), None)
    head = replace(
        head,
        version=version,
        current_version=version,
        timestamp_ms=timestamp_ms,
        metadata=metadata or head.metadata,
        metadata_version=version if metadata else head.metadata_version,
        protocol=protocol or head.protocol,
        protocol_version=version if protocol else head.protocol_version,
    )
    return head, actions


def _described(
    actions: tuple[Action, ...], staged: Staged, head: Head, transaction_id: str
) -> tuple[Action, ...]:
    configuration = known(head.metadata.configuration) or {}
    forced: dict[str, object] = {"txnId": transaction_id}
    if parse_properties(configuration).enable_in_commit_timestamps:
        forced["inCommitTimestamp"] = head.timestamp_ms
    defaults: dict[str, object] = {
        "timestamp": head.timestamp_ms,
        "operation": "WRITE",
        "isolationLevel": isolation_of(configuration, staged).value,
        "isBlindAppend": is_blind_append(staged),
    }
    if staged.reads.version >= 0:
        defaults["readVersion"] = staged.reads.version
    return with_commit_info(actions, forced, defaults)


def _check_append_only(staged: Staged, head: Head) -> None:
    properties = parse_properties(known(head.metadata.configuration) or {})
    if staged.remove_all and properties.append_only and head.num_files:
        raise ProtocolError(
            f"{staged.table}: delta.appendOnly is true; its files can't be removed"
        )


def _empty_head(staged: Staged, table_id: int, now_ms: int) -> Head:
    assert staged.location is not None
    return Head(
        table_id=table_id,
        name=staged.table,
        location=staged.location,
        created_at_ms=now_ms,
        current_version=-1,
        first_version=0,
        next_file=0,
        version=-1,
        timestamp_ms=-1,
        num_files=0,
        size_bytes=0,
        metadata_version=0,
        protocol_version=0,
        stat_columns=(),
        metadata=of_kind(staged.actions, Metadata)[0],
        protocol=of_kind(staged.actions, Protocol)[0],
    )


def _check_size(what: str, text: str, limit: int) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > limit:
        raise DeltaError(f"a table's {what} can't be longer than {limit} bytes")


def _log(committed: Committed, duration_ms: float) -> None:
    log_commit(
        table=committed.table,
        version=committed.version,
        operation=committed.operation,
        adds=committed.num_added_files,
        removes=committed.num_removed_files,
        bytes_added=committed.added_bytes,
        duration_ms=duration_ms,
        transaction_id=committed.transaction_id,
    )


def _locks(backend: Backend, staged: Sequence[Staged]) -> list[_Query]:
    """What to ask first, so that nobody else commits to these tables."""
    if not backend.capabilities.row_locks:
        return []
    names = msgspec.json.encode([commit.table for commit in staged]).decode()
    locks: list[_Query] = [(backend.statements["lock_tables"], {"names": names})]
    if any(commit.location is not None for commit in staged):
        locks.insert(0, (backend.statements["lock_catalog"], {}))
    return locks


def _actor(backend: Backend) -> Actor:
    try:
        user: str | None = getpass.getuser()
    except (KeyError, OSError):
        user = None
    return Actor(backend.db_user(), user, socket.gethostname(), CLIENT)
