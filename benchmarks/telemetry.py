"""Measure what telemetry costs an append: python benchmarks/telemetry.py --help.

Three processes append one row at a time to tables of their own, in turns: one whose
measuring functions do nothing, one without OpenTelemetry's SDK, and one that keeps
metrics and spans in memory.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping

from bars import Run
from engines import postgres_server
from measure import start_child
from options import options_of, work_folder
from report import finish, write_json

from delkalakedb.settings.uri import format_uri, parse_uri

_BARS = ("append",)
_ROUNDS, _QUICK_ROUNDS = 40, 5
# ratios to an append without any measuring
_MOST = {"no SDK": 1.02, "in-memory SDK": 1.10}
_NOTHING = "nothing measured"


def main() -> int:
    """Run the requested benchmarks; exit with 1 if a bar was missed."""
    options = options_of(__doc__, _BARS, "few rounds").parse_args()
    rounds = _QUICK_ROUNDS if options.quick else _ROUNDS
    runs: list[Run] = []
    with work_folder(options) as work:
        with postgres_server("postgres" in options.engines):
            for engine in options.engines:
                run = Run(engine, work / engine, (1,), {}, (0, 0), 0, None)
                run.folder.mkdir()
                runs.append(run)
                run.measure({"append": lambda run=run: _measure(run, rounds)}, _BARS)
        write_json(runs, options.out / "telemetry.json")
    return finish(runs)


def _measure(run: Run, rounds: int) -> None:
    children = {}
    for number, kind in enumerate((_NOTHING, *_MOST)):
        table = parse_uri(run.database(f"telemetry{number}").uri).with_table("t")
        location = run.folder / str(number)
        children[kind] = start_child(
            "append_in_turns", format_uri(table), location, kind
        )
    try:
        took = _take_turns(children, rounds)
    finally:
        for child in children.values():
            child.communicate("", timeout=60)
    least = took[_NOTHING]
    bar = "append of one row, telemetry"
    run.report(bar, _NOTHING, least * 1000, "ms")
    for kind, most in _MOST.items():
        run.at_most(bar, kind, took[kind] / least, most)


def _take_turns(
    children: Mapping[str, "subprocess.Popen[str]"], rounds: int
) -> dict[str, float]:
    """Return the median CPU seconds of an append in each child."""
    found: dict[str, list[float]] = {kind: [] for kind in children}
    for _ in range(rounds):
        for kind, child in children.items():
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("append\n")
            child.stdin.flush()
            found[kind].append(json.loads(child.stdout.readline()))
    return {kind: statistics.median(times) for kind, times in found.items()}


if __name__ == "__main__":
    sys.exit(main())
