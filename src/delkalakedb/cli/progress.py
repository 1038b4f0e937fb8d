"""How far a long command has come: a bar on a terminal, nothing in a pipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

__all__ = ["Advance", "progress"]

Advance = Callable[[int, int | None], None]


@contextmanager
def progress(stream: IO[str], title: str, *, quiet: bool = False) -> Iterator[Advance]:
    """A bar with rate and time left; call it with (done, total or None).

    Args:
        stream: where it is drawn, if that is a terminal.
        title: what is being done.
        quiet: draw nothing.
    """
    if quiet or not stream.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(title, total=None, rate="")

        def advance(done: int, total: int | None) -> None:
            elapsed = bar.tasks[0].elapsed or 0
            rate = f"{done / elapsed:,.0f}/s" if elapsed else ""
            bar.update(task, completed=done, total=total, rate=rate)

        yield advance
