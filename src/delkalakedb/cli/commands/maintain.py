"""Commands for maintenance: `verify`, `optimize`, `checkpoint`, `vacuum`..."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delkalakedb.cli.app import FOUND, App, command, pass_app
from delkalakedb.cli.options import (
    DURATION,
    NAMES,
    TABLE,
    at_options,
    deep_option,
    dry_run_option,
    where_option,
    yes_option,
)
from delkalakedb.clock import now_ms

if TYPE_CHECKING:
    from delkalakedb import Catalog

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")


def tables_arguments(command: _F) -> _F:
    """Add the argument `TABLES...` and the option `--all` (as `all_tables`)."""
    every = click.option("--all", "all_tables", is_flag=True, help="Every table.")
    return click.argument("tables", nargs=-1, type=TABLE)(every(command))


def named(catalog: "Catalog", tables: Iterable[str], all_tables: bool) -> list[str]:
    """Return the names of the tables that a command is for."""
    chosen = list(dict.fromkeys(tables))
    if all_tables == bool(chosen):
        raise click.UsageError("give either TABLES or --all")
    return chosen or [table.name for table in catalog.tables()]


def each_table(
    app: App, title: str, names: list[str], do: Callable[[str], _T]
) -> list[_T]:
    """Return the results of `do` for each table, while a progress bar is shown.

    The error of one table goes to `app.failed`, and the next table follows.
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
@click.option("--all", "all_tables", is_flag=True, help="Every table (the default).")
@deep_option
@pass_app
def verify(app: App, tables: tuple[str, ...], all_tables: bool, deep: bool) -> None:
    """Compare the `_delta_log` of TABLES with the catalog; exit 1 if they differ."""
    from delkalakedb.mirror.verify import verify_table
    from delkalakedb.storage import open_store

    with app.connect() as catalog:
        names = named(catalog, tables, all_tables or not tables)

        def check(name: str) -> dict[str, Any]:
            store = open_store(catalog.table(name).location)
            report = verify_table(catalog, name, store, deep=deep)
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
@click.option("--z-order", type=NAMES, default=(), help="Z-order by these columns.")
@click.option(
    "--target-size", type=click.IntRange(min=1), help="The target file size in bytes."
)
@click.option(
    "--max-concurrent-tasks",
    type=click.IntRange(min=1),
    help="How many files to write concurrently.",
)
@click.option(
    "--purge",
    is_flag=True,
    help="Rewrite only files with deletion vectors, without their deleted rows.",
)
@click.option(
    "--dead-share",
    type=click.FloatRange(0, 1, max_open=True),
    help="With --purge, only files with a larger share of deleted rows.",
)
@pass_app
def optimize(
    app: App,
    /,
    tables: tuple[str, ...],
    all_tables: bool,
    where: str | None,
    z_order: tuple[str, ...],
    purge: bool,
    dead_share: float | None,
    **options: Any,
) -> None:
    """Rewrite the small files of TABLES as fewer large ones.

    No row changes. The old files stay until vacuum deletes them.
    """

    if purge and (z_order or options["target_size"]):
        raise click.UsageError("--purge goes with neither --z-order nor --target-size")
    if dead_share is not None and not purge:
        raise click.UsageError("--dead-share needs --purge")

    from delkalakedb.model.predicate.predicate import parse_predicate, partition_filters

    def rewrite(name: str) -> dict[str, Any]:
        table, given = app.table(name), {"partition_filters": None, **options}
        if where is not None:
            known = catalog.table(name)
            predicate = parse_predicate(where, known.schema, known.partition_columns)
            filters = partition_filters(predicate, known.partition_columns)
            given["partition_filters"] = filters
        if purge:
            del given["target_size"]
            metrics = table.optimize.purge(dead_share=dead_share or 0.0, **given)
        elif z_order:
            metrics = table.optimize.z_order(list(z_order), **given)
        else:
            metrics = table.optimize.compact(**given)
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
    """Restore TABLE to an earlier version or time.

    The restore is a new version. All earlier versions stay and can be restored, too.
    """
    from delkalakedb.write import restored

    if (version is None) == (timestamp_ms is None):
        raise click.UsageError("give either --version or --timestamp")
    with app.connect() as catalog:
        target = catalog.snapshot(table, version, timestamp_ms=timestamp_ms).version
        log = catalog.log(table)
        heads = log.head(), log.head(target)
        metrics = restored(catalog, *heads, downgrade=False, now_ms=now_ms()).metrics
    new_version: int | None = None
    if not dry_run:
        app.confirm(
            f"Restore {table} to version {target}? This removes "
            f"{metrics['numRemovedFile']} files from the table and adds "
            f"{metrics['numRestoredFile']} back.",
            yes=yes,
        )
        handle = app.table(table)
        metrics = handle.restore(target)
        new_version = handle.version()
    record = {
        "table": table,
        "target_version": target,
        "version": new_version,
        "num_removed_files": metrics["numRemovedFile"],
        "num_restored_files": metrics["numRestoredFile"],
    }
    app.output.record(record)


@command(epilog="Example: deltasql vacuum sales --retention 14d --dry-run")
@tables_arguments
@click.option(
    "--retention",
    type=DURATION,
    help="Keep files removed within this period, such as 14d or 1.5h.  [default: the "
    "table's own]",
)
@click.option(
    "--full", is_flag=True, help="Also delete files that belong to no version."
)
@click.option(
    "--force", is_flag=True, help="Allow a retention shorter than the table's own."
)
@dry_run_option
@yes_option
@pass_app
def vacuum(
    app: App,
    tables: tuple[str, ...],
    all_tables: bool,
    retention: timedelta | None,
    full: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete files that were removed from TABLES longer ago than the retention.

    Older versions can't be read after a vacuum. With --output json the answer lists the
    path of every file.
    """
    from delkalakedb.deltalake import Vacuum, retention_of
    from delkalakedb.storage import open_store

    hours: Any = None if retention is None else retention / timedelta(hours=1)

    def plan(name: str) -> tuple[str, dict[str, int]]:
        log = catalog.log(name)
        head = log.head()
        kept = retention_of(head, hours, enforce=not force)
        store = open_store(head.location)
        return name, Vacuum(catalog, log, store, kept.asked_ms, full, ()).plan()

    def delete(name: str) -> tuple[str, dict[str, int]]:
        sizes = found[name]
        if not sizes:
            return name, {}
        paths = app.table(name).vacuum(
            hours, dry_run=False, enforce_retention_duration=not force, full=full
        )
        return name, {path: sizes.get(path, 0) for path in paths}

    with app.connect() as catalog:
        names = named(catalog, tables, all_tables)
        # the sizes of files by their paths, for each table
        found = dict(each_table(app, "vacuum", names, plan))
        if not dry_run:
            sizes = [size for of_table in found.values() for size in of_table.values()]
            if sizes:
                question = f"Delete {len(sizes)} files with {sum(sizes)} bytes?"
                app.confirm(question, yes=yes)
            found = dict(each_table(app, "vacuum", list(found), delete))
    records = [
        {
            "table": name,
            "deleted": not dry_run,
            "num_files": len(paths),
            "size_bytes": sum(paths.values()),
            "paths": paths,
        }
        for name, paths in found.items()
    ]
    app.output.records(records, ("table", "deleted", "num_files", "size_bytes"))


@command(epilog="Example: deltasql retention sales --keep 90d")
@tables_arguments
@click.option(
    "--keep",
    type=DURATION,
    help="Keep every version of this period; delta.logRetentionDuration (30d) is the "
    "least.",
)
@dry_run_option
@yes_option
@pass_app
def retention(
    app: App,
    tables: tuple[str, ...],
    all_tables: bool,
    keep: timedelta | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Drop old versions of TABLES from the catalog.

    This deletes no data files, which vacuum deletes, and no log entries, which expire
    by themselves.
    """
    with app.connect() as catalog:
        names = named(catalog, tables, all_tables)

        def expire(name: str, *, dry_run: bool = False) -> dict[str, Any]:
            return asdict(catalog.expire(name, keep, dry_run=dry_run))

        done = each_table(app, "retention", names, lambda n: expire(n, dry_run=True))
        versions = sum(one["versions"] for one in done)
        if versions and not dry_run:
            app.confirm(f"Drop {versions} versions permanently?", yes=yes)
            done = each_table(app, "retention", [one["table"] for one in done], expire)
    app.output.records(done, ("table", "floor", "versions", "files", "stats"))
