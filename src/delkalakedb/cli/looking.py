"""Commands that look at tables: `tables`, `history`, `files`."""

import json
from typing import Any

import click

from delkalakedb.cli.app import App, command, pass_app
from delkalakedb.cli.options import TABLE, TIME, at_options, where_option

__all__ = ["files", "history", "tables"]

_JSON_COLUMNS = ("partition_values", "tags", "deletion_vector")
_INTERNAL_COLUMNS = ("null_fields", "extra", "file_id")


@command(epilog="Example: deltasql tables --output json")
@pass_app
def tables(app: App) -> None:
    """List the tables at their latest versions."""
    from delkalakedb.redaction import redact

    with app.connect() as catalog:
        records = [
            {**table.to_dict(), "location": redact(table.location)}
            for table in catalog.tables()
        ]
    columns = ("name", "version", "timestamp_ms", "num_files", "size_bytes", "location")
    app.output.records(records, columns)


@command(epilog="Example: deltasql history sales --operation MERGE --limit 5")
@click.argument("table", type=TABLE)
@click.option("--limit", type=click.IntRange(min=1), help="At most so many commits.")
@click.option("--since", "since_ms", type=TIME, help="None older than this time.")
@click.option("--until", "until_ms", type=TIME, help="None newer than this time.")
@click.option("--operation", help="Only this operation, such as MERGE.")
@click.option("--actor", help="Only this user, host or client.")
@pass_app
def history(app: App, /, table: str, **filters: Any) -> None:
    """List the commits of TABLE, newest first."""
    with app.connect() as catalog:
        commits = catalog.snapshot(table).history(**filters)
    columns = (
        "version",
        "timestamp_ms",
        "operation",
        "num_added_files",
        "num_removed_files",
        "added_bytes",
        "removed_bytes",
        "db_user",
        "os_user",
        "host",
    )
    app.output.records((commit.to_dict() for commit in commits), columns)


@command(epilog="Example: deltasql files sales --where \"day >= '2026-01-01'\"")
@click.argument("table", type=TABLE)
@where_option("Only files that may hold such a row.")
@at_options
@pass_app
def files(
    app: App,
    table: str,
    where: str | None,
    version: int | None,
    timestamp_ms: int | None,
) -> None:
    """List the data files of TABLE that a query would read."""
    columns = ("path", "size_bytes", "num_records", "partition_values", "added_version")
    with app.connect() as catalog:
        snapshot = catalog.snapshot(table, version, timestamp_ms=timestamp_ms)
        found = [_file(r) for batch in snapshot.files(where) for r in batch.to_pylist()]
    app.output.records(found, columns)
    if where:
        total = snapshot.table.num_files
        app.say(f"{len(found)} of {total} files would be read")


def _file(row: dict[str, Any]) -> dict[str, Any]:
    values = {k: v for k, v in row.items() if k not in _INTERNAL_COLUMNS}
    for name in _JSON_COLUMNS:
        if values[name] is not None:
            values[name] = json.loads(values[name])
    return values
