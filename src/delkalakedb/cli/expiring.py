"""Commands that let old things go: `vacuum` and `retention`."""

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import App, command, pass_app
from delkalakedb.cli.operate import each_table, named, tables_arguments
from delkalakedb.cli.options import DURATION, dry_run_option, yes_option

if TYPE_CHECKING:
    from delkalakedb import Catalog

__all__ = ["retention", "vacuum"]

_HOUR = timedelta(hours=1)


@command(epilog="Example: deltasql vacuum sales --retention 14d --dry-run")
@tables_arguments
@click.option(
    "--retention",
    type=DURATION,
    help="Keep what was removed since, such as 14d or 1.5h; else as the table says.",
)
@click.option("--full", is_flag=True, help="Files that no version names as well.")
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
    """Delete the files of TABLES that nothing needs any more.

    Versions older than the retention can't be read after that. As JSON, the answer
    has every path.
    """
    hours = None if retention is None else retention / _HOUR
    asked: dict[str, Any] = {
        "retention_hours": hours,
        "enforce_retention_duration": not force,
        "full": full,
    }

    with app.connect() as catalog:
        names = named(catalog, tables, all_tables)

        def plan(name: str) -> dict[str, Any]:
            sizes = _vacuum_plan(catalog, name, hours, full=full, force=force)
            return _vacuumed(name, sizes, list(sizes), deleted=False)

        def delete(planned: dict[str, Any]) -> dict[str, Any]:
            name, sizes = planned["table"], planned["paths"]
            paths = app.table(name).vacuum(dry_run=False, **asked) if sizes else []
            return _vacuumed(name, sizes, paths, deleted=True)

        done = each_table(app, "vacuum", names, plan)
        count, size = (sum(p[k] for p in done) for k in ("num_files", "size_bytes"))
        if count and not dry_run:
            app.confirm(f"Delete {count} files with {size} bytes?", yes=yes)
        if not dry_run:
            by_name = {planned["table"]: planned for planned in done}
            done = each_table(
                app, "vacuum", list(by_name), lambda name: delete(by_name[name])
            )
    app.output.records(done, ("table", "deleted", "num_files", "size_bytes"))


def _vacuum_plan(
    catalog: "Catalog", name: str, hours: float | None, *, full: bool, force: bool
) -> dict[str, int]:
    from delkalakedb.storage import open_store
    from delkalakedb.table.vacuum import Vacuum, retention_of

    log = catalog.log(name)
    head = log.head()
    kept = retention_of(head, hours, enforce=not force)
    store = open_store(head.location)
    return Vacuum(catalog, log, store, kept.asked_ms, full, ()).plan()


def _vacuumed(
    name: str, sizes: dict[str, int], paths: list[str], *, deleted: bool
) -> dict[str, Any]:
    found = {path: sizes.get(path, 0) for path in paths}
    return {
        "table": name,
        "deleted": deleted,
        "num_files": len(found),
        "size_bytes": sum(found.values()),
        "paths": found,
    }


@command(epilog="Example: deltasql retention sales --keep 90d")
@tables_arguments
@click.option(
    "--keep",
    type=DURATION,
    help="Keep every state since; delta.logRetentionDuration (30d) is the least.",
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

    Data files are vacuum's, old log entries go by themselves.
    """
    with app.connect() as catalog:
        names = named(catalog, tables, all_tables)

        def expire(name: str, *, dry_run: bool = False) -> dict[str, Any]:
            return asdict(catalog.expire(name, keep, dry_run=dry_run))

        done = each_table(app, "retention", names, lambda n: expire(n, dry_run=True))
        versions = sum(one["versions"] for one in done)
        if versions and not dry_run:
            app.confirm(f"Drop {versions} versions for good?", yes=yes)
            done = each_table(app, "retention", [one["table"] for one in done], expire)
    app.output.records(done, ("table", "floor", "versions", "files", "stats"))
