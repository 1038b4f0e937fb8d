"""Trace one published append: its modules and the depth of its calls.

The script appends one row to an existing table, with the catalog open. It prints each
module of the package that the append calls, in order of the first call, with the
functions called.
"""

import argparse
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import FrameType

import pyarrow as pa

import delkalakedb as dk

SOURCE = Path(dk.__file__).parent


class Walk:
    """The traced calls of the package's functions."""

    def __init__(self) -> None:
        self.modules: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self.depth = 0
        self.deepest: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Record a call; the interpreter's profiler calls this method."""
        if event != "call" or (module := _module(frame)) is None:
            return
        self.modules[module][frame.f_code.co_qualname] = None
        stack = []
        above: FrameType | None = frame
        while above is not None:
            if name := _module(above):
                stack.append(f"{name}: {above.f_code.co_qualname}")
            above = above.f_back
        if len(stack) > self.depth:
            self.depth, self.deepest = len(stack), stack[::-1]


def _module(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(SOURCE) or frame.f_code.co_name == "<module>":
        return None
    return path.relative_to(SOURCE).as_posix()


def walk(uri: str) -> Walk:
    """Create the table of `uri`, append to it twice, and trace the second append."""
    # seconds; on a busy machine a traced append outlasts half of the default and renews
    os.environ["DELKALAKEDB_MIRROR__LEASE"] = "60"
    row = pa.table({"id": [1]})
    dk.write_deltalake(uri, row)
    dk.write_deltalake(uri, row, mode="append")
    traced = Walk()
    sys.setprofile(traced)
    try:
        dk.write_deltalake(uri, row, mode="append")
    finally:
        sys.setprofile(None)
    return traced


def main() -> None:
    """Print the trace of an append to a temporary catalog, or to `--catalog`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--catalog", help="a deltasql:// URI; a temporary SQLite catalog by default"
    )
    parser.add_argument(
        "--deepest", action="store_true", help="print the deepest stack"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        catalog = options.catalog or f"deltasql://sqlite/{folder}/meta.db"
        traced = walk(f"{catalog}{'&' if '?' in catalog else '?'}table=walked")
    for module, functions in traced.modules.items():
        print(f"{module}: {', '.join(functions)}")
    if options.deepest:
        print(*traced.deepest, sep="\n")
    print(f"{len(traced.modules)} modules, {traced.depth} calls deep")


if __name__ == "__main__":
    main()
