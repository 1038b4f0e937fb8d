"""Commands for administrators: `stats`, `audit`, `upgrade`, `backup`, `doctor`..."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import FOUND, UNREACHABLE, App, command, pass_app
from delkalakedb.cli.columns import ShownColumn
from delkalakedb.cli.commands.maintain import each_table
from delkalakedb.cli.options import (
    TABLE,
    commits_options,
    dry_run_option,
    limit_option,
    since_option,
    yes_option,
)
from delkalakedb.model.display import (
    count_of,
    format_minute,
    format_size,
    format_span,
)

if TYPE_CHECKING:
    from delkalakedb import Catalog


_MEGABYTE = 1024 * 1024
# differences; each commit since the backup is one of them
_MAX_DIFFERENCES = 1000


@command(epilog="Example: deltasql stats sales --by day --since 30d")
@click.argument("table", type=TABLE, required=False)
@click.option(
    "--by",
    type=click.Choice(["day", "commit"]),
    help="Show the growth of TABLE by day or by commit.",
)
@since_option("Measure growth from this time on: 7d, yesterday, 2026-01-31.", "7d")
@click.option(
    "--small",
    "small_bytes",
    type=click.IntRange(min=1),
    default=16 * _MEGABYTE,
    show_default=True,
    help="Count a file of fewer bytes as small.",
)
@pass_app
def stats(
    app: App, table: str | None, by: str | None, since_ms: int, small_bytes: int
) -> None:
    """Show table sizes, growth, and advice on maintenance."""
    if not by:
        _show_sizes(app, table, since_ms, small_bytes)
    elif table is None:
        raise click.UsageError("--by needs a TABLE")
    else:
        _show_growth(app, table, since_ms, by)


def _show_sizes(app: App, table: str | None, since_ms: int, small_bytes: int) -> None:
    from delkalakedb.catalog.admin import load_stats

    with app.connect() as catalog:
        found = load_stats(
            catalog._backend, table, small_bytes=small_bytes, since_ms=since_ms
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
        ShownColumn("advice", priority=2.5),
    )
    app.output.records(records, columns, "There are no tables.")


def _show_growth(app: App, table: str, since_ms: int, by: str) -> None:
    from delkalakedb.catalog.admin import by_day, load_growth

    with app.connect() as catalog:
        catalog.table(table)
        commits = load_growth(catalog._backend, table, since_ms)
    found = by_day(commits) if by == "day" else commits
    what = ("timestamp_ms", "commits") if by == "day" else ("version", "timestamp_ms")
    sizes = ("added_bytes", "removed_bytes", "num_files", "size_bytes")
    nothing = f"{table} has had no commit since {format_minute(since_ms)}."
    app.output.records(map(asdict, found), (*what, *sizes), nothing)


@command(epilog="Example: deltasql audit --since 2026-01-31 --actor etl")
@click.option("--table", "name", type=TABLE, help="Only this table.")
@commits_options
@click.option("--transaction", "transaction_id", help="Only this transaction.")
@click.option("--events", is_flag=True, help="List what was done besides commits.")
@limit_option("commits", least=1, default=100)
@pass_app
def audit(app: App, /, limit: int, events: bool, **filters: Any) -> None:
    """List the commits of all tables with users and hosts.

    The newest commits come first. Commits with equal transaction ids were made by one
    atomic transaction. --events lists what was done besides: detach, adopt, drop,
    rename, move, backup, restore, upgrade, and commits that were refused.
    """
    from delkalakedb.catalog.admin import load_audit

    if events:
        _list_events(app, limit, **filters)
        return
    with app.connect() as catalog:
        found = list(load_audit(catalog._backend, limit, **filters))
    columns = (
        "timestamp_ms",
        "table",
        "version",
        "operation",
        "os_user",
        "host",
        "db_user",
        ShownColumn("transaction_tables", header="in one"),
        ShownColumn("transaction_id", header="transaction"),
    )
    app.output.records(found, columns, "No commit matches.")


def _list_events(
    app: App, limit: int, transaction_id: str | None, **filters: Any
) -> None:
    from delkalakedb.catalog.admin import load_events

    if transaction_id is not None:
        raise click.UsageError("--events lists no commits: leave out --transaction")
    with app.connect() as catalog:
        found = load_events(catalog._backend, limit=limit, **filters)
    columns = ("occurred_at_ms", "event", "table", "version", "detail", "os_user")
    origin = ("host", "client_address")
    app.output.records(map(asdict, found), (*columns, *origin), "No event matches.")


@command(epilog="Example: deltasql upgrade --dry-run")
@dry_run_option
@yes_option
@pass_app
def upgrade(app: App, dry_run: bool, yes: bool) -> None:
    """Upgrade the catalog's SQL schema to this package's.

    Older versions of the package can't open an upgraded catalog. Make a backup first.
    """
    from delkalakedb.catalog.admin import load_versions, upgrade_catalog

    uri, settings = app.database()
    versions = load_versions(uri, settings)
    if versions.behind and not dry_run:
        app.say("deltasql backup FILE backs up the catalog before the upgrade")
        app.confirm(
            f"Upgrade from schema version {versions.current} to {versions.latest}?",
            yes=yes,
        )
    if not dry_run:
        # Not only if behind: this call raises for a catalog that is too new.
        upgrade_catalog(uri, settings)
    done = versions.behind and not dry_run
    if done:
        sentence = f"Upgraded the catalog from schema version {versions.current} to"
    elif versions.behind:
        sentence = (
            f"Would upgrade the catalog from schema version {versions.current} to"
        )
    else:
        sentence = "The catalog needs no upgrade: it has schema version"
    record = {**asdict(versions), "upgraded": done}
    app.output.changed(f"{sentence} {versions.latest}", record)


@command(epilog="Example: deltasql backup /backups/catalog-2026-01-31.db")
@click.argument("file", type=click.Path(dir_okay=False))
@pass_app
def backup(app: App, file: str) -> None:
    """Write a consistent copy of the catalog to a new FILE.

    Writers aren't blocked meanwhile. Postgres is copied by pg_dump. The backup contains
    neither data files nor `_delta_log`.
    """
    from delkalakedb.catalog.admin import back_up

    uri, settings = app.database()
    with app.progress("backup"):
        done = back_up(uri, settings, file)
    sentence = (
        f"Wrote {count_of(done.tables, 'table')} to {done.file} "
        f"({format_size(done.size_bytes)}) in {format_span(done.seconds)}"
    )
    app.output.changed(sentence, asdict(done))


@command("restore-catalog", epilog="Example: deltasql restore-catalog catalog.db --yes")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@dry_run_option
@yes_option
@pass_app
def restore_catalog(app: App, file: str, dry_run: bool, yes: bool) -> None:
    """Restore the catalog from a FILE of `deltasql backup`.

    The restore is atomic: the rows of FILE are checked before they replace the catalog.
    Each table is then compared with its `_delta_log`, which still has the commits made
    since the backup. Run `deltasql mirror adopt --all` to bring these commits back
    before anyone writes. Exit 1 if there is such a commit, or another difference.
    """
    from delkalakedb.catalog.admin import load_tables, restore_backup

    uri, settings = app.database(create=True)
    there = load_tables(uri, settings)
    if there and not dry_run:
        tables_there = count_of(len(there), "table")
        app.confirm(f"Replace the catalog with its {tables_there}?", yes=yes)
    with app.progress("restore"):
        done = restore_backup(uri, settings, file, replace=True, dry_run=dry_run)
    tables = [
        {"table": name, "version": version, "before": there.get(name)}
        for name, version in done.versions.items()
    ]
    is_old = done.schema_version < done.latest_schema_version
    if is_old:
        app.say(
            f"the backup has schema version {done.schema_version}: run deltasql "
            "upgrade, then deltasql verify"
        )
    if dry_run or is_old:
        empty = "The backup has no tables."
        app.output.records(tables, ("table", "version", "before"), empty)
    else:
        _compare(app, tables)


def _compare(app: App, tables: list[dict[str, Any]]) -> None:
    with app.connect() as catalog:
        by_name = {table["table"]: table for table in tables}
        found = each_table(
            app, "verify", list(by_name), lambda n: by_name[n] | _logged(catalog, n)
        )
    columns = ("table", "version", "before", "newer", "found")
    app.output.records(found, columns, "The backup has no tables.")
    if any(table["newer"] for table in found):
        app.say(
            "the logs have commits that are newer than the backup; run deltasql "
            "mirror adopt --all before anyone writes"
        )
    if any(table["newer"] or table["found"] for table in found):
        raise click.exceptions.Exit(FOUND)


def _logged(catalog: "Catalog", name: str) -> dict[str, Any]:
    """Return how many commits the catalog lacks, and the other differences."""
    from delkalakedb.mirror.verify import verify_table
    from delkalakedb.storage import open_store

    store = open_store(catalog.table(name).location)
    report = verify_table(catalog, name, store, limit=_MAX_DIFFERENCES)
    newest = report.ratified_version
    newer = {d.version for d in report.differences if d.version > newest}
    found = [str(d) for d in report.differences if d.version <= newest]
    return {"newer": len(newer), "found": "; ".join(found) or None}


@command(epilog="Example: deltasql doctor --output json")
@pass_app
def doctor(app: App) -> None:
    """Check the installation; advise how to repair problems.

    The checks cover the database and its clock, write permission in the database and at
    each table's location (a test object is written and deleted), the mirror, and
    leftover files. Exit 1 if a check fails, 3 if the database can't be reached.
    """
    from delkalakedb.doctor import examine

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


@command(epilog="Example: deltasql completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for SHELL.

    The script completes commands, options and tables. Table names come from the catalog
    that $DELTASQL_CATALOG, --catalog or the configuration names. For fish, write the
    script to ~/.config/fish/completions/deltasql.fish.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "deltasql", "_DELTASQL_COMPLETE")
    lines = script.source().strip().splitlines()
    ctx.ensure_object(App).output.lines(lines, "line")
