"""The engine for callers that write the table's files in their place themselves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from delkalakedb.model.actions import Action
from delkalakedb.model.predicate.predicate import Predicate
from delkalakedb.write.operation import Operation, Staging, Target

T = TypeVar("T")


@dataclass(frozen=True)
class Work(Generic[T]):
    """What was done for an operation.

    Args:
        result: what the operation returns.
        commits: the actions of each version that the operation makes.
        new_paths: the new files, by their paths below the table's location.
        looked_at: matches the files that the work looked at, if that is known only
            after the work; None means those of `Operation.files`.
        rows_only: the work depends on no other rows than those that it deletes.
    """

    result: T
    commits: Sequence[Sequence[Action]] = ()
    new_paths: Sequence[str] = ()
    looked_at: Predicate | None = None
    rows_only: bool = False


@dataclass(frozen=True)
class InPlace(Generic[T]):
    """Stages the work of a function that takes the target."""

    run: Callable[[Target], Work[T]]

    def stage(self, target: Target, operation: Operation[T]) -> Staging[T]:
        """Run the function, which writes the files."""
        work = self.run(target)
        if work.looked_at is not None:
            operation = replace(operation, files=work.looked_at)
        return Staging(
            target,
            operation,
            work.result,
            work.commits,
            work.new_paths,
            work.rows_only,
        )
