"""Commands that show tables: `tables`, `describe`, `schema`, `history`, `files`."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import App, command, pass_app
from delkalakedb.cli.columns import ShownColumn
from delkalakedb.cli.options import (
    TABLE,
    at_options,
    commits_options,
    limit_option,
    where_option,
)
from delkalakedb.model.display import count_of, format_change, format_size

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb import Snapshot

_JSON_COLUMNS = ("partition_values", "tags", "deletion_vector")
_INTERNAL_COLUMNS = ("null_fields", "extra", "file_id")
_CHANGE = ShownColumn(
    "change",
    show=lambda r: format_change(r["num_added_files"], r["num_removed_files"]),
    fields=("num_added_files", "num_removed_files"),
)
_COLUMN_FIELDS = ("name", "type", "nullable", "partition", "comment")


@command(epilog="Example: deltasql tables --output json")
@pass_app
def tables(app: App) -> None:
    """List the tables at their latest versions."""
    from delkalakedb.settings import redact

    with app.connect() as catalog:
        records = [
            {**table.to_dict(), "location": redact(table.location)}
            for table in catalog.tables()
        ]
    columns = ("name", "version", "timestamp_ms", "num_files", "size_bytes", "location")
    app.output.records(records, columns, "There are no tables.")


@command(epilog="Example: deltasql describe sales --version 3")
@click.argument("table", type=TABLE)
@at_options
@pass_app
def describe(app: App, /, table: str, **at: Any) -> None:
    """Describe TABLE: its columns, properties, size and mirror."""
    from delkalakedb.mirror.publisher import status

    with app.connect() as catalog:
        snapshot = catalog.snapshot(table, **at)
        (mirror,) = status(catalog, table)
        record = _description(snapshot) | {
            "mirror_state": mirror.state,
            "published_version": mirror.published_version,
            "versions_behind": mirror.versions_behind,
            "seconds_behind": round(mirror.seconds_behind, 3),
            "schema": json.loads(snapshot.metadata.schema_string),
        }
    columns = _columns(snapshot)
    shown = [
        name
        for name, value in record.items()
        if value not in (None, [], {}) and name != "schema"
    ]
    app.output.record(record | {"columns": columns}, shown)
    if app.kind == "text":
        app.output.lines([""], "line")
        app.output.records(columns, _COLUMN_FIELDS)


def _description(snapshot: "Snapshot") -> dict[str, Any]:
    from delkalakedb.settings import redact

    table = snapshot.table
    last = next(iter(snapshot.history(1)), None)
    return {
        "name": table.name,
        "description": table.description,
        "id": table.id,
        "location": redact(table.location),
        "format": snapshot.metadata.format.provider,
        "created_time_ms": table.created_time_ms,
        "version": table.version,
        "timestamp_ms": table.timestamp_ms,
        "operation": None if last is None else last.operation,
        "partition_columns": list(table.partition_columns),
        "num_files": table.num_files,
        "size_bytes": table.size_bytes,
        "num_records": snapshot.num_records(),
        "min_reader_version": table.min_reader_version,
        "min_writer_version": table.min_writer_version,
        "features": sorted({*table.reader_features, *table.writer_features}),
        "properties": table.configuration,
    }


@command(epilog="Example: deltasql schema sales --ddl")
@click.argument("table", type=TABLE)
@click.option("--ddl", is_flag=True, help="Show SQL for create --schema.")
@click.option(
    "--delta", is_flag=True, help="Show Delta's JSON for create --schema-file."
)
@at_options
@pass_app
def schema(app: App, /, table: str, ddl: bool, delta: bool, **at: Any) -> None:
    """List the columns of TABLE."""
    with app.connect() as catalog:
        snapshot = catalog.snapshot(table, **at)
    if ddl and delta:
        raise click.UsageError("give either --ddl or --delta")
    if ddl:
        _show_ddl(app, snapshot)
    elif delta and app.kind == "json":
        app.output.document(json.loads(snapshot.metadata.schema_string))
    elif delta:
        app.output.lines([snapshot.metadata.schema_string], "schema")
    else:
        columns = _columns(snapshot)
        app.output.records(columns, _COLUMN_FIELDS, f"{table} has no columns.")


def _show_ddl(app: App, snapshot: "Snapshot") -> None:
    from delkalakedb.model.schema.ddl import format_ddl, parse_ddl
    from delkalakedb.model.schema.schema import parse_schema

    columns = snapshot.table.schema
    ddl = format_ddl(columns)
    app.output.lines([ddl], "ddl")
    if parse_schema(parse_ddl(ddl)) != columns:
        app.say("SQL can't express all of this schema; use --delta")


def _columns(snapshot: "Snapshot") -> list[dict[str, Any]]:
    from delkalakedb.model.schema.ddl import format_type

    written = json.loads(snapshot.metadata.schema_string)["fields"]
    return [
        {
            "name": field.name,
            "type": format_type(field),
            "nullable": field.nullable,
            "partition": field.name in snapshot.table.partition_columns,
            "comment": field.metadata.get("comment"),
            "field": as_written,
        }
        for field, as_written in zip(snapshot.table.schema.fields, written, strict=True)
    ]


@command(epilog="Example: deltasql history sales --operation MERGE --limit 5")
@click.argument("table", type=TABLE)
@limit_option("commits", least=1)
@commits_options
@pass_app
def history(app: App, /, table: str, **filters: Any) -> None:
    """List the commits of TABLE, newest first."""
    with app.connect() as catalog:
        commits = catalog.snapshot(table).history(**filters)
    columns = (
        "version",
        "timestamp_ms",
        "operation",
        _CHANGE,
        "added_bytes",
        "removed_bytes",
        "os_user",
        "host",
        "db_user",
    )
    records = (commit.to_dict() for commit in commits)
    app.output.records(records, columns, "No commit matches.")


@command(epilog="Example: deltasql files sales --where \"day >= '2026-01-01'\"")
@click.argument("table", type=TABLE)
@where_option("Only files that may hold a row that matches this condition.")
@limit_option("files")
@at_options
@pass_app
def files(
    app: App, /, table: str, where: str | None, limit: int | None, **at: Any
) -> None:
    """List the data files of TABLE that a query would read."""
    columns = ("path", "size_bytes", "num_records", "partition_values", "added_version")
    count = size_bytes = 0

    def counted() -> Iterator["pa.RecordBatch"]:
        nonlocal count, size_bytes
        for batch in snapshot.files(where):
            count += batch.num_rows
            size_bytes += sum(batch["size_bytes"].to_pylist())
            yield batch

    with app.connect() as catalog:
        snapshot = catalog.snapshot(table, **at)
        batches = counted()
        records = (_file(row) for batch in batches for row in batch.to_pylist())
        app.output.records(islice(records, limit), columns, _no_files(where, limit))
        # Files beyond the limit count, too.
        for _ in batches:
            pass
    if where is not None or limit is not None:
        every = snapshot.table
        app.say(
            f"{count} of {count_of(every.num_files, 'file')} would be read: "
            f"{format_size(size_bytes)} of {format_size(every.size_bytes)}"
        )


def _no_files(where: str | None, limit: int | None) -> str:
    if limit == 0:
        return "No file is shown."
    return "The table has no files." if where is None else "No file matches."


def _file(row: dict[str, Any]) -> dict[str, Any]:
    values = {k: v for k, v in row.items() if k not in _INTERNAL_COLUMNS}
    for name in _JSON_COLUMNS:
        if values[name] is not None:
            values[name] = json.loads(values[name])
    return values
