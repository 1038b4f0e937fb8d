"""The lag of the mirror while a writer commits and the reconciler publishes.

The lag of a version is read from its file: the mirror sets the modification time to the
time of the commit, and the kernel's change time is the time of publishing.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import tables
from bars import Run
from deltalake import DeltaTable
from measure import run_child, start_child

from delkalakedb import mirror
from delkalakedb.model.actions import Add, decode_commit
from delkalakedb.model.log import Staged

_TABLES = 10
_RATE = 50.0
_P95_S = 1.0
_STEP_UP = 1.25
_KEPT_PACE = 0.95
_DRAINED_WITHIN_S = 120
_BAR = "mirror lag"


@dataclass(frozen=True)
class _Offered:
    """The result of commits at a rate, with the lags in the order of the commits."""

    rate: float
    achieved: float
    lags_s: Sequence[float]

    @property
    def p95_s(self) -> float:
        return _p95(self.lags_s)

    @property
    def bounded(self) -> bool:
        """Whether the writer and the mirror kept pace to the end."""
        last = self.lags_s[-len(self.lags_s) // 3 :]
        return self.achieved >= _KEPT_PACE * self.rate and _p95(last) < _P95_S


def measure_lag(run: Run, *, quick: bool) -> None:
    """Measure the lag at the bar's rate, and the highest rate with a bounded lag."""
    lake = _Lake(run)
    with _reconciler(lake.uri):
        lake.wait()
        offered = lake.offer(_RATE, 10 if quick else 60)
        run.at_least(_BAR, "offered at 50/s, achieved", offered.achieved, 49, "/s")
        run.report(_BAR, "at 50/s, median", statistics.median(offered.lags_s), "s")
        run.at_most(_BAR, "at 50/s, p95", offered.p95_s, _P95_S, "s")
        run.report(_BAR, "at 50/s, longest", max(offered.lags_s), "s")
        highest = _ramp(run, lake, offered, 4 if quick else 12)
    run.report(_BAR, "bounded up to", highest.achieved, "/s")
    run.report(_BAR, "p95 at that rate", highest.p95_s, "s")
    for what, count in lake.check().items():
        run.at_most(_BAR, what, count, 0, "")


def _ramp(run: Run, lake: "_Lake", offered: _Offered, seconds: float) -> _Offered:
    """Raise the rate step by step, and return the last one with a bounded lag."""
    highest = offered
    while offered.bounded:
        highest = offered
        offered = lake.offer(offered.rate * _STEP_UP, seconds)
        run.notes.append(
            f"{offered.rate:.0f}/s offered, {offered.achieved:.0f}/s achieved: "
            f"lag {statistics.median(offered.lags_s):.2f} s, p95 {offered.p95_s:.2f} s"
        )
    return highest


class _Lake:
    """Tables without files, and a writer that appends to them in rotation."""

    def __init__(self, run: Run) -> None:
        database = run.database("lag")
        self.uri = database.uri
        self._versions = {f"t{i}": 0 for i in range(_TABLES)}
        self._logs = {
            name: run.folder / "lag" / name / "_delta_log" for name in self._versions
        }
        with database.connect() as catalog:
            for name, log in self._logs.items():
                location = str(log.parent)
                catalog.commit(Staged(name, tables.first_actions(), location=location))

    def offer(self, rate: float, seconds: float) -> _Offered:
        """Commit at a rate, in a separate process, and wait until all are published."""
        before = self._versions
        names = ",".join(before)
        answer = run_child("pace", self.uri, names, rate, int(rate * seconds))
        self._versions = answer["versions"]
        self.wait()
        return _Offered(rate, answer["rate"], list(self._lags(before)))

    def wait(self) -> None:
        """Wait until every version is published."""
        deadline = time.monotonic() + _DRAINED_WITHIN_S
        while any(status.versions_behind for status in mirror.status(self.uri)):
            assert time.monotonic() < deadline, "the mirror didn't catch up"
            time.sleep(0.1)

    def check(self) -> dict[str, int]:
        """Compare the logs with the commits of the writer, and count the errors."""
        wrong = dict.fromkeys(("lost", "twice", "out of order", "for deltalake"), 0)
        for name, last in self._versions.items():
            wanted = [_path(version) for version in range(1, last + 1)]
            commits = [_added(path) for path in self._files(name)]
            found = [path for added in commits for path in added]
            read = DeltaTable(self._logs[name].parent).file_uris()
            times = [path.stat().st_ctime_ns for path in self._files(name)]
            late = sum(one > next_one for one, next_one in pairwise(times))
            moved = sum([w] != c for w, c in zip(wanted, commits[1:], strict=False))
            wrong["lost"] += len(set(wanted) - set(found))
            wrong["twice"] += len(found) - len(set(found))
            wrong["out of order"] += late + moved
            wrong["for deltalake"] += abs(len(read) - len(wanted))
        return wrong

    def _lags(self, before: Mapping[str, int]) -> Iterator[float]:
        """Return the lags of the later versions, oldest first."""
        new = [
            path.stat()
            for name, version in before.items()
            for path in self._files(name)[version + 1 :]
        ]
        for found in sorted(new, key=lambda found: found.st_mtime_ns):
            yield (found.st_ctime_ns - found.st_mtime_ns) / 1e9

    def _files(self, name: str) -> list[Path]:
        return sorted(self._logs[name].glob("[0-9]*.json"))


def _path(version: int) -> str:
    return tables.add(version, tables.FILES_PER_DAY).path


def _added(path: Path) -> list[str]:
    actions = decode_commit(path.read_bytes())
    return [action.path for action in actions if isinstance(action, Add)]


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


@contextmanager
def _reconciler(uri: str) -> Iterator[None]:
    process = start_child("reconcile", uri)
    try:
        yield
    finally:
        process.terminate()
        process.communicate()
