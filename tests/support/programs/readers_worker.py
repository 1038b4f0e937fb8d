"""DuckDB and ClickHouse, run by the Python of their own environment.

A request is a line of JSON, and so is its answer; the rows go to a file as Arrow.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
from chdb.session import Session
from duckdb_extensions import import_extension

Answer = dict[str, Any]


def duckdb_reader() -> Callable[[str, int, str], Answer]:
    connection = duckdb.connect()
    import_extension("delta", con=connection)
    connection.execute("LOAD delta")
    connection.execute("SET TimeZone = 'UTC'")

    def read(location: str, version: int, out: str) -> Answer:
        given = [location, version]
        scan = "delta_scan(?, version = ?)"
        columns = connection.execute(f"DESCRIBE FROM {scan}", given).fetchall()
        listed = "SELECT data_file FROM delta_list_files(?, version = ?)"
        files = connection.execute(listed, given).fetchall()
        write(connection.execute(f"FROM {scan}", given).to_arrow_table(), out)
        return {
            "columns": {name: kind for name, kind, *_ in columns},
            "files": [path for (path,) in files],
        }

    return read


def clickhouse_reader() -> Callable[[str, int, str], Answer]:
    # ClickHouse reads files below the working directory only.
    os.chdir("/")
    session = Session()

    def read(location: str, version: int, out: str) -> Answer:
        settings = (
            f"SETTINGS delta_lake_snapshot_version = {version}, "
            "session_timezone = 'UTC', output_format_arrow_string_as_string = 0"
        )
        quoted = location.replace("\\", "\\\\").replace("'", "\\'")
        scan = f"deltaLakeLocal('{quoted}')"

        def ask(query: str) -> pa.Table:
            data = session.query(f"{query} {settings}", "Arrow").bytes()
            return pa.ipc.open_file(data).read_all()

        columns = ask(f"DESCRIBE {scan}").to_pylist()
        files = ask(f"SELECT DISTINCT _path AS path FROM {scan}").to_pylist()
        write(ask(f"SELECT * FROM {scan}"), out)
        return {
            "columns": {c["name"].decode(): c["type"].decode() for c in columns},
            "files": [file["path"].decode() for file in files],
        }

    return read


def write(table: pa.Table, out: str) -> None:
    with pa.OSFile(out, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def main() -> None:
    readers = {"duckdb": duckdb_reader(), "clickhouse": clickhouse_reader()}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = readers[request.pop("reader")](**request)
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
