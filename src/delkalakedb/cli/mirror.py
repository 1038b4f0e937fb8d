"""Commands for the mirror: `mirror status`, `mirror run` and so on."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import App, Group, pass_app
from delkalakedb.cli.failures import FOUND
from delkalakedb.cli.operate import each_table, named, tables_arguments
from delkalakedb.cli.options import (
    TABLE,
    dry_run_option,
    outside_files_option,
    yes_option,
)

if TYPE_CHECKING:
    from delkalakedb.mirror import MirrorStatus

__all__ = ["mirror"]

_COLUMNS = (
    "table",
    "state",
    "ratified_version",
    "published_version",
    "versions_behind",
    "seconds_behind",
    "next_try_ms",
    "last_error",
)


@click.group(cls=Group, epilog="Example: deltasql mirror status")
def mirror() -> None:
    """Publish commits to `_delta_log`, and settle what others wrote there."""


@mirror.command(epilog="Example: deltasql mirror status sales")
@click.argument("table", type=TABLE, required=False)
@pass_app
def status(app: App, table: str | None) -> None:
    """Show how far each table's `_delta_log` is behind.

    Exit 1 if one is diverged, or behind for longer than mirror.lag_alert.
    """
    from delkalakedb.mirror.status import load_statuses

    with app.connect() as catalog:
        found = list(load_statuses(catalog, table))
        lag_alert = catalog.settings.mirror.lag_alert
    _show(app, found)
    late = [s for s in found if s.seconds_behind >= lag_alert]
    if late or any(s.state == "diverged" for s in found):
        raise click.exceptions.Exit(FOUND)


def _show(app: App, statuses: Sequence["MirrorStatus"]) -> None:
    records = (
        {**one.to_dict(), "seconds_behind": round(one.seconds_behind, 3)}
        for one in statuses
    )
    app.output.records(records, _COLUMNS)


@mirror.command(epilog="Example: deltasql mirror run --once")
@click.argument("table", type=TABLE, required=False)
@click.option("--once", is_flag=True, help="Try everything once, then stop.")
@pass_app
def run(app: App, table: str | None, once: bool) -> None:
    """Publish what is behind, until SIGTERM or Ctrl-C.

    Makes checkpoints, notices commits of others, and tells of lag. Any number of them
    may run at once. With --once, exit 1 if something couldn't be published.
    """
    from delkalakedb import mirror as library

    app.connect().close()
    uri = app.catalog_uri if table is None else app.table_uri(table)
    with _logged(app):
        if not once:
            app.say("publishing; Ctrl-C or SIGTERM ends it")
        found = library.run(uri, once=once)
    _show(app, found)
    if once:
        _exit_if_behind(found)


def _exit_if_behind(statuses: Sequence["MirrorStatus"]) -> None:
    if any(one.state not in ("published", "held") for one in statuses):
        raise click.exceptions.Exit(FOUND)


@contextmanager
def _logged(app: App) -> Iterator[None]:
    """What the reconciler logs, on standard error, a line each."""
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
    """Publish TABLES now, whatever failed before; exit 1 if it fails again."""
    from delkalakedb.mirror import Reconciler

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
    help="The oldest version to look at.  [default: the oldest that the log must have]",
)
@click.option(
    "--rewrite",
    is_flag=True,
    help="Also write entries whose very bytes the catalog doesn't have, by their "
    "actions.",
)
@pass_app
def republish(app: App, table: str, from_version: int | None, rewrite: bool) -> None:
    """Write log entries of TABLE again that its store has lost.

    They are written from the catalog, with the same bytes as before, and so are the
    newest checkpoint and `_last_checkpoint`. A file that is there is never replaced.
    """
    from delkalakedb.mirror.republish import republish as write_again
    from delkalakedb.storage import open_store

    with app.connect() as catalog:
        store = open_store(catalog.table(table).location)
        done = write_again(catalog, table, store, from_version, rewrite=rewrite)
    app.output.record(done.to_dict())


@mirror.command(epilog="Example: deltasql mirror adopt sales --dry-run")
@tables_arguments
@click.option(
    "--discard",
    is_flag=True,
    help="Take them out of the log instead; a copy stays in _delta_log/_discarded.",
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
    """Make commits that went round the catalog versions of TABLES.

    Also after restore-catalog: what was committed since the backup comes back so.
    """
    from delkalakedb.mirror import foreign
    from delkalakedb.storage import open_store

    taking = partial(foreign.adopt, outside_files=outside_files)
    settle = foreign.discard if discard else taking
    done = "discarded" if discard else "adopted"

    def find(name: str) -> tuple[str, list[dict[str, Any]]]:
        store = open_store(catalog.table(name).location)
        commits = foreign.find_foreign(catalog, name, store)
        return name, [{"table": name, done: not dry_run, **asdict(c)} for c in commits]

    with app.connect() as catalog:
        names = named(catalog, tables, all_tables)
        found = dict(each_table(app, "look", names, find))
        commits = [commit for of_table in found.values() for commit in of_table]
        if commits and not dry_run:
            _ask(app, commits, "Discard" if discard else "Adopt", yes=yes)
        for name in [] if dry_run else found:
            settle(catalog, name, open_store(catalog.table(name).location))
    columns = ("table", "version", "operation", "timestamp_ms", done)
    app.output.records(commits, columns)


def _ask(app: App, commits: list[dict[str, Any]], verb: str, *, yes: bool) -> None:
    for commit in commits:
        app.say("{table}: version {version}: {operation}".format(**commit))
    app.confirm(f"{verb} {len(commits)} commits of others?", yes=yes)


@mirror.command(epilog="Example: deltasql mirror fence sales --yes")
@click.argument("table", type=TABLE)
@yes_option
@pass_app
def fence(app: App, table: str, yes: bool) -> None:
    """Shut out writers that don't ask the catalog.

    Gives TABLE the feature catalogManaged. Readers that don't know the feature are shut
    out as well; detach takes it away again.
    """
    from delkalakedb.mirror.fence import fence as shut

    app.confirm(f"{table}: shut out whoever doesn't know catalogManaged?", yes=yes)
    with app.connect() as catalog:
        version = shut(catalog, table)
    app.output.record({"table": table, "published_version": version})
