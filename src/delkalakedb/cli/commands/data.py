"""Commands that read and write rows: `head`, `query`, `append`, `export`, `diff`."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import FOUND, App, command, pass_app
from delkalakedb.cli.columns import ShownColumn, human_text
from delkalakedb.cli.options import (
    NAMES,
    TABLE,
    at_options,
    dry_run_option,
    limit_option,
    where_option,
)
from delkalakedb.cli.output import plain
from delkalakedb.model.display import count_of, format_size, format_span, listed

if TYPE_CHECKING:
    from delkalakedb.query import Appended

_FILE_KINDS = ("parquet", "csv", "jsonl", "arrow")


columns_option = click.option(
    "--columns", type=NAMES, default=(), help="Only these columns."
)


@command(epilog="Example: deltasql head sales -n 5 --where \"day = '2026-01-31'\"")
@click.argument("table", type=TABLE)
@click.option(
    "-n",
    "--limit",
    "number",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Show at most so many rows.",
)
@columns_option
@where_option("Only rows that match this condition.")
@at_options
@pass_app
def head(
    app: App,
    /,
    table: str,
    number: int,
    columns: tuple[str, ...],
    where: str | None,
    **at: Any,
) -> None:
    """Show some rows of TABLE, from as few files as possible."""
    from delkalakedb.query import rows_of

    with app.connect() as catalog:
        snapshot = catalog.snapshot(table, **at)
        app.show_query(catalog, rows_of(snapshot, columns, where), limit=number)


@command(epilog='Example: deltasql query "SELECT day, sum(id) FROM sales GROUP BY day"')
@click.argument("sql", required=False)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read the query from this file; - is standard input.",
)
@limit_option("rows")
@pass_app
def query(app: App, /, sql: str | None, file: str | None, limit: int | None) -> None:
    """Run a query in DuckDB's SQL over the catalog's tables.

    If SQL is -, the query is read from standard input. FROM sales AT (VERSION => 3) or
    AT (TIMESTAMP => '2026-01-31 12:00:00') reads an earlier version; times are in UTC,
    and an alias comes before AT. The tables deltasql.tables, deltasql.columns,
    deltasql.history and deltasql.files describe the catalog. A query can read nothing
    else, and changes nothing.
    """
    if (sql is None) == (file is None):
        raise click.UsageError("give either SQL or --file")
    if sql is None or sql == "-":
        with click.open_file(file or "-", encoding="utf-8") as stream:
            sql = stream.read()
    with app.connect() as catalog:
        app.show_query(catalog, sql, limit=limit)


@command(epilog="Example: deltasql append sales 'incoming/*.parquet' --dry-run")
@click.argument("table", type=TABLE)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format",
    "kind",
    type=click.Choice(_FILE_KINDS),
    help="The format of the files.  [default: by their names]",
)
@click.option("--create", is_flag=True, help="Create the table if it doesn't exist.")
@click.option(
    "--partition-by",
    type=NAMES,
    default=(),
    help="Partition a new table by these columns.",
)
@click.option(
    "--schema-mode",
    type=click.Choice(["merge"]),
    help="With merge, add new columns to the table, and fill missing ones with null.",
)
@click.option("--each", is_flag=True, help="Make one commit for each file.")
@dry_run_option
@pass_app
def append(app: App, /, table: str, files: tuple[str, ...], **options: Any) -> None:
    """Append Parquet, CSV, JSON lines or Arrow files to TABLE.

    All files are one commit, unless --each is given. A FILE may be a pattern such as
    'incoming/**/*.parquet'. Each file must have the columns of the table. Values are
    converted to the table's types; a value that can't be converted is an error. CSV
    files must have a header.
    """
    from delkalakedb.query import append_files

    app.connect().close()
    started = time.monotonic()
    with app.progress(f"append to {table}") as advance:
        done = append_files(app.table_uri(table), files, advance=advance, **options)
    seconds = time.monotonic() - started
    record = {**asdict(done), "seconds": round(seconds, 3)}
    app.output.changed(_appended(done, seconds), record)


def _appended(done: "Appended", seconds: float) -> str:
    files = f"{count_of(done.files, 'file')} ({format_size(done.size_bytes)})"
    new = f", with the new {listed(done.new_columns)}" if done.new_columns else ""
    if done.rows is None:
        verb = "create and fill" if done.created else "append to"
        return f"Would {verb} {done.table} with {files}{new}; the files fit"
    rate = format_size(round(done.size_bytes / max(seconds, 0.001)))
    return (
        f"Appended {count_of(done.rows, 'row')} of {files} to {done.table}{new} "
        f"(version {done.version}) in {format_span(seconds)}, {rate}/s"
    )


@command(epilog="Example: deltasql export sales sales.csv --where 'id > 100'")
@click.argument("table", type=TABLE)
@click.argument("out", type=click.Path(dir_okay=False))
@click.option(
    "--format",
    "kind",
    type=click.Choice(_FILE_KINDS[:3]),
    help="The format of the file.  [default: by its name]",
)
@columns_option
@where_option("Only rows that match this condition.")
@at_options
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
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
    """Write rows of TABLE to a Parquet, CSV or JSON lines file.

    OUT appears only when it is complete.
    """
    from delkalakedb.query import export_rows, kind_of_file

    kind = kind or kind_of_file(out)
    if kind == "arrow":
        raise click.UsageError(f"{out}: the name must end in .parquet, .csv or .jsonl")
    with app.connect() as catalog, app.progress(f"export {table}") as advance:
        snapshot = catalog.snapshot(table, version, timestamp_ms=timestamp_ms)
        done = export_rows(catalog, snapshot, out, kind, advance=advance, **options)
    app.output.changed(
        f"Wrote {count_of(done.rows, 'row')} of {table} at version {done.version} to "
        f"{done.path} ({format_size(done.size_bytes)})",
        asdict(done),
    )


@command(epilog="Example: deltasql diff sales 3 7 --rows")
@click.argument("table", type=TABLE)
@click.argument("before", metavar="A", type=click.IntRange(min=0))
@click.argument("after", metavar="B", type=click.IntRange(min=0))
@click.option("--rows", is_flag=True, help="Also show the rows that differ.")
@pass_app
def diff(app: App, /, table: str, before: int, after: int, rows: bool) -> None:
    """Show the differences between two versions of TABLE.

    A and B are the versions. Files, the number of rows, columns, properties and the
    protocol are compared. Exit 1 if there is a difference.
    """
    from delkalakedb.query import changed_rows, compare_versions

    with app.connect() as catalog:
        old, new = catalog.snapshot(table, before), catalog.snapshot(table, after)
        changes = list(compare_versions(old, new))
        if rows:
            changes += changed_rows(catalog, old, new)
    columns = (
        "kind",
        ShownColumn("change", priority=-1),
        ShownColumn("name", kind="path", priority=-2),
        ShownColumn("before", show=lambda r: _side(r["before"])),
        ShownColumn("after", show=lambda r: _side(r["after"])),
    )
    records = [plain(change.to_dict()) for change in changes]
    same = f"Versions {before} and {after} of {table} don't differ."
    app.output.records(records, columns, same)
    if changes:
        raise click.exceptions.Exit(FOUND)


def _side(value: Any) -> str:
    """Return what one version has, as people read it."""
    if isinstance(value, dict) and "size_bytes" in value:
        rows = value.get("num_records")
        counted = [] if rows is None else [count_of(rows, "row")]
        if deleted := value.get("deleted_rows"):
            counted.append(f"{deleted} deleted")
        return ", ".join([format_size(value["size_bytes"]), *counted])
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if item is not None}
    return human_text(value, "text")
