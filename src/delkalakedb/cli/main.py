"""The commands: each is a thin call on the library that hands records to `Output`.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the catalog can't be reached. Only
click is imported at the top, so that `--help` is quick.
"""

import json
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.output import FORMATS, Output

if TYPE_CHECKING:
    from delkalakedb.catalog import Catalog

__all__ = ["main"]

_JSON_COLUMNS = ("partition_values", "tags", "deletion_vector")
_INTERNAL_COLUMNS = ("null_fields", "extra", "file_id")
_FOR_CLICK = (
    click.ClickException,
    click.Abort,
    click.exceptions.Exit,
    BrokenPipeError,
)


@dataclass(frozen=True, slots=True)
class _App:
    uri: str | None
    output: Output

    def connect(self) -> "Catalog":
        """The catalog; looking at one never creates it."""
        from delkalakedb.catalog import connect

        if not self.uri:
            raise click.UsageError("no catalog: give --catalog or set DELTASQL_CATALOG")
        return connect(self.uri, sql={"schema": "error"})


class _Misused(click.ClickException):
    exit_code = 2


class _Unreachable(click.ClickException):
    exit_code = 3


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except _FOR_CLICK:
            raise
        except Exception as error:
            raise _failure(error, debug=ctx.params["debug"]) from error


def _failure(error: Exception, *, debug: bool) -> click.ClickException:
    from delkalakedb import errors
    from delkalakedb.redaction import redact

    if debug:
        text = "".join(traceback.format_exception(error))
    elif isinstance(error, errors.DeltalakeDBError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error} (--debug shows where)"
    kind: type[click.ClickException] = click.ClickException
    if isinstance(error, errors.UriError | errors.PredicateError):
        kind = _Misused
    elif isinstance(error, errors.CatalogUnavailableError):
        kind = _Unreachable
    return kind(redact(text))


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
    epilog="Example: deltasql --catalog deltasql://sqlite/meta.db tables",
)
@click.option(
    "--catalog",
    metavar="URI",
    envvar="DELTASQL_CATALOG",
    show_envvar=True,
    help="The catalog, a deltasql:// URI; ${NAME} in it stands for a variable.",
)
@click.option(
    "--output",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Text for people; CSV with the same columns; JSON with everything.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="delkalakedb", prog_name="deltasql")
@click.pass_context
def cli(ctx: click.Context, catalog: str | None, output: str, debug: bool) -> None:
    """Look at Delta tables whose truth lives in a SQL catalog."""
    ctx.obj = _App(catalog, Output(output, sys.stdout))


@cli.command(epilog="Example: deltasql --output json tables")
@click.pass_obj
def tables(app: _App) -> None:
    """List the tables at their latest versions."""
    from delkalakedb.redaction import redact

    with app.connect() as catalog:
        records = [
            {**table.to_dict(), "location": redact(table.location)}
            for table in catalog.tables()
        ]
    columns = ("name", "version", "timestamp_ms", "num_files", "size_bytes", "location")
    app.output.records(records, columns)


@cli.command(epilog="Example: deltasql history sales --limit 5")
@click.argument("table")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many commits.")
@click.pass_obj
def history(app: _App, table: str, limit: int | None) -> None:
    """List the commits of TABLE, newest first."""
    with app.connect() as catalog:
        commits = catalog.snapshot(table).history(limit)
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


@cli.command(epilog="Example: deltasql files sales --where \"day >= '2026-01-01'\"")
@click.argument("table")
@click.option("--where", metavar="SQL", help="Only files that may hold such a row.")
@click.option(
    "--version", type=click.IntRange(min=0), help="A version other than the latest."
)
@click.pass_obj
def files(app: _App, table: str, where: str | None, version: int | None) -> None:
    """List the data files of TABLE."""
    columns = ("path", "size_bytes", "num_records", "partition_values", "added_version")
    with app.connect() as catalog:
        batches = catalog.snapshot(table, version).files(where)
        records = (_file(row) for batch in batches for row in batch.to_pylist())
        app.output.records(records, columns)


def _file(row: dict[str, Any]) -> dict[str, Any]:
    values = {k: v for k, v in row.items() if k not in _INTERNAL_COLUMNS}
    for name in _JSON_COLUMNS:
        if values[name] is not None:
            values[name] = json.loads(values[name])
    return values


def main() -> None:
    """Run the command line."""
    cli(prog_name="deltasql")
