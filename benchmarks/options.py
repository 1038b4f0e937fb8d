"""The options that the benchmarks share."""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from engines import ENGINES

__all__ = ["among", "options_of", "work_folder"]


def options_of(
    description: str | None, bars: Collection[str], quick: str
) -> argparse.ArgumentParser:
    """Return a parser with the options for engines, bars and folders."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--engines", type=among(ENGINES), default=list(ENGINES))
    parser.add_argument("--bars", type=among(bars), default=list(bars))
    parser.add_argument("--quick", action="store_true", help=quick)
    results = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=results)
    parser.add_argument("--work", type=Path, help="folder for the databases of the run")
    return parser


def among(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return an argument type: some of the given choices, separated by commas."""

    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{unknown} not among {', '.join(known)}")
        return chosen

    return parse


@contextmanager
def work_folder(options: argparse.Namespace) -> Iterator[Path]:
    """Yield a folder for the databases of a run, and delete it afterwards.

    The folder for the results is created, too.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="dk-bench-", dir=options.work))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
