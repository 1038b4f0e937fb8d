"""The peers: deltalake, and DuckLake in a separate environment."""

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import deltalake
import pyarrow.parquet as pq
import tables
from engines import Database
from measure import Case, timed

_WORKER = Path(__file__).parent / "ducklake_worker.py"


def delta_open(path: Path) -> Case:
    """Return a case in which deltalake opens a table."""
    return timed(lambda: deltalake.DeltaTable(path))


def delta_plan(path: Path, query: tables.Query) -> Case:
    """Return a case in which deltalake opens a table and lists matching files."""

    def plan() -> None:
        table = deltalake.DeltaTable(path)
        found = table.file_uris(file_pruning_predicate=query.where)
        assert len(found) == query.matches, (query, len(found))

    return timed(plan)


class DuckLake:
    """A table in DuckLake on one of the engines, driven by a worker process."""

    def __init__(self, python: str, database: Database, files: int) -> None:
        folder = database.folder / f"ducklake-{database.name}"
        folder.mkdir()
        rows = folder / "files.parquet"
        pq.write_table(tables.arrow(files), rows)
        self._worker = subprocess.Popen(
            [python, str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ask(
            "build",
            attach=database.ducklake,
            data=f"{folder}/",
            files=str(rows),
            wheres=[query.where for query in tables.queries(files)],
        )
        database.settle()

    def query(self, query: tables.Query, scans: list[float]) -> Case:
        """Return a case with the pruned query, and append scan times to `scans`."""

        def case() -> float:
            answer = self._ask("plan", where=query.where)
            assert answer["files"] == query.matches, (query, answer)
            scans.append(answer["scan_s"])
            return float(answer["query_s"])

        return case

    def _ask(self, task: str, **arguments: Any) -> dict[str, Any]:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps({"task": task, **arguments}) + "\n")
        self._worker.stdin.flush()
        answer: dict[str, Any] = json.loads(self._worker.stdout.readline())
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._worker.communicate()
