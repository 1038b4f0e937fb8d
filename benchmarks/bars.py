"""The results of a run: figures with their bars, and times to plot."""

import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engines import ENGINES, Database

MILLION = 1_000_000


@dataclass(frozen=True)
class Row:
    """A measured figure, with a limit or only reported."""

    bar: str
    engine: str
    what: str
    value: float
    unit: str
    limit: str
    ok: bool | None


@dataclass(frozen=True)
class Timing:
    """A median, for the plots and the JSON file."""

    operation: str
    who: str
    files: int
    value: float
    unit: str = "s"


@dataclass
class Run:
    """The measurements of one engine.

    Args:
        engine: the name of the engine.
        folder: the folder for its databases.
        sizes: the tables' sizes in files, in ascending order.
        delta: the folders of the equivalent plain Delta tables, by size.
        commits: the lengths of two histories to compare.
        bulk: the number of adds of a large commit.
        ducklake_python: the Python of DuckLake's environment.
    """

    engine: str
    folder: Path
    sizes: tuple[int, ...]
    delta: Mapping[int, Path]
    commits: tuple[int, int]
    bulk: int
    ducklake_python: str | None
    rows: list[Row] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def largest(self) -> int:
        """The largest size, at which growth is measured."""
        return self.sizes[-1]

    @property
    def peer_size(self) -> int:
        """The size at which dead files and DuckLake are measured."""
        return max(n for n in self.sizes if n <= 100_000 or n == self.sizes[0])

    def database(self, label: str) -> Database:
        """Return a new database of the engine."""
        return ENGINES[self.engine](self.folder, label)

    def time(self, operation: str, files: int, seconds: float, who: str = "") -> float:
        """Record and return a median, of this engine unless `who` names a peer."""
        who = who or self.engine
        self.timings.append(Timing(operation, who, files, seconds))
        return seconds

    def memory(self, operation: str, files: int, peak_bytes: int, who: str) -> None:
        """Record a peak of memory."""
        self.timings.append(Timing(operation, who, files, peak_bytes / 1e6, "MB"))

    def at_most(
        self, bar: str, what: str, value: float, limit: float | None, unit: str = "x"
    ) -> None:
        """Record a figure that must not exceed `limit`."""
        ok = None if limit is None else value <= limit
        self._add(bar, what, value, unit, "" if limit is None else f"<= {limit:g}", ok)

    def at_least(
        self, bar: str, what: str, value: float, limit: float | None, unit: str = "x"
    ) -> None:
        """Record a figure that must reach `limit`."""
        ok = None if limit is None else value >= limit
        self._add(bar, what, value, unit, "" if limit is None else f">= {limit:g}", ok)

    def report(self, bar: str, what: str, value: float, unit: str) -> None:
        """Record a figure without a bar."""
        self._add(bar, what, value, unit, "", None)

    def measure(
        self, steps: Mapping[str, Callable[[], None]], bars: Collection[str]
    ) -> None:
        """Run the steps of the requested bars; a step that raises is a missed bar."""
        for name in (name for name in steps if name in bars):
            started = time.monotonic()
            try:
                steps[name]()
            except Exception as error:
                # The remaining bars are measured all the same.
                traceback.print_exc()
                self._fail(name, error)
            took = f"{self.engine}, {name}: {time.monotonic() - started:.1f} s"
            print(took, file=sys.stderr, flush=True)

    def _fail(self, bar: str, error: Exception) -> None:
        self._add(bar, f"{type(error).__name__}: {error}"[:80], 0, "", "", ok=False)

    def _add(
        self, bar: str, what: str, value: float, unit: str, limit: str, ok: bool | None
    ) -> None:
        self.rows.append(Row(bar, self.engine, what, value, unit, limit, ok))


def short(files: int) -> str:
    """Return a size in the form of the command line, such as `10k`."""
    if files % MILLION == 0:
        return f"{files // MILLION}m"
    return f"{files // 1000}k" if files % 1000 == 0 else str(files)
