"""Commands for the daily work: `verify`, `optimize`, `checkpoint`, `restore`."""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delkalakedb.cli.app import App, command, pass_app
from delkalakedb.cli.failures import FOUND
from delkalakedb.cli.options import (
    NAMES,
    TABLE,
    at_options,
    dry_run_option,
    where_option,
    yes_option,
)

if TYPE_CHECKING:
    from delkalakedb import Catalog
    from delkalakedb.model.partition_filters import PartitionFilter

__all__ = [
    "checkpoint",
    "each_table",
    "named",
    "optimize",
    "restore",
    "tables_arguments",
    "verify",
]

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")


def tables_arguments(command: _F) -> _F:
    """`TABLES...` or `--all` (`all_tables`)."""
    every = click.option("--all", "all_tables", is_flag=True, help="Every table.")
    return click.argument("tables", nargs=-1, type=TABLE)(every(command))


def named(catalog: "Catalog", tables: Iterable[str], all_tables: bool) -> list[str]:
    """The tables that a command is for."""
    chosen = list(dict.fromkeys(tables))
    if all_tables == bool(chosen):
        raise click.UsageError("name tables, or give --all")
    return chosen or [table.name for table in catalog.tables()]


def each_table(
    app: App, title: str, names: list[str], do: Callable[[str], _T]
) -> list[_T]:
    """What each table gives, one after the other, with a bar.

    One that fails keeps none of the others from being done.
    """
    from delkalakedb.errors import CatalogUnavailableError, DeltalakeDBError

    done = []
    with app.progress(title) as advance:
        for number, name in enumerate(names):
            advance(number, len(names))
            try:
                done.append(do(name))
            except CatalogUnavailableError:
                raise
            except DeltalakeDBError as error:
                app.failed.append(error)
        advance(len(names), len(names))
    return done


@command(epilog="Example: deltasql verify sales --deep")
@click.argument("tables", nargs=-1, type=TABLE)
@click.option("--all", "all_tables", is_flag=True, help="Every table, the default.")
@click.option("--deep", is_flag=True, help="Every version, and the data files.")
@pass_app
def verify(app: App, tables: tuple[str, ...], all_tables: bool, deep: bool) -> None:
    """Compare the `_delta_log` of TABLES with the catalog; exit 1 if they differ."""
    from delkalakedb.mirror.verify import verify as compare
    from delkalakedb.storage import open_store

    with app.connect() as catalog:
        names = named(catalog, tables, all_tables or not tables)

        def check(name: str) -> dict[str, Any]:
            store = open_store(catalog.table(name).location)
            report = compare(catalog, name, store, deep=deep)
            found = "; ".join(map(str, report.differences))
            return {**report.to_dict(), "found": found or None}

        reports = each_table(app, "verify", names, check)
    columns = (
        "table",
        "ok",
        "ratified_version",
        "published_version",
        "versions_checked",
        "found",
    )
    app.output.records(reports, columns)
    if not all(report["ok"] for report in reports):
        raise click.exceptions.Exit(FOUND)


@command(epilog="Example: deltasql optimize sales --where \"day = '2026-01-31'\"")
@tables_arguments
@where_option("Only these partitions: comparisons joined by AND.")
@click.option("--z-order", type=NAMES, default=(), help="Cluster by these columns.")
@click.option(
    "--target-size", type=click.IntRange(min=1), help="The size of a file, in bytes."
)
@click.option(
    "--max-concurrent-tasks",
    type=click.IntRange(min=1),
    help="How many files are written at once.",
)
@pass_app
def optimize(
    app: App,
    /,
    tables: tuple[str, ...],
    all_tables: bool,
    where: str | None,
    z_order: tuple[str, ...],
    **options: Any,
) -> None:
    """Rewrite the small files of TABLES as fewer large ones.

    No row changes, and the old files stay until vacuum.
    """

    def rewrite(name: str) -> dict[str, Any]:
        table = app.table(name)
        given: dict[str, Any] = {"partition_filters": _partitions(catalog, name, where)}
        if z_order:
            metrics = table.optimize.z_order(list(z_order), **given, **options)
        else:
            metrics = table.optimize.compact(**given, **options)
        return {
            "table": name,
            "version": table.version(),
            "num_removed_files": metrics["numFilesRemoved"],
            "num_added_files": metrics["numFilesAdded"],
            "metrics": metrics,
        }

    with app.connect() as catalog:
        names = named(catalog, tables, all_tables)
        done = each_table(app, "optimize", names, rewrite)
    columns = ("table", "version", "num_removed_files", "num_added_files")
    app.output.records(done, columns)


def _partitions(
    catalog: "Catalog", name: str, where: str | None
) -> "list[PartitionFilter] | None":
    if where is None:
        return None
    from delkalakedb.model.partition_filters import partition_filters
    from delkalakedb.model.predicate import parse_predicate

    table = catalog.table(name)
    columns = table.partition_columns
    return partition_filters(parse_predicate(where, table.schema, columns), columns)


@command(epilog="Example: deltasql checkpoint sales")
@tables_arguments
@pass_app
def checkpoint(app: App, tables: tuple[str, ...], all_tables: bool) -> None:
    """Write a checkpoint of the newest version of TABLES to `_delta_log`."""

    def write(name: str) -> dict[str, Any]:
        table = app.table(name)
        table.create_checkpoint()
        return {"table": name, "checkpoint_version": table.version()}

    with app.connect() as catalog:
        names = named(catalog, tables, all_tables)
        done = each_table(app, "checkpoint", names, write)
    app.output.records(done, ("table", "checkpoint_version"))


@command(epilog="Example: deltasql restore sales --timestamp 2026-01-31T12:00:00Z")
@click.argument("table", type=TABLE)
@at_options
@dry_run_option
@yes_option
@pass_app
def restore(
    app: App,
    table: str,
    version: int | None,
    timestamp_ms: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Make TABLE what it was at a version or a time.

    That is a new version; those in between stay, and can be restored in turn.
    """
    if (version is None) == (timestamp_ms is None):
        raise click.UsageError("give --version or --timestamp")
    with app.connect() as catalog:
        target = catalog.snapshot(table, version, timestamp_ms=timestamp_ms).version
        metrics = _difference(catalog, table, target)
    restored: int | None = None
    if not dry_run:
        gone, back = metrics["numRemovedFile"], metrics["numRestoredFile"]
        app.confirm(
            f"{table}: go back to version {target}? {gone} files leave the table, "
            f"{back} come back.",
            yes=yes,
        )
        handle = app.table(table)
        metrics = handle.restore(target)
        restored = handle.version()
    record = {
        "table": table,
        "target_version": target,
        "version": restored,
        "num_removed_files": metrics["numRemovedFile"],
        "num_restored_files": metrics["numRestoredFile"],
    }
    app.output.record(record)


def _difference(catalog: "Catalog", name: str, target: int) -> dict[str, int]:
    from delkalakedb.table.restore import restored

    log, now_ms = catalog.log(name), int(time.time() * 1000)
    heads = log.head(), log.head(target)
    return restored(catalog, *heads, downgrade=False, now_ms=now_ms).metrics
