"""Run delta-rs's own Python tests on plain deltalake and on tables of a catalog.

    python benchmarks/suite/run.py --checkout delta-rs [--engine sqlite]

The checkout is of delta-io/delta-rs, at a version near the installed deltalake. The
script downloads nothing. It counts only tests that pass on plain deltalake and open a
table of the catalog. It starts its own Postgres server, as this package's tests do.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KNOWN = HERE.parents[1] / "docs" / "compatibility.md"
sys.path.append(str(HERE.parents[1]))

from tests.support.servers.postgres import Server  # noqa: E402

MARKS = "not integration and not benchmark and not no_pyarrow"
Results = dict[str, dict[str, Any]]


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = run("", options.checkout, folder / "plain", options.tests)
        with catalog(options.engine, folder) as uri:
            ours = run(uri, options.checkout, folder / "ours", options.tests)
    text = report(plain, ours, options.engine)
    print(text)
    if options.report:
        options.report.write_text(text)
    if new := unexplained(plain, ours):
        sys.exit(f"not in {KNOWN.name}: {', '.join(new)}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkout", type=Path, required=True)
    engines = ("sqlite", "duckdb", "postgres")
    parser.add_argument("--engine", choices=engines, default="sqlite")
    parser.add_argument(
        "--report", type=Path, help="file to write the result to as well"
    )
    parser.add_argument(
        "tests", nargs="*", default=["tests"], help="arguments for pytest"
    )
    return parser.parse_args()


@contextmanager
def catalog(engine: str, folder: Path) -> Iterator[str]:
    """Yield the URI of an empty catalog."""
    if engine != "postgres":
        yield f"deltasql://{engine}/{folder}/meta.{engine}"
        return
    server = Server()
    try:
        server.start()
        yield f"deltasql://postgres/{server.authority}/postgres/public"
    finally:
        server.stop()


def run(catalog_uri: str, checkout: Path, folder: Path, tests: list[str]) -> Results:
    """Run the tests, on plain deltalake unless a catalog is given; return outcomes."""
    results, log = folder.with_suffix(".json"), folder.with_suffix(".log")
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--tb=short", "--timeout=120"),
        *("-p", "routing", "-p", "no:cacheprovider", "-o", "addopts=", "-m", MARKS),
        *("--basetemp", str(folder), *tests),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "PYTHONSAFEPATH": "1",  # the checkout's deltalake has no compiled part
        "SUITE_CATALOG": catalog_uri,
        "SUITE_RESULTS": str(results),
    }
    with log.open("w") as output:
        cwd = checkout / "python"
        subprocess.run(command, cwd=cwd, env=environment, stdout=output, check=False)
    if not results.exists():
        sys.exit(log.read_text())
    return dict(json.loads(results.read_text()))


def report(plain: Results, ours: Results, engine: str) -> str:
    """Return a report: tests that pass on both, and failures on ours by reason."""
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


def unexplained(plain: Results, ours: Results) -> list[str]:
    """Return tests that fail only on ours and that the documentation doesn't name."""
    page = KNOWN.read_text()
    failed = {n for n in plain if passed(plain[n]) and not passed(ours.get(n, {}))}
    return sorted(n for n in failed if f"`{function(n)}`" not in page)


def function(name: str) -> str:
    return name.rpartition("::")[2].partition("[")[0]


def passed(result: dict[str, Any]) -> bool:
    return result.get("outcome") == "passed"


def grouped(names: set[str], results: Results) -> list[tuple[str, list[str]]]:
    groups = defaultdict(list)
    for name in sorted(names):
        groups[reason(results.get(name, {}).get("message", "not run"))].append(name)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def reason(message: str) -> str:
    """Return the first line of an error, without what differs between tests."""
    first = message.strip().partition("\n")[0]
    first = re.sub(r"(file://)?/[^\s'\"]+", "<path>", first)
    first = re.sub(r"\w+_[0-9a-f]{12}\b", "<table>", first)
    return re.sub(r"\b[0-9a-f-]{16,}\b|\d+", "N", first)[:160]


if __name__ == "__main__":
    main()
