"""The one SQL transaction of a ratification; `ratify.py` says what it promises."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from delkalakedb.catalog.backend import Backend, Row, Run, Session
from delkalakedb.catalog.commit import (
    Actor,
    ByKind,
    LiveFile,
    RemovedAll,
    commit_writes,
)
from delkalakedb.catalog.commits import Ratified
from delkalakedb.catalog.fresh import fresh_commit
from delkalakedb.catalog.head import (
    FILES_PER_TABLE,
    Head,
    check_identity,
    parse_head,
)
from delkalakedb.catalog.names import check_place, no_such_table
from delkalakedb.catalog.outbox import Lease, releasing, taken_lease, taking
from delkalakedb.catalog.rebased import commit_info, empty_head, last_adds, rebased
from delkalakedb.catalog.rows import hash_path
from delkalakedb.catalog.statcolumns import revise
from delkalakedb.catalog.winners import (
    conflicted,
    find_conflict,
    find_expired,
    follows_anything,
    newest,
)
from delkalakedb.errors import (
    ProtocolError,
    TableExistsError,
)
from delkalakedb.model.actions import (
    Add,
    Cdc,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Remove,
    Txn,
    known,
)
from delkalakedb.model.codec import decode_struct
from delkalakedb.model.conflicts import (
    ROW_TRACKING_DOMAIN,
    Conflict,
    Rule,
    Winner,
    check_liveness,
)
from delkalakedb.model.paths import check_inside
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.protocol import check_actions
from delkalakedb.model.rebase import (
    carry_row_ids,
    gives_row_ids,
    row_id_high_water_mark,
    with_row_ids,
)
from delkalakedb.model.txnlog import Committed, Conflicted, Skipped, Staged

__all__ = ["LostError", "Transaction", "lock_queries"]

_Query = tuple[str, dict[str, object]]


class LostError(Exception):
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


class Transaction:
    """Staged commits, one after the other, on locked tables."""

    def __init__(
        self,
        session: Session,
        backend: Backend,
        transaction_id: str,
        actor: Actor,
        indexed_columns: int,
        lease_s: float | None = None,
        seen: Head | None = None,
    ) -> None:
        self._session = session
        self._backend = backend
        self._id = transaction_id
        self._actor = actor
        self._indexed_columns = indexed_columns
        self._tables: dict[str, _Table] = {}
        self._early: dict[str, list[Row]] = {}
        self._participants: list[dict[str, object]] = []
        self.fresh: list[Ratified] = []
        self._hashed: dict[int, dict[str, int]] = {}
        self._now_ms = int(time.time() * 1000)
        self._lease_s = lease_s
        self._seen = seen
        self._started = time.monotonic()
        self._taken: list[Row] = []

    def ratify(self, staged: Sequence[Staged]) -> tuple[Committed | Skipped, ...]:
        """Write all of `staged`, or raise; a conflict is a `LostError`."""
        if not staged:
            return ()
        self._lock(staged)
        self._check_identities(staged)
        self._participants = self._find_participants(staged)
        if skipped := self._skipped(staged):
            self._give_back()
            return skipped
        return tuple(map(self._commit, staged))

    def lease(self) -> Lease | None:
        """The right to publish the one table that was committed to, if it was free."""
        if not self._taken or self._lease_s is None:
            return None
        (table,) = self._tables.values()
        assert table.head is not None
        expires = self._started + self._lease_s
        return taken_lease(self._taken[0], table.head, expires, self._lease_s)

    def _find_participants(self, staged: Sequence[Staged]) -> list[dict[str, object]]:
        """The versions that a transaction over several tables is going to make."""
        if len({commit.table for commit in staged}) == 1:
            return []
        found: list[dict[str, object]] = []
        made = Counter[str]()
        for commit in staged:
            table = self._tables[commit.table]
            metadata = ByKind(commit.actions).one(Metadata)
            if metadata is None and table.head is not None:
                metadata = table.head.metadata
            version = table.first_own + made[commit.table]
            made[commit.table] += 1
            found.append({"tableId": metadata and metadata.id, "version": version})
        return found

    def _lock(self, staged: Sequence[Staged]) -> None:
        """Lock the tables and load what their first commits need, in one go."""
        if self._seen is not None and _is_append(staged, self._seen):
            self._foresee(staged, self._seen)
            return
        names = sorted({commit.table for commit in staged})
        load = self._backend.statements["load_latest"]
        locks = lock_queries(self._backend, staged)
        early = self._early_queries(staged)
        known = {n: head for n in names if (head := self._session.find_head(n))}
        unknown = [name for name in names if name not in known]
        heads: list[_Query] = [(load, {"name": name}) for name in unknown]
        leases = self._lease_queries(names)
        asked = [*locks, *heads, *early.values(), *leases]
        answers = self._session.query_many(asked)
        if leases:
            self._taken = answers.pop()
        loaded = answers[len(locks) :]
        self._early = dict(zip(early, loaded[len(unknown) :], strict=True))
        for name, rows in zip(unknown, loaded, strict=False):
            if rows:
                known[name] = parse_head(self._session, rows[0])
        for name in names:
            head = known.get(name)
            self._tables[name] = _Table(head, head.version + 1 if head else 0)

    def _foresee(self, staged: Sequence[Staged], head: Head) -> None:
        """Go on with what was seen; whether it is still so is asked with the writes."""
        (commit,) = staged
        seen = {
            "name": head.name,
            "table_id": head.table_id,
            "created_at_ms": head.created_at_ms,
            "version": head.version,
            "timestamp_ms": head.timestamp_ms,
            "hashes": _paths_params(commit, self._hashes(commit))["hashes"],
        }
        check: _Query = (self._backend.statements["check_seen"], seen)
        leases = self._lease_queries([head.name])
        locks = lock_queries(self._backend, staged)
        answers = self._session.hold_back([*locks, check, *leases])
        if leases:
            self._taken = answers.pop()
        self._early = {head.name: []}
        self._tables[head.name] = _Table(head, head.version + 1)

    def _lease_queries(self, names: Sequence[str]) -> list[_Query]:
        """Of several tables none: one would be held while the others are published."""
        if self._lease_s is None or len(names) > 1:
            return []
        return [taking(self._backend, names[0], self._lease_s, token=self._id)]

    def _give_back(self) -> None:
        if lease := self.lease():
            self._session.apply([releasing(lease)])
            self._taken = []

    def _check_identities(self, staged: Sequence[Staged]) -> None:
        """Nothing goes to a table that has the name of one that is gone."""
        for commit in staged:
            head = self._tables[commit.table].head
            if head is not None:
                check_identity(commit.table, head.identity, commit.reads.identity)

    def _early_queries(self, staged: Sequence[Staged]) -> dict[str, _Query]:
        """The files at the paths of each table's first commit, where asking is free."""
        if not self._backend.capabilities.table_locks:
            return {}
        first = {commit.table: commit for commit in reversed(staged)}
        statement = self._backend.statements["load_files_at_paths"]
        return {
            name: (statement, _paths_params(commit, self._hashes(commit)))
            for name, commit in first.items()
        }

    def _skipped(self, staged: Sequence[Staged]) -> tuple[Skipped, ...] | None:
        """The outcome of a replay: every application transaction is there already.

        Where only some are, others than these wrote them: it would write them twice.
        """
        asked = [
            (commit, action)
            for commit in staged
            if commit.reads.app_ids
            for action in commit.actions
            if isinstance(action, Txn) and action.app_id in commit.reads.app_ids
        ]
        done = [
            Skipped(commit.table, version, txn.app_id)
            for commit, txn in asked
            if (version := self._applied(commit.table, txn)) is not None
        ]
        if done and len(done) < len(asked):
            there = done[0]
            conflict = Conflict(
                Rule.CONCURRENT_TRANSACTION,
                f"application {there.app_id} has committed this there already, but "
                "not all that it comes with",
            )
            winner = Winner(version=there.version, operation="an earlier commit")
            raise LostError(conflicted(there.table, winner, conflict))
        return tuple(done) or None

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
        # What was asked for a table's first commit says nothing to the next one.
        early = self._early.pop(staged.table, None)
        if head is None:
            return self._create(staged)
        if staged.location is not None and staged.reads.version < 0:
            raise TableExistsError(f"{staged.table}: the table exists already")
        head.check_ours()
        # First: what a winner forbids since is a conflict, not a mistake of the caller.
        winners = self._winners(staged, head, table.first_own)
        if lost := find_conflict(self._session, head, staged, winners):
            raise LostError(lost)
        _check_actions(staged, head)
        _check_append_only(staged, head)
        files = self._files(staged, head, early)
        self._check_liveness(staged, files, winners, head)
        return self._write(staged, head, files)

    def _winners(self, staged: Staged, head: Head, first_own: int) -> list[Row]:
        read_all = first_own - 1 <= staged.reads.version <= head.version
        if read_all or follows_anything(staged, head):
            return []
        if lost := find_expired(staged, head):
            raise LostError(lost)
        params = {"table_id": head.table_id, "after": staged.reads.version}
        rows = self._session.query("load_winners", params)
        return [row for row in rows if row[0] < first_own]

    def _files(self, staged: Staged, head: Head, found: list[Row] | None) -> "_Files":
        hashes = self._hashes(staged)
        if found is None and hashes:
            found = self._load_files(staged, hashes)
        rows = [
            row
            for row in found or ()
            if row[0] // FILES_PER_TABLE == head.table_id and row[1] in hashes
        ]
        return _Files(hashes, rows, self._tables[staged.table].first_own)

    def _load_files(self, staged: Staged, hashes: dict[str, int]) -> list[Row]:
        if len(hashes) == 1 and "load_files_at_path" in self._backend.statements:
            one = {"after": staged.reads.version, "hash": next(iter(hashes.values()))}
            return self._session.query("load_files_at_path", one)
        params = _paths_params(staged, hashes)
        return self._session.query("load_files_at_paths", params)

    def _hashes(self, staged: Staged) -> dict[str, int]:
        """The hashes of a commit's paths, made once: staged commits outlive this."""
        if (hashes := self._hashed.get(id(staged))) is None:
            hashes = self._hashed[id(staged)] = {
                action.path: hash_path(action.path)
                for action in staged.actions
                if isinstance(action, Add | Remove)
            }
        return hashes

    def _create(self, staged: Staged) -> Committed:
        if staged.location is None:
            raise no_such_table(staged.table)
        check_place(staged.table, staged.location)
        _check_actions(staged)
        taken = self._session.query("find_location", {"location": staged.location})
        if taken:
            raise TableExistsError(
                f"{staged.table}: its location belongs to table {taken[0][0]}"
            )
        ((table_id,),) = self._session.query("take_table_id", {})
        head = empty_head(staged, table_id, self._now_ms)
        params = {
            "table_id": head.table_id,
            "name": head.name,
            "location": head.location,
            "created_at_ms": head.created_at_ms,
        }
        mirror = {"table_id": head.table_id}
        self._session.apply([Run("insert_table", params), Run("insert_mirror", mirror)])
        return self._write(staged, head, _Files(self._hashes(staged), [], 0))

    def _check_liveness(
        self, staged: Staged, files: "_Files", winners: list[Row], head: Head
    ) -> None:
        if staged.remove_all and files.live:
            path = next(iter(files.live))
            raise ProtocolError(
                f"{staged.table}: {path} can't be added and removed at once"
            )
        if not files.rows and not any(isinstance(a, Remove) for a in staged.actions):
            return
        actions = ByKind(staged.actions)
        live = {p: frozenset(f.dv_id for f in held) for p, held in files.live.items()}
        conflict = check_liveness(
            actions.of(Remove), actions.of(Add), live, files.removed
        )
        if conflict is not None:
            # A blind append's winners aren't loaded, and its own commits are none.
            before = self._tables[staged.table].first_own - 1
            seen_all = staged.reads.version >= before
            winner = newest(winners, head.version if seen_all else before)
            raise LostError(conflicted(staged.table, winner, conflict))

    def _write(self, staged: Staged, previous: Head, files: "_Files") -> Committed:
        head, actions = rebased(previous, staged, self._now_ms)
        if gives_row_ids(head.protocol, head.metadata):
            actions = self._with_row_ids(staged, head, files)
        actions.put(commit_info(actions, staged, head, self._id, self._participants))
        if actions.of(Metadata):
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
            files.live,
            files.hashes,
            removed_all=self._removed_all(staged, previous),
            transaction_id=self._id,
            actor=self._actor,
        )
        self._session.apply(rows.writes)
        self._session.made_head(rows.head)
        self._tables[staged.table].head = rows.head
        appends = not staged.remove_all and not files.rows and not actions.of(Remove)
        if appends and (fresh := fresh_commit(rows.head, self._id, actions)):
            self.fresh.append(fresh)
        return rows.committed

    def _removed_all(self, staged: Staged, head: Head) -> RemovedAll | None:
        if not staged.remove_all or head.version < 0:
            return None
        read, first_own = staged.reads.version, self._tables[staged.table].first_own
        if read >= first_own - 1:
            return RemovedAll(read, first_own, head.num_files, head.size_bytes)
        seen = {"read_version": read, "first_own": first_own}
        params = {"table_id": head.table_id} | seen
        ((files, size_bytes),) = self._session.query("load_live_totals", params)
        return RemovedAll(read, first_own, files, int(size_bytes))

    def _with_row_ids(self, staged: Staged, head: Head, files: "_Files") -> ByKind:
        params = {
            "table_id": head.table_id,
            "domain": ROW_TRACKING_DOMAIN,
            "version": head.version,
        }
        rows = self._session.query("load_domain", params)
        domain = decode_struct(rows[0][0], DomainMetadata) if rows else None
        carried = carry_row_ids(staged.actions, last_adds(files.rows))
        mark = row_id_high_water_mark(domain)
        actions = ByKind(with_row_ids(carried, mark, head.version))
        if head.metadata_version == head.version:
            actions.put(head.metadata)
        if head.protocol_version == head.version:
            actions.put(head.protocol)
        return actions


class _Files:
    """The files at a commit's paths that are live, or were when it read."""

    def __init__(self, hashes: dict[str, int], rows: list[Row], first_own: int) -> None:
        self.hashes = hashes
        self.rows = rows
        self.live: dict[str, list[LiveFile]] = {}
        removed = set()
        for file_id, path, vector, size, removed_version, *_ in rows:
            if removed_version is None:
                file = LiveFile(file_id, vector, size)
                self.live.setdefault(path, []).append(file)
            elif removed_version < first_own:
                removed.add(path)
        self.removed = frozenset(removed)


def _is_append(staged: Sequence[Staged], seen: Head) -> bool:
    """Whether what was seen is all that a commit depends on."""
    if len(staged) > 1 or gives_row_ids(seen.protocol, seen.metadata):
        return False
    (commit,) = staged
    reads = commit.reads
    return (
        (commit.table, reads.version) == (seen.name, seen.version)
        and reads.identity in (None, seen.identity)
        and not (commit.remove_all or reads.app_ids or commit.location)
        and all(isinstance(action, Add | CommitInfo) for action in commit.actions)
    )


def _check_actions(staged: Staged, head: Head | None = None) -> None:
    protocol, metadata, version = None, None, 0
    if head is not None:
        protocol, metadata, version = head.protocol, head.metadata, head.version + 1
    # A remove must hit a live file, and opens none.
    new = (action for action in staged.actions if isinstance(action, Add | Cdc))
    location = head.location if head else str(staged.location)
    try:
        check_actions(staged.actions, protocol, metadata, version)
        check_inside(new, location, outside_files=True)
    except ProtocolError as error:
        raise ProtocolError(f"{staged.table}: {error}") from error


def _check_append_only(staged: Staged, head: Head) -> None:
    properties = parse_properties(known(head.metadata.configuration) or {})
    if staged.remove_all and properties.append_only and head.num_files:
        raise ProtocolError(
            f"{staged.table}: delta.appendOnly is true; its files can't be removed"
        )


def _paths_params(staged: Staged, hashes: dict[str, int]) -> dict[str, object]:
    return {
        "after": staged.reads.version,
        "hashes": msgspec.json.encode(list(hashes.values())).decode(),
    }


def lock_queries(backend: Backend, staged: Sequence[Staged]) -> list[_Query]:
    """What to ask first, so that nobody else commits to these tables.

    In name order: two writers of several tables never wait for each other.
    """
    if not backend.capabilities.table_locks:
        return []
    lock = backend.statements["lock_table"]
    names = sorted({commit.table for commit in staged})
    locks: list[_Query] = [(lock, {"name": name}) for name in names]
    if any(commit.location is not None for commit in staged):
        locks.insert(0, (backend.statements["lock_catalog"], {}))
    return locks
