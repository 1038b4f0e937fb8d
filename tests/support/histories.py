"""Random commits by writers that read too long ago, and what must become of them.

The model keeps every version of every table in memory. It judges each commit by the
pure rules, over commits and files that it remembers itself; what it accepts it applies.
"""

import uuid
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import strategies as st

from delkalakedb.catalog.commit.outcome import Committed, Conflicted, Skipped
from delkalakedb.model.actions import (
    Action,
    Add,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    dv_id,
    known,
)
from delkalakedb.model.log import Reads, Replay, Staged
from delkalakedb.model.predicate.matcher import matcher
from delkalakedb.model.predicate.predicate import Predicate, parse_predicate
from delkalakedb.model.rules.conflicts import (
    Attempt,
    Rule,
    Winner,
    check_liveness,
    first_conflict,
    is_blind_append,
)
from delkalakedb.model.schema.schema import parse_schema
from tests.support.actions import (
    DV,
    add,
    creation,
    domain,
    metadata,
    protocol,
    remove,
    schema,
    stats,
    txn,
    vector,
)

FEATURES = ("appendOnly", "invariants", "deletionVectors", "domainMetadata")
LEVELS = ("Serializable", "WriteSerializable", "SnapshotIsolation")
COLUMNS = schema(x="long", s="string")
_SOME_APPS = (("app1",), ("app2",), ("app1", "app2"))
_SOME_DOMAINS = (("d1",), ("d2",), ("d1", "d2"))
Outcome = tuple[str, int, str]


def matches(predicate: Predicate, file: Add) -> bool:
    return matcher(predicate)(file.partition_values, known(file.stats))


@dataclass
class Table:
    """One table in memory: its state after each version, and what each one did."""

    states: list[Replay] = field(default_factory=list)
    commits: list[tuple[Action, ...]] = field(default_factory=list)
    winners: list[Winner] = field(default_factory=list)
    added_at: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def version(self) -> int:
        return len(self.states) - 1

    def judge(self, staged: Staged, first_own: int) -> tuple[str, int] | None:
        """The rule that forbids a commit, and the winner to blame."""
        read = staged.reads.version
        state = self.states[read]
        assert state.protocol is not None
        assert state.metadata is not None
        attempt = Attempt.of(staged, state.protocol, state.metadata)
        winners = self.winners[read + 1 : first_own]
        if found := first_conflict(attempt, winners, matches):
            return found[1].rule, found[0].version
        conflict = check_liveness(
            [a for a in staged.actions if isinstance(a, Remove)],
            [a for a in staged.actions if isinstance(a, Add)],
            self._live(),
            {file.path for winner in winners for file in winner.removed},
        )
        blamed = winners[-1].version if winners else self.version
        return (conflict.rule, blamed) if conflict else None

    def apply(self, staged: Staged, first_own: int) -> None:
        """Make a commit the next version."""
        actions = [*staged.actions, *self._derived(staged, first_own)]
        state = deepcopy(self.states[-1]) if self.states else Replay()
        gone = [state.adds[a.path, dv_id(a)] for a in actions if isinstance(a, Remove)]
        version = self.version + 1
        # Removes come first in the log, too.
        actions.sort(key=lambda action: isinstance(action, Add))
        state.apply(version, actions)
        for action in actions:
            if isinstance(action, Add):
                self.added_at[action.path, dv_id(action)] = version
        self.states.append(state)
        self.commits.append(tuple(actions))
        self.winners.append(_winner(version, staged, actions, gone))

    def _live(self) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        for path, vector_id in self.states[-1].adds:
            found.setdefault(path, set()).add(vector_id)
        return {path: frozenset(ids) for path, ids in found.items()}

    def _derived(self, staged: Staged, first_own: int) -> list[Remove]:
        """The removes of an overwrite: what it had read, and what it wrote itself."""
        if not staged.remove_all:
            return []
        return [
            Remove(
                path=file.path,
                data_change=True,
                extended_file_metadata=True,
                partition_values=file.partition_values,
                size=file.size,
                deletion_vector=file.deletion_vector,
            )
            for key, file in self.states[-1].adds.items()
            if self.added_at[key] <= staged.reads.version
            or self.added_at[key] >= first_own
        ]


def _winner(
    version: int, staged: Staged, actions: Sequence[Action], gone: Sequence[Add]
) -> Winner:
    def one(kind: type[Any]) -> Any:
        return next((a for a in actions if isinstance(a, kind)), None)

    return Winner(
        version=version,
        operation="WRITE",
        is_blind_append=is_blind_append(staged),
        protocol=one(Protocol),
        metadata=one(Metadata),
        app_ids=frozenset(a.app_id for a in actions if isinstance(a, Txn)),
        domains=frozenset(a.domain for a in actions if isinstance(a, DomainMetadata)),
        added=tuple(a for a in actions if isinstance(a, Add)),
        removed=tuple(gone),
    )


class Model:
    """All tables of a catalog, in memory."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}

    def ratify(self, *staged: Staged) -> list[Outcome]:
        """What becomes of each commit; a conflict is alone and leaves all as it was."""
        if skipped := self._skipped(staged):
            return skipped
        tables = deepcopy(self.tables)
        first = {c.table: tables.setdefault(c.table, Table()).version for c in staged}
        outcomes: list[Outcome] = []
        for commit in staged:
            table, first_own = tables[commit.table], first[commit.table] + 1
            if table.states and (lost := table.judge(commit, first_own)):
                return [("conflicted", lost[1], lost[0])]
            table.apply(commit, first_own)
            outcomes.append(("committed", table.version, commit.table))
        self.tables = tables
        return outcomes

    def _skipped(self, staged: Sequence[Staged]) -> list[Outcome]:
        asked = [
            (c.table, a)
            for c in staged
            for a in c.actions
            if isinstance(a, Txn) and a.app_id in c.reads.app_ids
        ]
        done = [
            (name, txn) for name, txn in asked if self._at(name, txn) >= txn.version
        ]
        since = [(self._since(name, txn), name) for name, txn in done]
        if done and len(done) < len(asked):
            return [("conflicted", since[0][0], Rule.CONCURRENT_TRANSACTION)]
        return [("skipped", version, name) for version, name in since]

    def _at(self, name: str, txn: Txn) -> int:
        table = self.tables.get(name)
        found = table.states[-1].txns.get(txn.app_id) if table else None
        return found.version if found else txn.version - 1

    def _since(self, name: str, txn: Txn) -> int:
        """The version from which on the application was never below `txn`."""
        since = self.tables[name].version
        for state in reversed(self.tables[name].states):
            found = state.txns.get(txn.app_id)
            if found is None or found.version < txn.version:
                break
            since = state.version
        return since


def outcomes_of(
    ratified: tuple[Committed | Skipped, ...] | Conflicted,
) -> list[Outcome]:
    """The catalog's answer, as the model gives it."""
    if isinstance(ratified, Conflicted):
        return [("conflicted", ratified.winner_version, ratified.rule)]
    names = {Committed: "committed", Skipped: "skipped"}
    return [(names[type(o)], o.version, o.table) for o in ratified]


class Writers:
    """Draws commits; what it stages breaks no rule that needs no other commit."""

    def __init__(self, model: Model, draw: Any, folder: object = "/nowhere") -> None:
        self._model = model
        self._draw = draw
        self._folder = folder
        self._run = uuid.uuid4().hex[:12]
        self._count = 0

    def create(self) -> Staged:
        """A new table's first commit."""
        level = {"delta.isolationLevel": self._pick(LEVELS), DV: "true"}
        files = self._append(set(), Replay())
        name = self._fresh("t")
        return creation(
            name,
            *files,
            meta=metadata(COLUMNS, configuration=level),
            features=FEATURES,
            location=f"{self._folder}/{name}",
        )

    def transaction(self) -> list[Staged]:
        """One commit, or some over the same or several tables."""
        count = self._pick((1, 1, 1, 2, 3))
        return [self._commit(alone=count == 1) for _ in range(count)]

    def _commit(self, alone: bool) -> Staged:
        name = self._pick(sorted(self._model.tables))
        table = self._model.tables[name]
        read = max(0, table.version - self._pick((0, 0, 0, 1, 2, 4)))
        view = table.states[read]
        used: set[str] = set()
        actions: list[Action] = []
        overwrite = self._chance(12)
        kinds = (self._append,) if overwrite else self._kinds(alone)
        for kind in kinds:
            actions += kind(used, view)
        reads = self._reads(view, read, actions)
        return Staged(name, actions, reads, remove_all=overwrite)

    def _kinds(self, alone: bool) -> list[Any]:
        files = [self._append, self._delete, self._mark, self._restate, self._return]
        state = [self._describe, self._transact, self._domain]
        if alone:
            # A second upgrade that doesn't know of the first is a mistake.
            state.append(self._upgrade)
        kinds = st.sampled_from([*files, *files, *state])
        return self._draw(st.lists(kinds, min_size=1, max_size=4, unique=True))

    def _reads(self, view: Replay, read: int, actions: list[Action]) -> Reads:
        apps = {a.app_id for a in actions if isinstance(a, Txn)}
        shape = self._pick(("nothing", "nothing", "table", "predicate", "paths"))
        predicates: tuple[Predicate, ...] = ()
        if shape == "predicate":
            where = f"x {self._pick('<>')} {self._pick(range(10))}"
            predicates = (parse_predicate(where, parse_schema(COLUMNS)),)
        return Reads(
            version=read,
            predicates=predicates,
            paths=frozenset(f.path for f in self._some(view, set()))
            if shape == "paths"
            else frozenset(),
            whole_table=shape == "table",
            app_ids=frozenset(apps if self._chance(2) else ()),
        )

    def _append(self, used: set[str], view: Replay) -> list[Action]:
        return [self._file(self._fresh("f")) for _ in range(self._pick((1, 2, 0)))]

    def _delete(self, used: set[str], view: Replay) -> list[Action]:
        change = not self._chance(4)
        return [remove(f, data_change=change) for f in self._some(view, used)]

    def _mark(self, used: set[str], view: Replay) -> list[Action]:
        return [
            action
            for old in self._some(view, used)
            for action in (remove(old), self._file(old.path, vector(self._fresh("v"))))
        ]

    def _restate(self, used: set[str], view: Replay) -> list[Action]:
        return [
            msgspec.structs.replace(
                self._file(old.path),
                deletion_vector=old.deletion_vector,
                data_change=False,
            )
            for old in self._some(view, used)
        ]

    def _return(self, used: set[str], view: Replay) -> list[Action]:
        live = {path for path, _ in view.adds}
        gone = sorted({path for path, _ in view.removes} - live - used)
        chosen = gone[: self._pick((1, 2))]
        used.update(chosen)
        return [self._file(path) for path in chosen]

    def _describe(self, used: set[str], view: Replay) -> list[Action]:
        assert view.metadata is not None
        more = {self._pick(("note", "delta.enableRowTracking")): "false"}
        configuration = {**(known(view.metadata.configuration) or {}), **more}
        name = self._fresh("d")
        return [metadata(COLUMNS, description=name, configuration=configuration)]

    def _upgrade(self, used: set[str], view: Replay) -> list[Action]:
        assert view.protocol is not None
        listed = known(view.protocol.writer_features) or []
        more = self._pick(("v2Checkpoint", "checkConstraints"))
        return [protocol(*dict.fromkeys([*listed, more]))]

    def _transact(self, used: set[str], view: Replay) -> list[Action]:
        return [txn(app, self._pick((2, 1, 3))) for app in self._pick(_SOME_APPS)]

    def _domain(self, used: set[str], view: Replay) -> list[Action]:
        return [
            domain(name, self._fresh("c"), removed=self._chance(3))
            for name in self._pick(_SOME_DOMAINS)
        ]

    def _some(self, view: Replay, used: set[str]) -> list[Add]:
        """Some of the files in view; what is staged for one path is staged once."""
        free = sorted((f for f in view.adds.values() if f.path not in used), key=str)
        chosen = [file for file in free if self._chance(2)]
        used.update(file.path for file in chosen)
        return chosen

    def _file(self, path: str, deletion_vector: Any = None) -> Add:
        low, width = self._pick(range(10)), self._pick((0, 1, 5))
        text = stats(self._pick((1, 9)), x=(low, low + width, 0))
        marks = {"deletion_vector": deletion_vector} if deletion_vector else {}
        return add(
            path,
            size=self._pick(range(1, 1000)),
            stats=None if self._chance(8) else text,
            **marks,
        )

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._run}-{self._count}"

    def _pick(self, choices: Sequence[Any]) -> Any:
        return self._draw(st.sampled_from(choices))

    def _chance(self, one_in: int) -> bool:
        return bool(self._draw(st.integers(1, one_in)) == 1)
