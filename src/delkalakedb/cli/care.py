"""Commands to look after a catalog: `stats`, `doctor`, `upgrade`, `audit`."""

import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from delkalakedb.cli.app import App, command, pass_app
from delkalakedb.cli.failures import FOUND, UNREACHABLE
from delkalakedb.cli.options import (
    DURATION,
    TABLE,
    TIME,
    dry_run_option,
    yes_option,
)

__all__ = ["audit", "doctor", "stats", "upgrade"]

_MEGABYTE = 1024 * 1024
_MILLISECOND = timedelta(milliseconds=1)


@command(epilog="Example: deltasql stats sales --by day --since 30d")
@click.argument("table", type=TABLE, required=False)
@click.option(
    "--by",
    type=click.Choice(["day", "commit"]),
    help="How TABLE grew: by day, or commit by commit.",
)
@click.option(
    "--since", type=DURATION, default="7d", show_default=True, help="Growth since."
)
@click.option(
    "--small",
    "small_bytes",
    type=click.IntRange(min=1),
    default=16 * _MEGABYTE,
    show_default=True,
    help="A file of fewer bytes is small.",
)
@pass_app
def stats(
    app: App, table: str | None, by: str | None, since: timedelta, small_bytes: int
) -> None:
    """Show how large tables are, how they grow, and what would do them good."""
    if by and table is None:
        raise click.UsageError("--by is for one table: name it")
    since_ms = int(time.time() * 1000) - since // _MILLISECOND
    if by:
        assert table is not None
        _show_growth(app, table, since_ms, by)
    else:
        _show_sizes(app, table, since_ms, small_bytes)


def _show_sizes(app: App, table: str | None, since_ms: int, small_bytes: int) -> None:
    from delkalakedb.catalog.care import load_stats

    with app.connect() as catalog:
        found = load_stats(
            catalog.backend, table, small_bytes=small_bytes, since_ms=since_ms
        )
    records = ({**asdict(s), "advice": ", ".join(s.advice) or None} for s in found)
    columns = (
        "table",
        "num_files",
        "size_bytes",
        "small_files",
        "tombstones",
        "tombstone_bytes",
        "versions",
        "commits",
        "grown_bytes",
        "advice",
    )
    app.output.records(records, columns)


def _show_growth(app: App, table: str, since_ms: int, by: str) -> None:
    from delkalakedb.catalog.care import by_day, load_growth

    with app.connect() as catalog:
        catalog.table(table)
        commits = load_growth(catalog.backend, table, since_ms)
    found = by_day(commits) if by == "day" else commits
    what = ("timestamp_ms", "commits") if by == "day" else ("version", "timestamp_ms")
    sizes = ("added_bytes", "removed_bytes", "num_files", "size_bytes")
    app.output.records(map(asdict, found), (*what, *sizes))


@command(epilog="Example: deltasql audit --since 2026-01-31 --actor etl")
@click.option("--table", "name", type=TABLE, help="Only this table.")
@click.option("--since", "since_ms", type=TIME, help="None older than this time.")
@click.option("--until", "until_ms", type=TIME, help="None newer than this time.")
@click.option("--operation", help="Only this operation, such as MERGE.")
@click.option("--actor", help="Only this user, host or client.")
@click.option("--transaction", "transaction_id", help="Only this transaction.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="At most so many commits.",
)
@pass_app
def audit(app: App, /, limit: int, **filters: Any) -> None:
    """List who did what when, in all tables, newest first.

    Commits with the same transaction were made at once, or not at all.
    """
    from delkalakedb.catalog.care import load_audit

    with app.connect() as catalog:
        found = list(load_audit(catalog.backend, limit, **filters))
    columns = (
        "timestamp_ms",
        "table",
        "version",
        "operation",
        "db_user",
        "os_user",
        "host",
        "transaction_tables",
        "transaction_id",
    )
    app.output.records(found, columns)


@command(epilog="Example: deltasql upgrade --dry-run")
@dry_run_option
@yes_option
@pass_app
def upgrade(app: App, dry_run: bool, yes: bool) -> None:
    """Bring the catalog's tables to this version of the package.

    Older versions can't open it after that. Make a backup first.
    """
    from delkalakedb.catalog.upgrading import load_versions, upgrade_catalog

    uri, settings = app.database()
    versions = load_versions(uri, settings)
    if versions.behind and not dry_run:
        app.say("deltasql backup FILE writes a backup of the catalog as it is now")
        app.confirm(
            f"Upgrade from schema version {versions.current} to {versions.latest}?",
            yes=yes,
        )
    if not dry_run:
        # Also where it is too new, which is refused.
        upgrade_catalog(uri, settings)
    done = versions.behind and not dry_run
    app.output.record({**asdict(versions), "upgraded": done})


@command(epilog="Example: deltasql doctor --output json")
@pass_app
def doctor(app: App) -> None:
    """Check all that has to be right, and say what to do where it isn't.

    The database and its clock, what may be written there and at each table's location
    (an object is put and deleted again), the mirror, leftovers. Exit 1 if something
    isn't ok, 3 if the database can't be reached.
    """
    from delkalakedb.table.doctor import examine

    uri, settings = app.database()
    with app.progress("check") as advance:
        found = []
        for check in examine(uri, settings):
            found.append(check)
            advance(len(found), None)
    columns = ("check", "state", "detail", "advice")
    app.output.records(map(asdict, found), columns)
    if any(check.state != "ok" for check in found):
        unreachable = any(c.check == "connection" and c.state != "ok" for c in found)
        raise click.exceptions.Exit(UNREACHABLE if unreachable else FOUND)
