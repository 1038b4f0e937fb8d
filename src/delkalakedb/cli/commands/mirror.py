"""The commands below `mirror`: `mirror status`, `mirror run` and so on."""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import FOUND, App, Group, pass_app
from delkalakedb.cli.columns import ShownColumn
from delkalakedb.cli.commands.maintain import each_table, named, tables_arguments
from delkalakedb.cli.options import (
    DURATION,
    TABLE,
    dry_run_option,
    outside_files_option,
    yes_option,
)
from delkalakedb.model.display import count_of, format_minute

if TYPE_CHECKING:
    from delkalakedb.mirror.publisher import MirrorStatus, Republished

_COLUMNS = (
    "table",
    "state",
    "versions_behind",
    "seconds_behind",
    "published_version",
    "ratified_version",
    "next_try_ms",
    ShownColumn("last_error", priority=2.5),
)


@click.group(cls=Group, epilog="Example: deltasql mirror status")
def mirror() -> None:
    """Publish commits to `_delta_log`; settle foreign commits."""


@mirror.command(epilog="Example: deltasql mirror status sales")
@click.argument("table", type=TABLE, required=False)
@click.option("--watch", type=DURATION, help="Repeat, with a pause of this length.")
@pass_app
def status(app: App, table: str | None, watch: timedelta | None) -> None:
    """Show how far each table's log lags behind the catalog.

    Exit 1 if a mirror has diverged, or lags for longer than mirror.lag_alert.
    """
    from delkalakedb.mirror.publisher import absence, status as load_status

    with app.connect() as catalog:
        lag_alert = catalog.settings.mirror.lag_alert
        while True:
            found = load_status(catalog, table)
            absent = absence(catalog)
            if watch and sys.stdout.isatty():
                click.clear()
            _show(app, found)
            if absent is not None:
                app.say(f"{absent}; start `deltasql mirror run`")
            if watch is None:
                break
            sys.stdout.flush()
            time.sleep(watch.total_seconds())
    late = [s for s in found if s.seconds_behind >= lag_alert]
    if late or any(s.state == "diverged" for s in found):
        raise click.exceptions.Exit(FOUND)


def _show(app: App, statuses: Sequence["MirrorStatus"]) -> None:
    records = (
        {**one.to_dict(), "seconds_behind": round(one.seconds_behind, 3)}
        for one in statuses
    )
    app.output.records(records, _COLUMNS, "There are no tables.")


@mirror.command(epilog="Example: deltasql mirror run --once")
@click.argument("table", type=TABLE, required=False)
@click.option("--once", is_flag=True, help="Publish each table once, then stop.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve /metrics for Prometheus, /healthz and /readyz on this port.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="The address to serve them on.",
)
@pass_app
def run(
    app: App,
    table: str | None,
    once: bool,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Publish waiting commits until SIGTERM or Ctrl-C.

    Also writes checkpoints, detects foreign commits, and logs mirrors that lag. Several
    of these processes may run at once. With --once, exit 1 if a commit couldn't be
    published. Metrics need `pip install 'delkalakedb[metrics]'`.
    """
    from delkalakedb import mirror as library

    app.connect().close()
    uri = app.catalog_uri if table is None else app.table_uri(table)
    with _logged(app):
        if not once:
            app.say("publishing; stop with Ctrl-C or SIGTERM")
        found = library.run(
            uri, once=once, metrics_port=metrics_port, metrics_host=metrics_host
        )
    _show(app, found)
    if once:
        _exit_if_behind(found)


def _exit_if_behind(statuses: Sequence["MirrorStatus"]) -> None:
    if any(one.state not in ("published", "held") for one in statuses):
        raise click.exceptions.Exit(FOUND)


@contextmanager
def _logged(app: App) -> Iterator[None]:
    """Write the log messages of the reconciler to standard error."""
    logger = logging.getLogger("delkalakedb")
    handler = _Lines(app)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Lines(logging.Handler):
    def __init__(self, app: App) -> None:
        super().__init__()
        self._app = app

    def emit(self, record: logging.LogRecord) -> None:
        self._app.say(self.format(record))


@mirror.command(epilog="Example: deltasql mirror retry sales")
@tables_arguments
@pass_app
def retry(app: App, tables: tuple[str, ...], all_tables: bool) -> None:
    """Publish TABLES now, even if the next try isn't due.

    Exit 1 if that fails.
    """
    from delkalakedb.mirror.publisher import Reconciler

    with app.connect() as catalog:

        def publish(name: str) -> "MirrorStatus":
            (found,) = Reconciler(catalog, table=name).run_once()
            return found

        names = named(catalog, tables, all_tables)
        with _logged(app):
            done = each_table(app, "publish", names, publish)
    _show(app, done)
    _exit_if_behind(done)


@mirror.command(epilog="Example: deltasql mirror republish sales --from 40")
@click.argument("table", type=TABLE)
@click.option(
    "--from",
    "from_version",
    type=click.IntRange(min=0),
    metavar="VERSION",
    help="The oldest version to check.  [default: the oldest that the log must have]",
)
@click.option(
    "--rewrite",
    is_flag=True,
    help="Also write entries whose original bytes the catalog doesn't have, from "
    "their actions.",
)
@pass_app
def republish(app: App, table: str, from_version: int | None, rewrite: bool) -> None:
    """Write log entries of TABLE that its store has lost.

    The entries are written from the catalog, with their original bytes. The newest
    checkpoint and `_last_checkpoint` are written, too. Existing files are never
    replaced.
    """
    from delkalakedb.mirror.publisher import republish as write_again

    with app.connect() as catalog:
        done = write_again(catalog, from_version, table=table, rewrite=rewrite)
    app.output.changed(_republished(done), done.to_dict())


def _republished(done: "Republished") -> str:
    entries = count_of(len(done.versions), "log entry")
    checkpoints = count_of(len(done.checkpoints), "checkpoint")
    if not done.versions and not done.checkpoints and done.last_checkpoint is None:
        return f"The log of {done.table} lacks nothing"
    return f"Wrote {entries} and {checkpoints} of {done.table}"


@mirror.command(epilog="Example: deltasql mirror adopt sales --dry-run")
@tables_arguments
@click.option(
    "--discard",
    is_flag=True,
    help="Move foreign commits from the log to _delta_log/_discarded instead.",
)
@outside_files_option
@dry_run_option
@yes_option
@pass_app
def adopt(
    app: App,
    tables: tuple[str, ...],
    all_tables: bool,
    discard: bool,
    outside_files: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Adopt commits that bypassed the catalog.

    They become versions of TABLES. After restore-catalog, this command brings back the
    commits made since the backup.
    """
    from delkalakedb.mirror import adopt as adopt_foreign, find_foreign
    from delkalakedb.storage import open_store

    settle = partial(adopt_foreign, discard=discard, outside_files=outside_files)
    done = "discarded" if discard else "adopted"

    def find(name: str) -> tuple[str, list[dict[str, Any]]]:
        store = open_store(catalog.table(name).location)
        commits = find_foreign(catalog, name, store)
        return name, [{"table": name, done: not dry_run, **asdict(c)} for c in commits]

    with app.connect() as catalog:
        names = named(catalog, tables, all_tables)
        found = dict(each_table(app, "search", names, find))
        commits = [commit for of_table in found.values() for commit in of_table]
        if commits and not dry_run:
            for commit in commits:
                app.say("{table}: version {version}: {operation}".format(**commit))
            verb = "Discard" if discard else "Adopt"
            app.confirm(f"{verb} {len(commits)} foreign commits?", yes=yes)
        for name in [] if dry_run else found:
            settle(catalog, table=name)
    columns = ("table", "version", "operation", "timestamp_ms", done)
    verb = f"Would have {done}" if dry_run else done.capitalize()
    app.output.changes(
        (
            (
                f"{verb} version {one['version']} of {one['table']} "
                f"({one['operation']}, {format_minute(one['timestamp_ms'])})",
                one,
            )
            for one in commits
        ),
        columns,
        "There is no foreign commit.",
    )


@mirror.command(epilog="Example: deltasql mirror fence sales --yes")
@click.argument("table", type=TABLE)
@dry_run_option
@yes_option
@pass_app
def fence(app: App, table: str, dry_run: bool, yes: bool) -> None:
    """Prevent writes to TABLE that bypass the catalog.

    This adds the table feature catalogManaged. Readers that don't support the feature
    can't read TABLE any more. The command detach removes the feature.
    """
    from delkalakedb.mirror import fence as add_fence
    from delkalakedb.model.rules.protocol import is_fenced

    with app.connect() as catalog:
        was_fenced = is_fenced(catalog.log(table).state().protocol)
        if dry_run:
            version = catalog._mirror_state(table)[0]
        else:
            app.confirm(
                f"Fence {table}? Clients without support for catalogManaged can no "
                "longer read or write it.",
                yes=yes or was_fenced,
            )
            version = add_fence(catalog, table=table)
    record = {"table": table, "published_version": version, "dry_run": dry_run}
    if was_fenced:
        sentence = f"{table} is fenced already (version {version})"
    elif dry_run:
        sentence = f"Would fence {table} after version {version}"
    else:
        sentence = f"Fenced {table} at version {version}"
    app.output.changed(sentence, record, ("table", "published_version"))
