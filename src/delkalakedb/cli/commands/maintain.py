"""Commands for maintenance: `verify`, `optimize`, `checkpoint`, `vacuum`..."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delkalakedb.cli.app import FOUND, App, command, pass_app
from delkalakedb.cli.columns import Record, ShownColumn
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
from delkalakedb.model.display import count_of, format_change, format_size

if TYPE_CHECKING:
    from delkalakedb import Catalog, Table

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

_NO_TABLE = "There are no tables."
# delta-rs' target for files of a table that has no delta.targetFileSize
_TARGET_BYTES = 100 * 1024 * 1024


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
            advance(number, len(names), "tables")
            try:
                done.append(do(name))
            except CatalogUnavailableError:
                raise
            except DeltalakeDBError as error:
                app.failed.append(error)
        advance(len(names), len(names), "tables")
    return done


@command(epilog="Example: deltasql verify sales --deep")
@click.argument("tables", nargs=-1, type=TABLE)
@click.option("--all", "all_tables", is_flag=True, help="Every table (the default).")
@deep_option
@pass_app
def verify(app: App, tables: tuple[str, ...], all_tables: bool, deep: bool) -> None:
    """Compare the `_delta_log` of TABLES with the catalog.

    Exit 1 if they differ.
    """
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
        ShownColumn("ok", header="log", kind="state", show=_verdict),
        "versions_checked",
        "published_version",
        "ratified_version",
    )
    if app.kind == "text":
        app.output.records(reports, columns, "There are no tables.")
        app.output.sentences(_differences(reports))
    else:
        app.output.records(reports, (*columns, "found"))
    if not all(report["ok"] for report in reports):
        raise click.exceptions.Exit(FOUND)


def _verdict(report: Record) -> str:
    return "ok" if report["ok"] else "differs"


def _differences(reports: Iterable[Record]) -> Iterator[str]:
    for report in reports:
        for found in report["differences"]:
            yield f"{report['table']}: version {found['version']}: {found['message']}"
        if not report["complete"]:
            yield f"{report['table']}: ... and more"


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
@dry_run_option
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
    dry_run: bool,
    **options: Any,
) -> None:
    """Rewrite the small files of TABLES as fewer large ones.

    No row changes. The old files stay until vacuum deletes them.
    """

    if purge and (z_order or options["target_size"]):
        raise click.UsageError("--purge goes with neither --z-order nor --target-size")
    if dead_share is not None and not purge:
        raise click.UsageError("--dead-share needs --purge")

    def plan(name: str) -> dict[str, Any]:
        snapshot = catalog.snapshot(name)
        _partition_filters(snapshot.table, where)
        if purge:
            from delkalakedb.write.engines import purgeable

            removed = len(purgeable(snapshot, where, dead_share or 0.0))
            added = removed
        else:
            target = options["target_size"] or _target_size(snapshot.table)
            files = snapshot.files(where, columns=("partition_values", "size_bytes"))
            rows = (row for batch in files for row in batch.to_pylist())
            removed, added = bins_of(rows, target, whole=bool(z_order))
        return {
            "table": name,
            "version": snapshot.version,
            "num_removed_files": removed,
            "num_added_files": added,
            "dry_run": True,
        }

    def rewrite(name: str) -> dict[str, Any]:
        table, given = app.table(name), dict(options)
        given["partition_filters"] = _partition_filters(catalog.table(name), where)
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
            "dry_run": False,
        }

    with app.connect() as catalog:
        names = named(catalog, tables, all_tables)
        done = each_table(app, "optimize", names, plan if dry_run else rewrite)
    columns = ("table", "version", "num_removed_files", "num_added_files")
    app.output.changes(((_optimized(one), one) for one in done), columns, _NO_TABLE)


def _optimized(done: Record) -> str:
    name, version = done["table"], done["version"]
    if not done["num_removed_files"]:
        return f"{name} has nothing to optimize (version {version})"
    verb = "Would rewrite" if done["dry_run"] else "Rewrote"
    return (
        f"{verb} {count_of(done['num_removed_files'], 'file')} of {name} as "
        f"{count_of(done['num_added_files'], 'file')} (version {version})"
    )


def _partition_filters(table: "Table", where: str | None) -> Any:
    """Return the filters of deltalake for a condition on whole partitions."""
    from delkalakedb.model.predicate.predicate import parse_predicate, partition_filters

    if where is None:
        return None
    predicate = parse_predicate(where, table.schema, table.partition_columns)
    return partition_filters(predicate, table.partition_columns)


def _target_size(table: "Table") -> int:
    return int(table.configuration.get("delta.targetFileSize") or _TARGET_BYTES)


def bins_of(rows: Iterable[Record], target: int, *, whole: bool) -> tuple[int, int]:
    """Return how many files an optimize would remove, and add at least.

    Files are packed as in delta-rs: those of a partition, largest first, go into the
    first file that has room; a file that would be alone stays.

    Args:
        rows: the `partition_values` and `size_bytes` of the files.
        target: the size of a file in bytes.
        whole: every file is rewritten, as a Z-order does.
    """
    partitions: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        if whole or row["size_bytes"] <= target:
            partitions[row["partition_values"]].append(row["size_bytes"])
    removed = added = 0
    for sizes in partitions.values():
        bins: list[list[int]] = []
        for size in sorted(sizes, reverse=True):
            fitting = (one for one in bins if sum(one) + size <= target)
            if (found := next(fitting, None)) is None:
                bins.append([size])
            else:
                found.append(size)
        packed = bins if whole else [one for one in bins if len(one) > 1]
        removed += sum(map(len, packed))
        added += len(packed)
    return removed, added


@command(epilog="Example: deltasql checkpoint sales")
@tables_arguments
@pass_app
def checkpoint(app: App, tables: tuple[str, ...], all_tables: bool) -> None:
    """Write a checkpoint of TABLES to `_delta_log`."""

    def write(name: str) -> dict[str, Any]:
        table = app.table(name)
        table.create_checkpoint()
        return {"table": name, "checkpoint_version": table.version()}

    with app.connect() as catalog:
        names = named(catalog, tables, all_tables)
        done = each_table(app, "checkpoint", names, write)
    app.output.changes(
        (
            (
                f"Wrote a checkpoint of {one['table']} at version "
                f"{one['checkpoint_version']}",
                one,
            )
            for one in done
        ),
        ("table", "checkpoint_version"),
        _NO_TABLE,
    )


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
    verb = "Would restore" if dry_run else "Restored"
    change = format_change(metrics["numRestoredFile"], metrics["numRemovedFile"])
    made = "" if dry_run else f" as version {new_version}"
    app.output.changed(f"{verb} {table} to version {target}{made}: {change}", record)


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
    """Delete files that TABLES no longer need.

    Such a file was removed from its table longer ago than the retention. Older versions
    can't be read after a vacuum. With --output json the answer lists the path of every
    file.
    """
    from delkalakedb.deltalake import Vacuum, retention_of
    from delkalakedb.errors import DeltaError
    from delkalakedb.storage import open_store

    hours: Any = None if retention is None else retention / timedelta(hours=1)

    def plan(name: str) -> tuple[str, dict[str, int]]:
        log = catalog.log(name)
        head = log.head()
        try:
            kept = retention_of(head, hours, enforce=not force)
        except DeltaError as error:
            raise DeltaError(f"{error}; --force allows it") from error
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
                question = (
                    f"Delete {count_of(len(sizes), 'file')} with "
                    f"{format_size(sum(sizes))}?"
                )
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
    columns = ("table", "deleted", "num_files", "size_bytes")
    app.output.changes(((_vacuumed(one), one) for one in records), columns, _NO_TABLE)


def _vacuumed(done: Record) -> str:
    if not done["num_files"]:
        return f"{done['table']} has no file to delete"
    verb = "Deleted" if done["deleted"] else "Would delete"
    files = count_of(done["num_files"], "file")
    return f"{verb} {files} of {done['table']} ({format_size(done['size_bytes'])})"


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
            dropped = count_of(versions, "version")
            app.confirm(f"Drop {dropped} permanently?", yes=yes)
            done = each_table(app, "retention", [one["table"] for one in done], expire)
    columns = ("table", "floor", "versions", "files", "stats")
    sentences = (_expired(one, dry_run=dry_run) for one in done)
    app.output.changes(zip(sentences, done, strict=True), columns, _NO_TABLE)


def _expired(done: Record, *, dry_run: bool) -> str:
    if not done["versions"]:
        return f"{done['table']} has no expired version"
    verb = "Would drop" if dry_run else "Dropped"
    return (
        f"{verb} {count_of(done['versions'], 'version')} of {done['table']}; version "
        f"{done['floor']} is the oldest one now"
    )
