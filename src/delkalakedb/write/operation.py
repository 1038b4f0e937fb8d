"""One operation on a table: its target, the engine that stages it, and its staging.

An operation passes through four values, each of which the next step takes: `Operation`,
`Staging`, `Committed` or `Conflicted`, and `Published`.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, Protocol, Self, TypeVar

from delkalakedb.catalog import Snapshot
from delkalakedb.errors import DeltaError, StorageError, did_you_mean
from delkalakedb.model.actions import Action, Remove, Txn
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.new_actions import with_counts
from delkalakedb.model.predicate.predicate import Anything, Predicate
from delkalakedb.telemetry import STAGE, measured
from delkalakedb.write.files import TableFiles, table_files

_T = TypeVar("_T")

# What delta-rs says of unknown columns, where it suggests none itself.
_UNKNOWN = re.compile(
    r"(?:Partition column|[Ff]ield) ['\"](.+?)['\"] "
    r"(?:not found in schema|is not a root table field)"
)
_log = logging.getLogger("delkalakedb.workspace")


@dataclass(frozen=True)
class Target:
    """The table that an operation changes, as the operation sees the table.

    Args:
        name: the table's name in the catalog.
        location: where the table's files are.
        snapshot: the version that the operation starts from; None if the operation
            creates the table.
        storage_options: the options of the table's object store.
    """

    name: str
    location: str
    snapshot: Snapshot | None
    storage_options: Mapping[str, str] | None = None

    @classmethod
    def at(
        cls, snapshot: Snapshot, storage_options: Mapping[str, str] | None = None
    ) -> Self:
        """Return the target of an operation on the table of `snapshot`."""
        table = snapshot.table
        return cls(table.name, table.location, snapshot, storage_options)

    @property
    def base(self) -> Snapshot:
        """The version that an operation on an existing table starts from."""
        assert self.snapshot is not None
        return self.snapshot

    def columns(self) -> list[str]:
        """Return the names of the columns of the table that is changed."""
        if self.snapshot is None:
            return []
        from delkalakedb.model.schema.schema import parse_schema

        schema = parse_schema(self.snapshot.metadata.schema_string)
        return [field.name for field in schema.fields]

    @cached_property
    def files(self) -> TableFiles:
        """The files at the table's location."""
        return table_files(self.location, self.storage_options)


@contextmanager
def suggesting(columns: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Add near names to delta-rs's error about an unknown column.

    Args:
        columns: returns the columns that there are.
    """
    try:
        yield
    except DeltaError as error:
        if found := _UNKNOWN.search(str(error)):
            error.args = (f"{error}{did_you_mean(found[1], columns())}",)
        raise


class Engine(Protocol[_T]):
    """Makes the files and the actions of one operation, and commits nothing.

    What `stage` promises:

    1. It reads the target's snapshot and no other version.
    2. When it returns, each new file is complete and in its place at the target's
       location, and `Staging.new_paths` names all of them. No version names them yet,
       so a crash leaves files that vacuum deletes.
    3. When it raises, the table is as it was. `stage` has deleted its new files, or
       leaves them to vacuum.
    4. It writes neither to the catalog nor to `_delta_log`.
    5. It can be called again: after a lost commit, the operation is staged anew on the
       newest version.
    """

    def stage(self, target: Target, operation: "Operation[_T]") -> "Staging[_T]":
        """Stage `operation` on `target`."""
        ...


@dataclass(frozen=True)
class Operation(Generic[_T]):
    """One change of a table, and how much of the table the change looks at.

    Args:
        name: what the operation is called in errors.
        engine: makes the files and the actions.
        files: matches each file that the engine may look at; None if it looks at none.
        rearranges: the operation moves rows and changes none, so it depends only on
            the files that it replaces.
        remove_all: the operation replaces every file and looks at none of them.
    """

    name: str
    engine: Engine[_T]
    files: Predicate | None = None
    rearranges: bool = False
    remove_all: bool = False

    def stage(self, target: Target) -> "Staging[_T]":
        """Return the files and actions that the engine makes on `target`."""
        with (
            measured(STAGE, operation=self.name, table=target.name),
            suggesting(target.columns),
        ):
            return self.engine.stage(target, self)

    def title(self, target: Target) -> str:
        """Return what errors call the operation on `target`."""
        what = f"{target.name}: {self.name}"
        if target.snapshot is None:
            return what
        return f"{what} on version {target.snapshot.version}"


@dataclass(frozen=True)
class Staging(Generic[_T]):
    """What an engine made of an operation: a result, actions, and files in their place.

    Args:
        target: the table that was staged on.
        operation: the operation.
        result: what the operation returns to its caller.
        commits: the actions of each version that the operation makes.
        new_paths: the new files, by their paths below the target's location.
        rows_only: the operation depends on no other rows than those that it deletes.
    """

    target: Target
    operation: Operation[_T]
    result: _T
    commits: Sequence[Sequence[Action]] = ()
    new_paths: Sequence[str] = ()
    rows_only: bool = False

    def on(self, latest: Snapshot) -> "Staging[_T]":
        """Return the staging for another version, which the operation need not read."""
        return replace(self, target=replace(self.target, snapshot=latest))

    def staged(self) -> tuple[Staged, ...]:
        """Return the commits, each with what it read."""
        snapshot, where = self.target.snapshot, self.target.location
        if snapshot is None:
            (actions,) = self.commits
            return (Staged(self.target.name, actions, location=where),)
        return tuple(self._staged(actions, snapshot) for actions in self.commits)

    def discard(self) -> None:
        """Delete the new files, because no version will name them.

        Vacuum deletes the files that can't be deleted here: the reason for discarding
        them matters more to the caller.
        """
        try:
            self.target.files.discard(self.new_paths)
        except (OSError, StorageError) as error:
            _log.warning("files without a version stay: %s", error)

    def _staged(self, actions: Sequence[Action], snapshot: Snapshot) -> Staged:
        operation = self.operation
        if operation.remove_all:
            actions = _with_removed_counts(actions, snapshot.table.num_files)
        seen = None if operation.rearranges else operation.files
        everything = isinstance(seen, Anything)
        removed = (
            a.path for a in actions if operation.rearranges and isinstance(a, Remove)
        )
        reads = Reads(
            version=snapshot.version,
            predicates=() if seen is None or everything else (seen,),
            paths=frozenset(removed),
            whole_table=everything,
            app_ids=frozenset(a.app_id for a in actions if isinstance(a, Txn)),
            identity=snapshot.identity,
            rows_only=self.rows_only,
        )
        return Staged(self.target.name, actions, reads, operation.remove_all)


def _with_removed_counts(
    actions: Sequence[Action], num_files: int
) -> tuple[Action, ...]:
    """Return an overwrite's actions, whose metrics count all files as removed."""
    # As delta-rs says it, and as Delta Spark does.
    counts = {"num_removed_files": num_files, "numRemovedFiles": str(num_files)}
    return tuple(with_counts(action, counts) for action in actions)
