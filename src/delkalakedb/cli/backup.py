"""Commands for the catalog as a whole: `backup` and `restore-catalog`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import App, command, pass_app
from delkalakedb.cli.failures import FOUND
from delkalakedb.cli.operate import each_table
from delkalakedb.cli.options import dry_run_option, yes_option

if TYPE_CHECKING:
    from delkalakedb import Catalog
    from delkalakedb.catalog.backups import Restored

__all__ = ["backup", "restore_catalog"]

# Differences that are looked at: commits since the backup count among them.
_LOOKED_AT = 1000


@command(epilog="Example: deltasql backup /backups/catalog-2026-01-31.db")
@click.argument("file", type=click.Path(dir_okay=False))
@pass_app
def backup(app: App, file: str) -> None:
    """Write the whole catalog to a new FILE, of one state; writers go on.

    SQLite and DuckDB copy themselves, Postgres uses pg_dump. Neither data files nor
    `_delta_log` are part of it.
    """
    from delkalakedb.catalog.backups import back_up

    uri, settings = app.database()
    with app.progress("backup"):
        done = back_up(uri, settings, file)
    app.output.record(asdict(done))


@command("restore-catalog", epilog="Example: deltasql restore-catalog catalog.db --yes")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@dry_run_option
@yes_option
@pass_app
def restore_catalog(app: App, file: str, dry_run: bool, yes: bool) -> None:
    """Make the catalog what it was when FILE was written by `backup`.

    All of it, or nothing: the rows are checked before they replace what is there. After
    that each table is compared with its `_delta_log`. What was committed since the
    backup is still there; `mirror adopt --all` brings it back, and must come before
    anybody writes. Exit 1 if there is such a commit, or a difference.
    """
    from delkalakedb.catalog.backups import load_tables, restore_backup

    uri, settings = app.database(create=True)
    there = load_tables(uri, settings)
    if there and not dry_run:
        app.confirm(f"Replace the catalog, which has {len(there)} tables?", yes=yes)
    with app.progress("restore"):
        done = restore_backup(uri, settings, file, replace=True, dry_run=dry_run)
    tables = [
        {"table": name, "version": version, "before": there.get(name)}
        for name, version in done.versions.items()
    ]
    if dry_run or done.schema_version < done.latest_schema_version:
        _tell_upgrade(app, done)
        app.output.records(tables, ("table", "version", "before"))
    else:
        _compare(app, tables)


def _tell_upgrade(app: App, done: "Restored") -> None:
    if done.schema_version < done.latest_schema_version:
        app.say(
            f"the backup has schema version {done.schema_version}: run deltasql "
            "upgrade, then deltasql verify"
        )


def _compare(app: App, tables: list[dict[str, Any]]) -> None:
    with app.connect() as catalog:
        by_name = {table["table"]: table for table in tables}
        found = each_table(
            app, "verify", list(by_name), lambda n: by_name[n] | _logged(catalog, n)
        )
    app.output.records(found, ("table", "version", "before", "newer", "found"))
    if any(table["newer"] for table in found):
        app.say(
            "the logs have commits that are newer than the backup; before anybody "
            "writes, run deltasql mirror adopt --all"
        )
    if any(table["newer"] or table["found"] for table in found):
        raise click.exceptions.Exit(FOUND)


def _logged(catalog: "Catalog", name: str) -> dict[str, Any]:
    """How many commits the log has beyond the catalog, and where else they differ."""
    from delkalakedb.mirror.verify import verify
    from delkalakedb.storage import open_store

    store = open_store(catalog.table(name).location)
    report = verify(catalog, name, store, limit=_LOOKED_AT)
    newest = report.ratified_version
    newer = {d.version for d in report.differences if d.version > newest}
    found = [str(d) for d in report.differences if d.version <= newest]
    return {"newer": len(newer), "found": "; ".join(found) or None}
