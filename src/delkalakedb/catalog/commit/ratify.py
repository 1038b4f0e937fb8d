"""Ratify: the one SQL transaction in which staged actions become versions.

Before the transaction, a `Draft` makes the rows that don't depend on the table's newest
version. Then, in order, and all of it or nothing:

1. lock every table involved, in name order, and load their heads;
2. for each staged commit: check the conflict rules against the versions since it
   read, the protocol's rules, and that what it removes is live;
3. give it the next version, a timestamp after the last one, and row ids;
4. insert its rows and move the head, `WHERE current_version = version - 1`;
5. commit. A table's versions above the published one are its outbox.

On Postgres this is two messages: BEGIN with step 1, and the rows of step 4 with COMMIT.
So a transaction holds its locks before its COMMIT is sent.

Killed before step 5, a writer leaves nothing behind. A connection that is lost during
step 5 leaves the outcome unknown, so the writer takes the locks on another connection.
Once it has them, the lost transaction has ended, and the commit happened if and only if
the database has the transaction's id. If not, the writer starts over with the same id.
While the locks can't be taken, the lost COMMIT may still take effect: after
`concurrency.retries` attempts the writer raises an `UnknownOutcomeError`, and the files
of the commit stay.
"""

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from delkalakedb.catalog.commit.commit_rows import (
    ByKind,
    CommitRows,
    LiveFile,
    NewFiles,
    RemovedAll,
    commit_info,
    commit_writes,
    empty_head,
    last_adds,
    rebased,
)
from delkalakedb.catalog.commit.outbox import (
    Lease,
    LeaseRow,
    releasing,
    releasing_lost,
    taken_lease,
    taking,
)
from delkalakedb.catalog.commit.outcome import (
    Committed,
    Conflicted,
    Skipped,
    WinnerRow,
    conflicted,
    find_conflict,
    find_expired,
    follows_anything,
    newest,
)
from delkalakedb.catalog.engine import (
    Actor,
    Backend,
    FileRow,
    HeadRow,
    Query,
    Run,
    Session,
    actor_of,
    event,
    note_event,
)
from delkalakedb.catalog.read import (
    FILES_PER_TABLE,
    Head,
    LoggedCommit,
    check_identity,
    check_place,
    find_kept,
    hash_path,
    no_such_table,
    parse_head,
    revise,
)
from delkalakedb.clock import now_ms, pauses
from delkalakedb.errors import (
    CatalogError,
    MirrorBehindError,
    ProtocolError,
    ReadOnlyError,
    TableExistsError,
    UnknownOutcomeError,
)
from delkalakedb.model.actions import (
    Add,
    Cdc,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    decode_struct,
    known,
)
from delkalakedb.model.log import Staged
from delkalakedb.model.new_actions import (
    carry_row_ids,
    gives_row_ids,
    row_id_high_water_mark,
    with_row_ids,
)
from delkalakedb.model.paths import check_inside
from delkalakedb.model.rules.conflicts import (
    ROW_TRACKING_DOMAIN,
    Conflict,
    Rule,
    Winner,
    check_liveness,
)
from delkalakedb.model.rules.protocol import check_actions
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.vectors import InlineBounds
from delkalakedb.settings import redact
from delkalakedb.telemetry import COMMIT, CONFLICTS, VERSIONS, log_commit, measured
from delkalakedb.waits import sleep

if TYPE_CHECKING:
    from delkalakedb.settings import Settings


# heads that a writer remembers, each with its table's metadata
_MOST_HEADS = 100


class Draft:
    """A staged commit with what was done of it before its table is locked.

    All writers of a table wait for the one that holds its lock. So what needs only the
    table's metadata, protocol and indexed columns is done before, as they were when
    this process last committed to the table. Under the lock, each part is used if the
    table still has what the part was made from, and is made again otherwise.

    Args:
        staged: the commit.
        expected: the table's head after the last commit of this process, if there was
            one.
    """

    def __init__(self, staged: Staged, expected: Head | None) -> None:
        self.staged = staged
        # of the paths of all adds and removes
        self.hashes = {
            action.path: hash_path(action.path)
            for action in staged.actions
            if isinstance(action, Add | Remove)
        }
        adds = [action for action in staged.actions if isinstance(action, Add)]
        self._new = NewFiles(adds, self.hashes)
        self._checked: tuple[Protocol, Metadata, str] | None = None
        if expected is None:
            return
        # Under the lock, the check is repeated with the table's real state.
        with suppress(ProtocolError):
            self.check(expected)
            if adds:
                self._new.index(expected.stat_columns, expected.metadata)
                _ = self._new.columns

    def check(self, head: Head) -> None:
        """Raise `ProtocolError` if the commit breaks a rule of the protocol."""
        state = head.protocol, head.metadata, head.location
        if state != self._checked:
            _check_staged(self.staged, head)
            self._checked = state

    def new_files(self, adds: list[Add]) -> NewFiles:
        """Return the new files of the commit, whose adds ended up as `adds`."""
        return self._new if adds == self._new.adds else NewFiles(adds, self.hashes)


class SqlTxnLogWriter:
    """Commits to the tables of one catalog."""

    def __init__(self, backend: Backend, settings: "Settings") -> None:
        self._backend = backend
        self._indexed_columns = settings.stats.indexed_columns
        self._concurrency = settings.concurrency
        self._max_unpublished = settings.mirror.max_unpublished
        vectors = settings.vectors
        self._bounds = InlineBounds(vectors.inline_bytes, vectors.inline_commit_bytes)
        self._actor: Actor | None = None
        # The heads that this writer has made, to draft the next commits on.
        self._heads: dict[str, Head] = {}

    def ratify(
        self, staged: Sequence[Staged], lease_s: float | None = None
    ) -> tuple[Committed | Skipped, ...] | Conflicted:
        """Commit all of `staged`, or none of it.

        Args:
            staged: the commits.
            lease_s: the term, in seconds, of the lease to take on publishing, if all of
                `staged` is for one table and its lease is free; None takes no lease.
        """
        started, transaction_id = time.monotonic(), str(uuid.uuid4())
        drafts = [Draft(commit, self._heads.get(commit.table)) for commit in staged]
        if self._max_unpublished is not None:
            self._check_backlog(staged, self._max_unpublished)
        engine = self._backend.engine
        retries, outcomes = self._concurrency.retries, None
        with measured(COMMIT, engine=engine) as seen:
            while outcomes is None:
                try:
                    outcomes = self._attempt(drafts, transaction_id, lease_s)
                except LostError as lost:
                    seen |= {"outcome": "conflict", "table": lost.outcome.table}
                    CONFLICTS.record(1, engine=engine, rule=lost.outcome.rule)
                    return lost.outcome
                except (ProtocolError, ReadOnlyError) as error:
                    self._note_refusal(staged, error)
                    raise
                except UnknownOutcomeError as unknown:
                    outcomes = self._find_out(staged, transaction_id, unknown)
                    if outcomes is None and retries == 0:
                        raise
                    retries -= 1
            made = [one for one in outcomes if isinstance(one, Committed)]
            seen["outcome"] = "committed" if made else "skipped"
        duration_ms = (time.monotonic() - started) * 1000
        for committed in made:
            VERSIONS.record(1, engine=engine)
            _log(committed, duration_ms, self._who())
        return outcomes

    def _note_refusal(self, staged: Sequence[Staged], error: Exception) -> None:
        """Note in the audit trail that a commit was refused."""
        for name in sorted({commit.table for commit in staged}):
            refused = event("commit refused", name, detail=str(error))
            note_event(self._backend, refused)

    def _check_backlog(self, staged: Sequence[Staged], most: int) -> None:
        """Refuse to commit while too many versions of a table wait to be published."""
        for name in sorted({commit.table for commit in staged}):
            with self._backend.reading() as session:
                waiting = session.values("load_unpublished", {"name": name})
            if waiting and waiting[0] >= most:
                raise MirrorBehindError(
                    f"{name}: {waiting[0]} versions wait to be published, and "
                    f"mirror.max_unpublished is {most}; nothing was written. "
                    "See mirror.status, and run the reconciler"
                )

    def _attempt(
        self, drafts: Sequence[Draft], transaction_id: str, lease_s: float | None
    ) -> tuple[Committed | Skipped, ...]:
        actor = self._who()
        with self._backend.writing() as session:
            transaction = Transaction(
                session,
                self._backend,
                transaction_id,
                actor,
                self._indexed_columns,
                self._bounds,
                lease_s,
            )
            skipped = transaction.write(drafts)
        if len(self._heads) > _MOST_HEADS:
            self._heads = {}
        self._heads |= transaction.heads()
        return skipped or transaction.made()

    def _who(self) -> Actor:
        self._actor = self._actor or actor_of(self._backend)
        return self._actor

    def _find_out(
        self, staged: Sequence[Staged], transaction_id: str, lost: UnknownOutcomeError
    ) -> tuple[Committed, ...] | None:
        """Return what a lost COMMIT has committed, or None if it committed nothing.

        Wait for a server that is restarting.
        """
        concurrency = self._concurrency
        waits = pauses(concurrency.backoff_initial, concurrency.backoff_max)
        left = concurrency.retries
        while True:
            try:
                return self._resolve(staged, transaction_id)
            except CatalogError as error:
                if left == 0:
                    raise UnknownOutcomeError(
                        f"{lost}; the outcome is unknown, because the catalog can't be "
                        f"read: {error}. Look for transaction {transaction_id} in the "
                        "history before you retry"
                    ) from error
            left -= 1
            sleep(next(waits))

    def _resolve(
        self, staged: Sequence[Staged], transaction_id: str
    ) -> tuple[Committed, ...] | None:
        """Return what a transaction has committed, and release its lease."""
        with self._backend.writing() as session:
            session.rows_many(lock_queries(self._backend, staged))
            key = {"transaction_id": transaction_id}
            made = session.rows(Committed, "load_transaction", key)
            session.apply([releasing_lost(c.table, transaction_id) for c in staged])
        # In the order in which they were staged; those of a renamed table come last.
        found: list[Committed] = []
        for commit in staged:
            found += [one for one in made if one.table == commit.table][:1]
            made = [one for one in made if one not in found]
        return (*found, *made) or None


def _log(committed: Committed, duration_ms: float, actor: Actor) -> None:
    log_commit(
        table=committed.table,
        version=committed.version,
        operation=committed.operation,
        adds=committed.num_added_files,
        removes=committed.num_removed_files,
        bytes_added=committed.added_bytes,
        bytes_removed=committed.removed_bytes,
        table_id=committed.table_id,
        duration_ms=duration_ms,
        transaction_id=committed.transaction_id,
        db_user=actor.db_user,
        os_user=actor.os_user,
        host=actor.host,
    )


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
        bounds: InlineBounds,
        lease_s: float | None = None,
    ) -> None:
        self._session = session
        self._backend = backend
        self._id = transaction_id
        self._actor = actor
        self._indexed_columns = indexed_columns
        self._bounds = bounds
        # By table and path: vectors of files that winners have changed, too.
        self._marks: dict[str, dict[str, DeletionVector | None]] = {}
        self._tables: dict[str, _Table] = {}
        self._early: dict[str, list[FileRow]] = {}
        self._participants: list[dict[str, object]] = []
        self._now_ms = now_ms()
        self._lease_s = lease_s
        self._started = time.monotonic()
        self._taken: list[LeaseRow] = []
        # What was written, and the log entry where this transaction knows all of it.
        self._made: list[tuple[CommitRows, ByKind | None]] = []

    def heads(self) -> dict[str, Head]:
        """Return the heads of the tables that were written."""
        heads = {name: table.head for name, table in self._tables.items()}
        return {name: head for name, head in heads.items() if head is not None}

    def made(self) -> tuple[Committed, ...]:
        """Return the versions that were written, once the database has committed."""
        made = []
        for rows, entry in self._made:
            committed = rows.committed
            if entry is not None:
                logged = LoggedCommit(rows.head, self._id, entry.in_order())
                committed = replace(committed, ratified=logged)
            made.append(committed)
        if lease := self._lease():
            made[-1] = replace(made[-1], lease=lease)
        return tuple(made)

    def write(self, drafts: Sequence[Draft]) -> tuple[Skipped, ...]:
        """Write all staged commits, or raise; a conflict is a `LostError`.

        Return nothing, or what was skipped because an earlier transaction has done it.
        """
        if not drafts:
            return ()
        staged = [draft.staged for draft in drafts]
        self._lock(drafts)
        self._check_identities(staged)
        self._participants = self._find_participants(staged)
        if skipped := self._skipped(staged):
            if lease := self._lease():
                self._session.apply([releasing(lease)])
            return skipped
        for draft in drafts:
            admitted, head, files = self._admit(draft)
            self._write(draft, admitted, head, files)
        return ()

    def _lease(self) -> Lease | None:
        """Return the lease that was taken, with the one table's head as it is now."""
        if not self._taken or self._lease_s is None:
            return None
        (table,) = self._tables.values()
        assert table.head is not None
        expires = self._started + self._lease_s
        return taken_lease(self._taken[0], table.head, expires, self._lease_s)

    def _find_participants(self, staged: Sequence[Staged]) -> list[dict[str, object]]:
        """Return the versions that a transaction over several tables will make."""
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

    def _lock(self, drafts: Sequence[Draft]) -> None:
        """Lock the tables and load their first commits' rows, in one trip."""
        staged = [draft.staged for draft in drafts]
        names = sorted({commit.table for commit in staged})
        locks = lock_queries(self._backend, staged)
        early = self._early_queries(drafts)
        known = {n: head for n in names if (head := find_kept(self._backend, n))}
        unknown = [name for name in names if name not in known]
        heads: list[Query] = [(HeadRow, "load_latest", {"name": n}) for n in unknown]
        leases = self._lease_queries(names)
        asked = [*locks, *heads, *early.values(), *leases]
        answers = self._session.rows_many(asked)
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

    def _lease_queries(self, names: Sequence[str]) -> list[Query]:
        """Return the query that takes the lease of the only table.

        Return no query for several tables, because each lease would be held while the
        other tables are published.
        """
        if self._lease_s is None or len(names) > 1:
            return []
        return [taking(names[0], self._lease_s, token=self._id)]

    def _check_identities(self, staged: Sequence[Staged]) -> None:
        """Raise an error if a table's name belongs to another table than was read."""
        for commit in staged:
            head = self._tables[commit.table].head
            if head is not None:
                check_identity(commit.table, head.identity, commit.reads.identity)

    def _early_queries(self, drafts: Sequence[Draft]) -> dict[str, Query]:
        """Return the queries for files at the paths of each table's first commit."""
        if not self._backend.capabilities.table_locks:
            return {}
        first = {draft.staged.table: draft for draft in reversed(drafts)}
        return {name: _paths_query(draft) for name, draft in first.items()}

    def _skipped(self, staged: Sequence[Staged]) -> tuple[Skipped, ...] | None:
        """Return the outcome of a replay, whose `txn` actions are all recorded already.

        Raise `LostError` if only some are recorded, because another commit wrote these.
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
                f"application {there.app_id} has committed a part of this transaction "
                "already, but not all of it",
            )
            winner = Winner(version=there.version, operation="an earlier commit")
            raise LostError(conflicted(there.table, winner, conflict))
        return tuple(done) or None

    def _applied(self, name: str, txn: Txn) -> int | None:
        head = self._tables[name].head
        if head is None:
            return None
        params = {"table_id": head.table_id, "app_id": txn.app_id}
        found = self._session.values("load_applied", params | {"txn": txn.version})
        return int(found[0]) if found else None

    def _admit(self, draft: Draft) -> tuple[Staged, Head, "_Files"]:
        """Return what to commit, the head that it follows, and its files.

        Raise `LostError` on a conflict.
        """
        staged = draft.staged
        table = self._tables[staged.table]
        head = table.head
        # What was asked for a table's first commit says nothing to the next one.
        early = self._early.pop(staged.table, None)
        if head is None:
            return staged, *self._create(draft)
        if staged.location is not None and staged.reads.version < 0:
            raise TableExistsError(f"{staged.table}: the table exists already")
        head.check_ours()
        # First: what a winner forbids since is a conflict, not a mistake of the caller.
        winners = self._winners(staged, head, table.first_own)
        files = self._files(draft, head, early)
        if winners:
            staged = self._united(staged, head, winners)
        if staged is draft.staged:
            draft.check(head)
        else:
            _check_staged(staged, head)
        if staged.remove_all:
            _check_append_only(staged, head)
        self._check_liveness(staged, files, winners, head)
        return staged, head, files

    def _united(self, staged: Staged, head: Head, winners: list[WinnerRow]) -> Staged:
        """Return the commit, united with winners; raise `LostError` on a conflict."""
        own = self._marks.setdefault(staged.table, {})
        union, lost = find_conflict(
            self._session, head, staged, winners, own, self._bounds
        )
        if lost:
            raise LostError(lost)
        # The next commit of this transaction has been staged without the winners' rows.
        own |= {
            action.path: known(action.deletion_vector)
            for action in union.staged.actions
            if isinstance(action, Add) and action.path in union.kept
        }
        return union.staged

    def _winners(self, staged: Staged, head: Head, first_own: int) -> list[WinnerRow]:
        read_all = first_own - 1 <= staged.reads.version <= head.version
        if read_all or follows_anything(staged, head):
            return []
        if lost := find_expired(staged, head):
            raise LostError(lost)
        params = {"table_id": head.table_id, "after": staged.reads.version}
        rows = self._session.rows(WinnerRow, "load_winners", params)
        return [row for row in rows if row.version < first_own]

    def _files(self, draft: Draft, head: Head, found: list[FileRow] | None) -> "_Files":
        hashes = draft.hashes
        if found is None and hashes:
            found = self._load_files(draft)
        rows = [
            row
            for row in found or ()
            if row.file_id // FILES_PER_TABLE == head.table_id and row.path in hashes
        ]
        return _Files(rows, self._tables[draft.staged.table].first_own)

    def _load_files(self, draft: Draft) -> list[FileRow]:
        hashes = [*draft.hashes.values()]
        if len(hashes) == 1 and self._backend.capabilities.single_path_lookup:
            one = {"after": draft.staged.reads.version, "hash": hashes[0]}
            return self._session.rows(FileRow, "load_files_at_path", one)
        return self._session.rows(*_paths_query(draft))

    def _create(self, draft: Draft) -> tuple[Head, "_Files"]:
        staged = draft.staged
        if staged.location is None:
            raise no_such_table(staged.table, self._session)
        check_place(staged.table, staged.location)
        _check_staged(staged)
        taken = self._session.values("find_location", {"location": staged.location})
        if taken:
            raise TableExistsError(
                f"{staged.table}: location {redact(staged.location)} is already used "
                f"by table {taken[0]}"
            )
        (table_id,) = self._session.values("take_table_id", {})
        head = empty_head(staged, table_id, self._now_ms)
        params = {
            "table_id": head.table_id,
            "name": head.name,
            "location": head.location,
            "created_at_ms": head.created_at_ms,
        }
        mirror = {"table_id": head.table_id}
        self._session.apply([Run("insert_table", params), Run("insert_mirror", mirror)])
        return head, _Files([], 0)

    def _check_liveness(
        self, staged: Staged, files: "_Files", winners: list[WinnerRow], head: Head
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

    def _write(
        self, draft: Draft, staged: Staged, previous: Head, files: "_Files"
    ) -> None:
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
            head = msgspec.structs.replace(head, stat_columns=columns)
        rows = commit_writes(
            head,
            actions,
            files.live,
            draft.new_files(actions.of(Add)),
            removed_all=self._removed_all(staged, previous),
            transaction_id=self._id,
            actor=self._actor,
        )
        self._session.apply(rows.writes)
        if self._backend.capabilities.keeps_heads:
            self._session.made[staged.table, None] = rows.head
        self._tables[staged.table].head = rows.head
        # What a remove says of its file is in the database alone.
        unknown = staged.remove_all or files.rows or actions.of(Remove)
        self._made.append((rows, None if unknown else actions))

    def _removed_all(self, staged: Staged, head: Head) -> RemovedAll | None:
        if not staged.remove_all or head.version < 0:
            return None
        read, first_own = staged.reads.version, self._tables[staged.table].first_own
        if read >= first_own - 1:
            return RemovedAll(read, first_own, head.num_files, head.size_bytes)
        seen = {"read_version": read, "first_own": first_own}
        params = {"table_id": head.table_id} | seen
        (removed,) = self._session.rows(
            lambda files, size: RemovedAll(read, first_own, files, int(size)),
            "load_live_totals",
            params,
        )
        return removed

    def _with_row_ids(self, staged: Staged, head: Head, files: "_Files") -> ByKind:
        params = {
            "table_id": head.table_id,
            "domain": ROW_TRACKING_DOMAIN,
            "version": head.version,
        }
        found = self._session.values("load_domain", params)
        domain = decode_struct(found[0], DomainMetadata) if found else None
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

    def __init__(self, rows: list[FileRow], first_own: int) -> None:
        self.rows = rows
        self.live: dict[str, list[LiveFile]] = {}
        removed = set()
        for row in rows:
            if row.removed_version is None:
                file = LiveFile(row.file_id, row.dv_id, row.size_bytes)
                self.live.setdefault(row.path, []).append(file)
            elif row.removed_version < first_own:
                removed.add(row.path)
        self.removed = frozenset(removed)


def _check_staged(staged: Staged, head: Head | None = None) -> None:
    """Raise `ProtocolError` if a commit after `head` breaks a rule of the protocol."""
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
    if properties.append_only and head.num_files:
        raise ProtocolError(
            f"{staged.table}: delta.appendOnly is true; its files can't be removed"
        )


def _paths_query(draft: Draft) -> Query:
    wanted = msgspec.json.encode(list(draft.hashes.values())).decode()
    params = {"after": draft.staged.reads.version, "hashes": wanted}
    return FileRow, "load_files_at_paths", params


def lock_queries(backend: Backend, staged: Sequence[Staged]) -> list[Query]:
    """Return the queries that lock the tables against other commits.

    The order is that of names, so that two writers of several tables don't deadlock.
    """
    if not backend.capabilities.table_locks:
        return []
    names = sorted({commit.table for commit in staged})
    locks: list[Query] = [(str, "lock_table", {"name": name}) for name in names]
    if any(commit.location is not None for commit in staged):
        locks.insert(0, (str, "lock_catalog", {}))
    return locks
