"""The progress of long calls: what callbacks are given, and the bar that shows it.

Code that takes long calls `report`. A caller that wants to know surrounds the code with
`reporting`, as each public function with an argument `progress` does.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from delkalakedb.model.display import format_size

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How much of a long call is done.

    Args:
        what: what is being done, such as `verify sales`.
        done: how many units are done.
        total: how many units there are; None if the number isn't known.
        unit: what is counted, such as `files`.

    Examples:
        >>> uri, parts = "deltasql://sqlite/meta.db?table=sales", []
        >>> report = dk.verify(uri, deep=True, progress=parts.append)
        >>> parts[-1].what, parts[-1].done, parts[-1].total
        ('verify sales', 2, 2)
    """

    what: str
    done: int
    total: int | None
    unit: str


Reporter = Callable[[Progress], None]
# a callback, True for a bar, False for nothing, None for what the caller asked for
ProgressOption = Reporter | bool | None

_report: ContextVar[Reporter | None] = ContextVar("report", default=None)


def report(progress: Progress) -> None:
    """Report progress to the callback or the bar of the surrounding `reporting`.

    An error of the callback ends the call that reports, so nothing may be reported
    where an error would leave work half done.
    """
    tell = _report.get()
    if tell is not None:
        tell(progress)


def is_reporting() -> bool:
    """Return whether anybody wants to know the progress."""
    return _report.get() is not None


def counted(what: str, items: Iterable[_T], total: int, unit: str) -> Iterator[_T]:
    """Yield `items`, and report how many the caller has finished."""
    report(Progress(what=what, done=0, total=total, unit=unit))
    for done, item in enumerate(items, 1):
        yield item
        report(Progress(what=what, done=done, total=total, unit=unit))


@contextmanager
def reporting(progress: ProgressOption) -> Iterator[None]:
    """Pass what the `with` block reports to a callback or a bar.

    Args:
        progress: a callback, which is called in the thread of the caller; True for a
            bar on the terminal or in the notebook; False for nothing; None for what a
            surrounding block passes its progress to.
    """
    if progress is None:
        yield
    elif progress is True:
        with _bar() as tell, _telling(tell):
            yield
    else:
        with _telling(progress or None):
            yield


@contextmanager
def _telling(tell: Reporter | None) -> Iterator[None]:
    before = _report.set(tell)
    try:
        yield
    finally:
        _report.reset(before)


@contextmanager
def _bar() -> Iterator[Reporter | None]:
    """Draw a bar with the rate and the time left; yield what moves the bar.

    Where there is neither a terminal nor a notebook, nothing is drawn.
    """
    if not (sys.stderr.isatty() or "IPython" in sys.modules):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress as Bars,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(file=sys.stderr)
    if not (console.is_jupyter or sys.stderr.isatty()):
        yield None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None, count="", rate="")
        counting = None

        def tell(progress: Progress) -> None:
            nonlocal counting
            if counting not in (None, (progress.what, progress.unit)):
                bars.reset(task)
            counting = progress.what, progress.unit
            elapsed = bars.tasks[0].elapsed or 0
            rate = _amount(progress, round(progress.done / elapsed)) if elapsed else ""
            bars.update(
                task,
                description=progress.what,
                completed=progress.done,
                total=progress.total,
                count=_count(progress),
                rate=rate and f"{rate}/s",
            )

        yield tell


def _count(progress: Progress) -> str:
    """Return how much is done in words, such as `3/10 files`."""
    total = "" if progress.total is None else f"/{_amount(progress, progress.total)}"
    unit = "" if progress.unit == "bytes" else progress.unit
    return f"{_amount(progress, progress.done)}{total} {unit}".rstrip()


def _amount(progress: Progress, number: int) -> str:
    return format_size(number) if progress.unit == "bytes" else f"{number:,}"
