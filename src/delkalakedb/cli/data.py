"""Commands that show and move rows: `head`, `query`, `append`, `export`, `diff`."""

from dataclasses import asdict
from typing import Any

import click

from delkalakedb.cli.app import App, command, pass_app
from delkalakedb.cli.failures import FOUND
from delkalakedb.cli.options import (
    NAMES,
    TABLE,
    at_options,
    dry_run_option,
    where_option,
)
from delkalakedb.cli.rows import plain, show_query

__all__ = ["append", "diff", "export", "head", "query"]

_FILE_KINDS = ("parquet", "csv", "jsonl", "arrow")


columns_option = click.option(
    "--columns", type=NAMES, default=(), help="Only these columns."
)
limit_option = click.option(
    "--limit", type=click.IntRange(min=0), help="At most so many rows."
)


@command(epilog="Example: deltasql head sales -n 5 --where \"day = '2026-01-31'\"")
@click.argument("table", type=TABLE)
@click.option(
    "-n", "number", type=click.IntRange(min=0), default=10, help="So many rows."
)
@columns_option
@where_option("Only rows for which this holds.")
@at_options
@pass_app
def head(
    app: App,
    /,
    table: str,
    number: int,
    columns: tuple[str, ...],
    where: str | None,
    version: int | None,
    timestamp_ms: int | None,
) -> None:
    """Show some rows of TABLE, from as few files as it takes."""
    from delkalakedb.table.outgoing import rows_of

    with app.connect() as catalog:
        snapshot = catalog.snapshot(table, version, timestamp_ms=timestamp_ms)
        show_query(app, catalog, rows_of(snapshot, columns, where), limit=number)


@command(epilog='Example: deltasql query "SELECT day, sum(id) FROM sales GROUP BY day"')
@click.argument("sql", required=False)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read the query from this file; - is standard input.",
)
@limit_option
@pass_app
def query(app: App, /, sql: str | None, file: str | None, limit: int | None) -> None:
    """Run a query over the catalog's tables, in DuckDB's SQL; - reads it from a pipe.

    Tables go by their names. FROM sales AT (VERSION => 3) or AT (TIMESTAMP =>
    '2026-01-31 12:00:00') reads one as it was, in UTC; an alias stands before AT.
    deltasql.tables, deltasql.columns, deltasql.history and deltasql.files are what
    the catalog knows. Nothing else can be read, and nothing is changed.
    """
    if (sql is None) == (file is None):
        raise click.UsageError("give either a query or --file")
    if sql is None or sql == "-":
        with click.open_file(file or "-", encoding="utf-8") as stream:
            sql = stream.read()
    with app.connect() as catalog:
        show_query(app, catalog, sql, limit=limit)


@command(epilog="Example: deltasql append sales 'incoming/*.parquet' --dry-run")
@click.argument("table", type=TABLE)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format", "kind", type=click.Choice(_FILE_KINDS), help="What the files are."
)
@click.option("--create", is_flag=True, help="Make the table if there is none.")
@click.option(
    "--partition-by",
    type=NAMES,
    default=(),
    help="Partition a new table by these columns.",
)
@click.option(
    "--schema-mode",
    type=click.Choice(["merge"]),
    help="With merge, new columns are added and missing ones are null.",
)
@click.option("--each", is_flag=True, help="One commit for each file, not for all.")
@dry_run_option
@pass_app
def append(app: App, /, table: str, files: tuple[str, ...], **options: Any) -> None:
    """Append FILEs to TABLE in one commit: Parquet, CSV, JSON lines or Arrow IPC.

    A FILE may be a pattern such as 'incoming/**/*.parquet'. A file's columns must be
    the table's; values are read in the table's types, and one that isn't of its type
    is an error. CSV files have a header.
    """
    from delkalakedb.table.incoming import append_files

    app.connect().close()
    with app.progress(f"append to {table}") as advance:
        done = append_files(app.table_uri(table), files, advance=advance, **options)
    app.output.record(asdict(done))


@command(epilog="Example: deltasql export sales sales.csv --where 'id > 100'")
@click.argument("table", type=TABLE)
@click.argument("out", type=click.Path(dir_okay=False))
@click.option(
    "--format",
    "kind",
    type=click.Choice(_FILE_KINDS[:3]),
    help="What to write; by default what the name says.",
)
@columns_option
@where_option("Only rows for which this holds.")
@at_options
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@pass_app
def export(
    app: App,
    /,
    table: str,
    out: str,
    kind: str | None,
    version: int | None,
    timestamp_ms: int | None,
    **options: Any,
) -> None:
    """Write the rows of TABLE to the file OUT: Parquet, CSV or JSON lines.

    The file appears when it is whole.
    """
    from delkalakedb.table.datafiles import kind_of_file
    from delkalakedb.table.outgoing import export_rows

    kind = kind or kind_of_file(out)
    if kind == "arrow":
        raise click.UsageError(f"{out}: write .parquet, .csv or .jsonl")
    with app.connect() as catalog, app.progress(f"export {table}") as advance:
        snapshot = catalog.snapshot(table, version, timestamp_ms=timestamp_ms)
        done = export_rows(catalog, snapshot, out, kind, advance=advance, **options)
    app.output.record(asdict(done))


@command(epilog="Example: deltasql diff sales 3 7 --rows")
@click.argument("table", type=TABLE)
@click.argument("before", metavar="A", type=click.IntRange(min=0))
@click.argument("after", metavar="B", type=click.IntRange(min=0))
@click.option("--rows", is_flag=True, help="Show the rows that differ, too.")
@pass_app
def diff(app: App, /, table: str, before: int, after: int, rows: bool) -> None:
    """Show what differs between the versions A and B of TABLE.

    Files, the number of rows, columns, properties and the protocol are compared. The
    exit code is 1 if anything differs, and 0 if nothing does.
    """
    from delkalakedb.table.difference import changed_rows, compare_versions

    with app.connect() as catalog:
        old, new = catalog.snapshot(table, before), catalog.snapshot(table, after)
        changes = list(compare_versions(old, new))
        if rows:
            changes += changed_rows(catalog, old, new)
    columns = ("kind", "change", "name", "before", "after")
    app.output.rows((plain(change.to_dict()) for change in changes), columns)
    if changes:
        raise click.exceptions.Exit(FOUND)
