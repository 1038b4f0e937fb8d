"""Readers that weren't written here: delta-rs, DuckDB's delta extension, ClickHouse.

The last two live in an environment of their own, and run in one process that answers
requests.
"""

import atexit
import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.support.environments import ensure_readers
from tests.support.processes import program

READERS = ("delta-rs", "duckdb", "clickhouse")


class UnreadableError(Exception):
    """What a reader says that can't read a table."""


@dataclass(frozen=True)
class Reading:
    """A table as a reader sees it: files below its folder, typed columns, rows."""

    files: list[str]
    columns: list[tuple[str, str]]
    rows: list[str]


def read(reader: str, location: str, version: int, schema: pa.Schema) -> Reading:
    """A version of a table; `schema` is what its rows are compared in."""
    ask = _ask_deltalake if reader == "delta-rs" else _ask_worker
    files, columns, rows = ask(reader, location, version)
    return Reading(
        files=sorted(path.removeprefix(f"{location}/") for path in files),
        columns=[(name, re.sub(r"\s+", " ", kind)) for name, kind in columns.items()],
        rows=_comparable(rows, schema),
    )


def expected(
    reader: str, files: list[str], schema_string: str, rows: pa.Table
) -> Reading:
    """What a reader should make of these files, this schema and these rows."""
    fields = json.loads(schema_string)["fields"]
    if reader == "clickhouse":
        rows = pa.Table.from_pylist(_without_nulls(rows), rows.schema)
    return Reading(
        files=sorted(files),
        columns=[(field["name"], _TYPES[reader](field["type"])) for field in fields],
        rows=_comparable(rows, rows.schema),
    )


def _comparable(table: pa.Table, schema: pa.Schema) -> list[str]:
    """The rows as text, in one order; NaN equals NaN there."""
    rows = table.select(schema.names).cast(schema).to_pylist()
    return sorted(repr(list(row.values())) for row in rows)


# ---- asking

Answer = tuple[list[str], dict[str, str], pa.Table]


def _ask_deltalake(reader: str, location: str, version: int) -> Answer:
    try:
        table = DeltaTable(location, version=version)
        rows = QueryBuilder().register("t", table).execute("SELECT * FROM t")
        rows = pa.table(rows.read_all())
    except Exception as error:
        raise UnreadableError(str(error)) from error
    fields = json.loads(table.schema().to_json())["fields"]
    columns = {field["name"]: _deltalake_type(field["type"]) for field in fields}
    files = [uri.replace(quote(location), location, 1) for uri in table.file_uris()]
    return files, columns, rows


def _ask_worker(reader: str, location: str, version: int) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/rows.arrow"
        request = {"location": location, "version": version, "out": out}
        worker = _worker()
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps({"reader": reader, **request}) + "\n")
        worker.stdin.flush()
        answer = json.loads(worker.stdout.readline())
        if "error" in answer:
            raise UnreadableError(answer["error"])
        with pa.ipc.open_file(out) as rows:
            return answer["files"], answer["columns"], rows.read_all()


@cache
def _worker() -> "subprocess.Popen[str]":
    worker = subprocess.Popen(
        program("readers_worker", python=ensure_readers()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_stop, worker)
    return worker


def _stop(worker: "subprocess.Popen[str]") -> None:
    worker.kill()
    worker.communicate()


# ---- Delta's types in each reader's words

_SIMPLE = {
    "duckdb": {
        "byte": "TINYINT",
        "short": "SMALLINT",
        "integer": "INTEGER",
        "long": "BIGINT",
        "float": "FLOAT",
        "double": "DOUBLE",
        "boolean": "BOOLEAN",
        "string": "VARCHAR",
        "binary": "BLOB",
        "date": "DATE",
        "timestamp": "TIMESTAMP WITH TIME ZONE",
        "timestamp_ntz": "TIMESTAMP",
    },
    "clickhouse": {
        "byte": "Int8",
        "short": "Int16",
        "integer": "Int32",
        "long": "Int64",
        "float": "Float32",
        "double": "Float64",
        "boolean": "Bool",
        "string": "String",
        "binary": "String",
        "date": "Date32",
        "timestamp": "DateTime64(6)",
        "timestamp_ntz": "DateTime64(6)",
    },
}


def _deltalake_type(kind: Any) -> str:
    return json.dumps(kind, sort_keys=True)


def _duckdb_type(kind: Any) -> str:
    if isinstance(kind, str):
        return _SIMPLE["duckdb"].get(kind, kind.upper())
    if kind["type"] == "array":
        return f"{_duckdb_type(kind['elementType'])}[]"
    if kind["type"] == "map":
        key, value = _duckdb_type(kind["keyType"]), _duckdb_type(kind["valueType"])
        return f"MAP({key}, {value})"
    fields = [f"{f['name']} {_duckdb_type(f['type'])}" for f in kind["fields"]]
    return f"STRUCT({', '.join(fields)})"


def _clickhouse_type(kind: Any) -> str:
    if isinstance(kind, str):
        decimal = kind.replace("decimal", "Decimal").replace(",", ", ")
        return f"Nullable({_SIMPLE['clickhouse'].get(kind, decimal)})"
    if kind["type"] == "array":
        return f"Array({_clickhouse_type(kind['elementType'])})"
    if kind["type"] == "map":
        key = _SIMPLE["clickhouse"][kind["keyType"]]
        return f"Map({key}, {_clickhouse_type(kind['valueType'])})"
    fields = [f"{f['name']} {_clickhouse_type(f['type'])}" for f in kind["fields"]]
    return f"Tuple( {', '.join(fields)})"


def _without_nulls(rows: pa.Table) -> list[dict[str, Any]]:
    """ClickHouse has no null arrays, maps and tuples: it reads them as empty ones."""
    return [
        {field.name: _filled(row[field.name], field.type) for field in rows.schema}
        for row in rows.to_pylist()
    ]


def _filled(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        given = value or {}
        return {f.name: _filled(given.get(f.name), f.type) for f in kind}
    if pa.types.is_list(kind):
        return [_filled(item, kind.value_type) for item in value or []]
    return value or [] if pa.types.is_map(kind) else value


_TYPES = {
    "delta-rs": _deltalake_type,
    "duckdb": _duckdb_type,
    "clickhouse": _clickhouse_type,
}
