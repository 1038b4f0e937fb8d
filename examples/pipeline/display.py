"""The output of a run: the progress of its stages, and a report at the end.

On a terminal, each stage has a progress bar with its rate and the remaining time. In a
pipe, each stage prints one line when it is done.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

__all__ = ["Display", "Stage"]

_NAME = "{:<26}"


@dataclass(frozen=True)
class Stage:
    """A finished stage: its name, its amount of work, and its duration."""

    name: str
    total: int
    unit: str
    seconds: float

    @property
    def rate(self) -> str:
        """How much of it in a second."""
        return f"{self.total / max(self.seconds, 0.001):,.0f}"


class Display:
    """Shows stages, one after the other, on a console."""

    def __init__(self, console: Console) -> None:
        self.stages: list[Stage] = []
        self._console = console

    @contextmanager
    def stage(
        self, name: str, total: int, unit: str = "rows"
    ) -> Iterator[Callable[[int], None]]:
        """Show the progress of a stage while the block runs.

        The block gets a function, which it calls with the amount of work just done.
        """
        started = time.monotonic()
        with self._progress() as progress:
            bar = progress.add_task(_NAME.format(name), total=total, unit=unit)
            yield lambda done: progress.advance(bar, done)
            progress.update(bar, completed=total)
        stage = Stage(name, total, unit, time.monotonic() - started)
        self.stages.append(stage)
        if not self._console.is_terminal:
            self.line(f"{_NAME.format(name)} {stage.seconds:7.1f} s")

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table; all columns but the first hold numbers."""
        table = Table(box=None, pad_edge=False)
        for i, head in enumerate(heads):
            table.add_column(head, justify="right" if i else "left", no_wrap=True)
        for row in rows:
            table.add_row(*map(Text, row))
        self._console.print()
        self._console.print(table)

    def line(self, text: str = "") -> None:
        """Print `text` without interpreting markup."""
        self._console.print(Text(text), soft_wrap=True)

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
            _Rate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            # Stages report few, long steps; a short period would lose the rate between.
            speed_estimate_period=3600,
        )


class _Rate(ProgressColumn):
    """The mean amount of work per second since the stage began."""

    def render(self, task: Task) -> Text:
        speed = task.completed / task.elapsed if task.elapsed else 0
        return Text(f"{speed:,.0f}/s" if speed else "")
