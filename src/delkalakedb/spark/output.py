"""What an operation writes, and the commit that it comes to."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from pyspark.sql import DataFrame

from delkalakedb.catalog.ratify import CLIENT
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    Metadata,
    known,
)
from delkalakedb.model.protocol import check_writable
from delkalakedb.model.stats import parse_stats
from delkalakedb.spark.evolving import evolved_protocol
from delkalakedb.spark.files_out import write_changes, write_files
from delkalakedb.spark.target import Target
from delkalakedb.table.restore import removed
from delkalakedb.workspace.files import table_files
from delkalakedb.workspace.inplace import Work

__all__ = ["Output", "Timer", "commit_info"]

T = TypeVar("T")


class Output:
    """The files of one operation; none stays if it fails.

    Args:
        target: what is written to.
        metadata: of the version to come, where it differs from the target's.
    """

    def __init__(self, target: Target, metadata: Metadata | None = None) -> None:
        self._target = target
        self._metadata = metadata or target.metadata
        before = target.snapshot.protocol
        self._protocol = evolved_protocol(before, metadata) if metadata else before
        self.adds: list[Add] = []
        self.cdc: list[Cdc] = []
        self.new_paths: list[str] = []

    def __enter__(self) -> Self:
        check_writable(self._protocol, self._metadata)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self.new_paths:
            target = self._target
            location = target.snapshot.table.location
            table_files(location, target.storage_options).discard(self.new_paths)

    def write(self, rows: DataFrame) -> None:
        """Write rows as files of the table."""
        written = write_files(rows, *self._place, **self._options)
        self.adds += written.adds
        self.new_paths += written.new_paths

    def write_changes(self, rows: DataFrame) -> None:
        """Write rows, each with its `_change_type`, for the change data feed."""
        written = write_changes(rows, *self._place, **self._options)
        self.cdc += written.cdc
        self.new_paths += written.new_paths

    @property
    def num_rows(self) -> int:
        """The rows written to the table."""
        stats = (parse_stats(known(add.stats)) for add in self.adds)
        return sum(each.num_records or 0 for each in stats if each)

    @property
    def size_bytes(self) -> int:
        """The bytes written to the table."""
        return sum(add.size for add in self.adds)

    def work(
        self,
        result: T,
        info: CommitInfo,
        gone: Iterable[Add] = (),
        *,
        rearranged: bool = False,
    ) -> Work[T]:
        """The commit that puts what was written in the place of other files."""
        now_ms = int(time.time() * 1000)
        files: list[Any] = [*(removed(add, now_ms) for add in gone), *self.adds]
        if rearranged:
            files = [msgspec.structs.replace(a, data_change=False) for a in files]
        actions: list[Action] = [info, *self._changed, *files, *self.cdc]
        return Work(result, [actions], self.new_paths)

    @property
    def _changed(self) -> list[Action]:
        before = self._target.snapshot
        protocol = [self._protocol] if self._protocol != before.protocol else []
        metadata = [self._metadata] if self._metadata != before.metadata else []
        return [*protocol, *metadata]

    @property
    def _place(self) -> tuple[Any, ...]:
        location = self._target.snapshot.table.location
        return location, self._metadata, self._protocol

    @property
    def _options(self) -> dict[str, Any]:
        return {"storage_options": self._target.storage_options}


@dataclass
class Timer:
    """How long an operation's parts take, in milliseconds."""

    start: float = field(default_factory=time.monotonic)
    scan_ms: int = 0

    def scanned(self) -> None:
        """The files to replace are known."""
        self.scan_ms = self._passed_ms

    def metrics(self) -> dict[str, int]:
        """The times as Delta names them."""
        passed_ms = self._passed_ms
        return {
            "executionTimeMs": passed_ms,
            "scanTimeMs": self.scan_ms,
            "rewriteTimeMs": passed_ms - self.scan_ms,
        }

    @property
    def _passed_ms(self) -> int:
        return int((time.monotonic() - self.start) * 1000)


def commit_info(
    operation: str, parameters: Mapping[str, Any], metrics: Mapping[str, int]
) -> CommitInfo:
    """What the history says of an operation, its numbers as text like Delta's."""
    return CommitInfo(
        {
            "operation": operation,
            "operationParameters": dict(parameters),
            "operationMetrics": {name: str(n) for name, n in metrics.items()},
            "engineInfo": CLIENT,
        }
    )
