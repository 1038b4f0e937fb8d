"""A DuckLake worker, which runs in DuckLake's environment and speaks JSON lines.

The worker inserts all files into DuckLake's metadata tables directly. Only files that a
query may match exist, with one matching row each. DuckDB lists the files of a DuckLake
table when it executes a query, not for EXPLAIN. The time of planning is therefore the
time of the query less the time of a scan of the same files by name.
"""

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
from duckdb_extensions import import_extension

_EXTENSIONS = ("ducklake", "sqlite_scanner", "postgres_scanner")
_COLUMNS = {
    "id": "BIGINT",
    "day": "DATE",
    "ts": "TIMESTAMPTZ",
    "amount": "DOUBLE",
    "city": "VARCHAR",
}
_TYPES = {"sqlite": "(TYPE sqlite)", "postgres": "(TYPE postgres)"}


class Worker:
    """An attached DuckLake."""

    def __init__(self) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")
        self._matching: dict[str, list[str]] = {}
        for name in _EXTENSIONS:
            import_extension(name, con=self._connection)
            self._connection.execute(f"LOAD {name}")

    def build(
        self, attach: str, data: str, files: str, wheres: list[str]
    ) -> dict[str, Any]:
        """Create a table with the files that a Parquet file lists."""
        self._attach(attach, f"DATA_PATH '{data}', ")
        columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
        self._run(f"CREATE TABLE lake.events ({columns})")
        self._run("ALTER TABLE lake.events SET PARTITIONED BY (day)")
        self._run("DETACH lake")
        self._run(f"CREATE TEMP TABLE f AS FROM '{files}'")
        self._run(
            "CREATE TEMP TABLE sizes (number BIGINT, bytes BIGINT, footer BIGINT)"
        )
        for where in wheres:
            self._matching[where] = self._write_files(data, where)
        self._insert(attach)
        self._attach(attach)
        return {}

    def plan(self, where: str) -> dict[str, Any]:
        """Return the seconds of a pruned query, and of a scan of the files it reads."""
        started = time.perf_counter()
        ((found,),) = self._run(f"SELECT count(*) FROM lake.events WHERE {where}")
        queried = time.perf_counter()
        paths = self._matching[where]
        scan = f"read_parquet({paths}, hive_partitioning = false)"
        self._run(f"SELECT count(*) FROM {scan} WHERE {where}")
        scanned = time.perf_counter()
        return {
            "query_s": queried - started,
            "scan_s": scanned - queried,
            "files": found,
        }

    def _attach(self, attach: str, options: str = "") -> None:
        options = f"{options}DATA_INLINING_ROW_LIMIT 0"
        self._run(f"ATTACH 'ducklake:{attach}' AS lake ({options})")

    def _write_files(self, data: str, where: str) -> list[str]:
        rows = self._run(
            "SELECT number, path, day, id_min, ts_min, amount_min, city_min FROM f "
            f"WHERE {_on_bounds(where)}"
        )
        paths = []
        for number, path, *values in rows:
            target = Path(data) / "main" / "events" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            self._write_file(target, values)
            tail = target.read_bytes()[-8:-4]
            sizes = (number, target.stat().st_size, struct.unpack("<i", tail)[0])
            self._connection.execute("INSERT INTO sizes VALUES (?, ?, ?)", sizes)
            paths.append(str(target))
        return paths

    def _write_file(self, target: Path, values: list[str]) -> None:
        day, *others = values
        row = dict(zip(_COLUMNS, (others[0], day, *others[1:]), strict=True))
        items = ", ".join(
            f"CAST('{value}' AS {_COLUMNS[name]}) AS {name}"
            for name, value in row.items()
        )
        ids = ", ".join(f"{name}: {i}" for i, name in enumerate(_COLUMNS, 1))
        self._run(
            f"COPY (SELECT {items}) TO '{target}' (FORMAT parquet, FIELD_IDS {{{ids}}})"
        )

    def _insert(self, attach: str) -> None:
        kind, _, where = attach.partition(":")
        self._run(f"ATTACH '{where or attach}' AS meta {_TYPES.get(kind, '')}")
        schema = "meta.public" if kind == "postgres" else "meta"
        self._run("BEGIN")
        for statement in _inserts(schema):
            self._run(statement)
        self._run("COMMIT")
        self._run("DETACH meta")

    def _run(self, statement: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement).fetchall()


def _on_bounds(where: str) -> str:
    if where.startswith("day"):
        return where
    _, _, low, _, high = where.split()
    return f"CAST(id_max AS BIGINT) >= {low} AND CAST(id_min AS BIGINT) <= {high}"


def _inserts(schema: str) -> Iterator[str]:
    yield f"""
        INSERT INTO {schema}.ducklake_data_file (
            data_file_id, table_id, begin_snapshot, path, path_is_relative,
            file_format, record_count, file_size_bytes, footer_size, row_id_start,
            partition_id
        )
        SELECT
            f.number, 1, 3, f.path, true, 'parquet', 1000,
            coalesce(s.bytes, 1000000), coalesce(s.footer, 500), f.number * 1000, 2
        FROM f LEFT JOIN (SELECT DISTINCT * FROM sizes) s USING (number)
        ORDER BY f.number
    """
    yield f"""
        INSERT INTO {schema}.ducklake_file_partition_value (
            data_file_id, table_id, partition_key_index, partition_value
        )
        SELECT number, 1, 0, day FROM f ORDER BY number
    """
    for column_id, name in enumerate(_COLUMNS, 1):
        low, high = ("day", "day") if name == "day" else (f"{name}_min", f"{name}_max")
        kind = _COLUMNS[name]
        nan = "false" if kind == "DOUBLE" else "NULL"
        yield f"""
            INSERT INTO {schema}.ducklake_file_column_stats (
                data_file_id, table_id, column_id, column_size_bytes, value_count,
                null_count, min_value, max_value, contains_nan
            )
            SELECT number, 1, {column_id}, 1000, 1000, 0, {low}, {high}, {nan}
            FROM f ORDER BY number
        """
        # Without these rows, DuckDB takes the table for empty and plans nothing.
        yield f"""
            INSERT INTO {schema}.ducklake_table_column_stats (
                table_id, column_id, contains_null, contains_nan, min_value, max_value
            )
            SELECT
                1, {column_id}, false, {nan},
                CAST(min(CAST({low} AS {kind})) AS VARCHAR),
                CAST(max(CAST({high} AS {kind})) AS VARCHAR)
            FROM f
        """
    yield f"""
        INSERT INTO {schema}.ducklake_table_stats (
            table_id, record_count, next_row_id, file_size_bytes
        )
        SELECT 1, count(*) * 1000, count(*) * 1000, count(*) * 1000000 FROM f
    """
    yield f"""
        INSERT INTO {schema}.ducklake_snapshot (
            snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id
        )
        SELECT 3, now(), 2, 3, count(*) FROM f
    """
    yield f"""
        INSERT INTO {schema}.ducklake_snapshot_changes (snapshot_id, changes_made)
        VALUES (3, 'inserted_into_table:1')
    """


def main() -> None:
    """Answer requests until the input ends."""
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(worker, request.pop("task"))(**request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
