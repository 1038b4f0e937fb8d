"""Run delta-rs's own Python tests on plain deltalake and on tables of a catalog.

    python benchmarks/suite/run.py --checkout delta-rs [--engine sqlite]

The checkout is one of delta-io/delta-rs, at a version near the installed deltalake.
Nothing is fetched. Only tests that pass on plain deltalake and reach a table of the
catalog count.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MARKS = "not integration and not benchmark and not no_pyarrow"
Results = dict[str, dict[str, Any]]


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        plain = run("plain", options.checkout, Path(folder), options.tests)
        ours = run(options.engine, options.checkout, Path(folder), options.tests)
    text = report(plain, ours, options.engine)
    print(text)
    if options.report:
        options.report.write_text(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--engine", choices=("sqlite", "duckdb"), default="sqlite")
    parser.add_argument("--report", type=Path, help="also write the result here")
    parser.add_argument("tests", nargs="*", default=["tests"], help="for pytest")
    return parser.parse_args()


def run(engine: str, checkout: Path, folder: Path, tests: list[str]) -> Results:
    """How each test ended, by its id."""
    results = folder / f"{engine}.json"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--tb=short", "--timeout=120"),
        *("-p", "routing", "-p", "no:cacheprovider", "-o", "addopts=", "-m", MARKS),
        *("--basetemp", str(folder / engine), *tests),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "PYTHONSAFEPATH": "1",  # the checkout's deltalake has no compiled part
        "SUITE_ENGINE": engine,
        "SUITE_RESULTS": str(results),
    }
    with (folder / f"{engine}.log").open("w") as log:
        subprocess.run(
            command, cwd=checkout / "python", env=environment, stdout=log, check=False
        )
    if not results.exists():
        sys.exit((folder / f"{engine}.log").read_text())
    return dict(json.loads(results.read_text()))


def report(plain: Results, ours: Results, engine: str) -> str:
    """What passes on both, and what fails on ours alone, by its reason."""
    passing = {name for name, result in plain.items() if passed(result)}
    routed = {name for name in passing if ours.get(name, {}).get("routed")}
    failed = {name for name in routed if not passed(ours[name])}
    astray = {n for n in passing - routed if not passed(ours.get(n, {}))}
    share = 100 * (len(routed) - len(failed)) / max(len(routed), 1)
    lines = [
        f"| on {engine} | tests |",
        "|---|---|",
        f"| pass on plain deltalake | {len(passing)} |",
        f"| and reach a table of the catalog | {len(routed)} |",
        f"| and pass there too | {len(routed) - len(failed)} ({share:.1f}%) |",
        f"| fail there | {len(failed)} |",
        f"| fail without reaching one | {len(astray)} |",
    ]
    for reason, names in grouped(failed | astray, ours):
        lines += ["", f"## {len(names)}: {reason}", *(f"- {name}" for name in names)]
    return "\n".join(lines) + "\n"


def passed(result: dict[str, Any]) -> bool:
    return result.get("outcome") == "passed"


def grouped(names: set[str], results: Results) -> list[tuple[str, list[str]]]:
    groups = defaultdict(list)
    for name in sorted(names):
        groups[reason(results.get(name, {}).get("message", "not run"))].append(name)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def reason(message: str) -> str:
    """The first line without what differs from test to test."""
    first = message.strip().partition("\n")[0]
    first = re.sub(r"(file://)?/[^\s'\"]+", "<path>", first)
    first = re.sub(r"\w+_[0-9a-f]{12}\b", "<table>", first)
    return re.sub(r"\b[0-9a-f-]{16,}\b|\d+", "N", first)[:160]


if __name__ == "__main__":
    main()
