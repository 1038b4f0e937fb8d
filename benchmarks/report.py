"""The report of a run: a table on the terminal, a JSON file, and plots."""

import json
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bars import Row, Run, Timing

_VERDICTS = {True: "pass", False: "FAIL", None: ""}
_PACKAGES = ("delkalakedb", "deltalake", "duckdb", "psycopg", "pyarrow")
_LINES = ("open", "plan a range", "plan a partition")
_BARS = (
    ("list", "list_", "s"),
    ("list-memory", "list_", "MB"),
    ("commit", "commit of one", "s"),
    ("bulk", ("commit of many adds", "load of"), "s"),
)


def render(rows: Iterable[Row]) -> str:
    """Return the rows as text, grouped by bar."""
    ordered = sorted(rows, key=_order([row.bar for row in rows]))
    header = ("bar", "engine", "what", "measured", "must be", "")
    cells = [header, *(_cells(row) for row in ordered)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        for line in cells
    )


def finish(runs: Iterable[Run]) -> int:
    """Print the rows and notes of all runs; return 1 if a bar was missed, else 0."""
    runs = list(runs)
    rows = [row for run in runs for row in run.rows]
    print(render(rows))
    for run in runs:
        for note in run.notes:
            print(f"{run.engine}: {note}")
    return int(any(row.ok is False for row in rows))


def _order(bars: Sequence[str]) -> Callable[[Row], int]:
    return lambda row: bars.index(row.bar)


def _cells(row: Row) -> tuple[str, ...]:
    value = f"{row.value:.3g}" if row.value < 1000 else f"{row.value:.0f}"
    measured = f"{value} {row.unit}".strip()
    return (row.bar, row.engine, row.what, measured, row.limit, _VERDICTS[row.ok])


def write_json(runs: Sequence[Run], path: Path) -> None:
    """Write all measurements and a description of the machine as JSON."""
    content = {
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "packages": {name: version(name) for name in _PACKAGES},
        },
        "rows": [asdict(row) for run in runs for row in run.rows],
        "timings": [asdict(timing) for run in runs for timing in run.timings],
        "notes": [f"{run.engine}: {note}" for run in runs for note in run.notes],
    }
    path.write_text(json.dumps(content, indent=1))


def write_plots(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write the plots, or print that there are none if matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("plots were left out: pip install matplotlib", file=sys.stderr)
        return []
    mpl.use("agg")
    timings = [timing for run in runs for timing in run.timings]
    drawn = [_lines(timings, name, folder) for name in _LINES]
    for name, prefix, unit in _BARS:
        chosen = [
            t for t in timings if t.operation.startswith(prefix) and t.unit == unit
        ]
        drawn.append(_bars(chosen, name, unit, folder))
    return [path for path in drawn if path is not None]


def _lines(timings: Sequence[Timing], operation: str, folder: Path) -> Path | None:
    """Plot seconds by size, with a line for each engine and peer."""
    chosen = [t for t in timings if t.operation == operation]
    if not chosen:
        return None
    figure, axes = _figure()
    for who in dict.fromkeys(t.who for t in chosen):
        points = sorted({t.files: t.value for t in chosen if t.who == who}.items())
        axes.plot(*zip(*points, strict=True), marker="o", label=who)
    axes.set(xscale="log", yscale="log", xlabel="files", ylabel="seconds")
    axes.set_title(operation)
    axes.legend()
    return _save(figure, folder / f"{operation.replace(' ', '-')}.png")


def _bars(timings: Sequence[Timing], name: str, unit: str, folder: Path) -> Path | None:
    if not timings:
        return None
    figure, axes = _figure()
    found = {f"{t.who}: {t.operation}, {t.files} files": t.value for t in timings}
    axes.barh(list(found), list(found.values()))
    axes.invert_yaxis()
    axes.set(xlabel={"s": "seconds", "MB": "megabytes at the peak"}[unit], title=name)
    return _save(figure, folder / f"{name}.png")


def _figure() -> tuple[Any, Any]:
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(9, 5), layout="constrained")


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
