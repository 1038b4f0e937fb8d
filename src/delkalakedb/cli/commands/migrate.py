"""Commands that migrate tables: `import`, `convert`, `sync`, `copy`, `detach`."""

import os
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import FAILED, FOUND, App, command, pass_app
from delkalakedb.cli.options import (
    DURATION,
    PAIR,
    TABLE,
    Parsed,
    deep_option,
    dry_run_option,
    outside_files_option,
    yes_option,
)
from delkalakedb.model.display import count_of, format_size, format_span

if TYPE_CHECKING:
    from delkalakedb import Catalog, Copied, Synced
    from delkalakedb.migrate import Outcome, Place

_IMPORTED = ("name", "state", "version", "versions", "num_files", "seconds", "location")
_SYNCED = ("table", "hold", "version", "versions", "versions_behind", "timestamp_ms")
_COPIED = ("table", "state", "version", "versions", "num_files", "rows", "seconds")
_DETACHED = ("table", "version", "location")


def _parse_column(text: str) -> tuple[str, str]:
    """Split `text` into a column's name and its Delta type, by default string."""
    name, _, kind = text.partition(":")
    return name, kind or "string"


storage_options = click.option(
    "--storage-option",
    "storage_options",
    type=PAIR,
    multiple=True,
    callback=lambda ctx, param, given: dict(given) or None,
    help="An option of the object store, as deltalake takes it; may be given several "
    "times. Options also come from the environment.",
)
name_option = click.option(
    "--name", help="The name of a new table.  [default: the folder's name]"
)


@command(
    "import", epilog="Example: deltasql import s3://lake/bronze --recursive --dry-run"
)
@click.argument("location")
@name_option
@click.option(
    "--recursive", "-r", is_flag=True, help="Import every Delta table below LOCATION."
)
@click.option("--prefix", default="", help="A prefix of names, with --recursive.")
@click.option(
    "--no-history",
    is_flag=True,
    help="Start at the newest checkpoint, not at the oldest version in the log.",
)
@deep_option
@outside_files_option
@storage_options
@dry_run_option
@pass_app
def import_(
    app: App,
    /,
    location: str,
    name: str | None,
    recursive: bool,
    prefix: str,
    no_history: bool,
    storage_options: dict[str, str] | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Import the Delta table at LOCATION into the catalog.

    If the catalog has the table already, only new commits are imported. Nothing is
    written to LOCATION. After an interruption, run the command again to continue. Other
    writers may go on during an import: stop them and import once more, then write only
    through the catalog.

    With --recursive every folder that has a _delta_log is imported under the folder's
    name, or under its path with dots if two folders have one name. A table with an
    unsupported feature is refused, and the import of the other tables goes on.

    At the end the tables are verified: exit 1 if catalog and log differ, 5 if a table
    was refused.
    """
    from delkalakedb.migrate import preview

    if name and recursive:
        raise click.UsageError("with --recursive, give --prefix instead of --name")
    with app.connect(create=not dry_run) as catalog:
        places = _places(catalog, location, name, prefix, recursive, storage_options)
        if dry_run:
            done = [preview(catalog, p, history=not no_history) for p in places]
        else:
            options["history"] = not no_history
            done = [_imported(app, catalog, place, **options) for place in places]
    _show_imported(app, done)


def _places(
    catalog: "Catalog",
    location: str,
    name: str | None,
    prefix: str,
    recursive: bool,
    options: dict[str, str] | None,
) -> list["Place"]:
    from delkalakedb.catalog.load import find_table_at
    from delkalakedb.catalog.read import check_name
    from delkalakedb.errors import DeltaError
    from delkalakedb.migrate import Place, find_places, name_of
    from delkalakedb.storage import open_store

    if recursive:
        found = find_places(catalog, location, options, prefix=prefix)
        if not found:
            raise DeltaError(f"{location}: there is no Delta table below this folder")
        return found
    if name is not None:
        check_name(name)
    store = open_store(location, options)
    given = name or find_table_at(catalog, store.url) or name_of(location)
    return [Place(given, store)]


def _imported(
    app: App, catalog: "Catalog", place: "Place", **options: bool
) -> "Outcome":
    from delkalakedb.migrate import import_place

    done = import_place(catalog, place, progress=not app.quiet, **options)
    if done.newer:
        app.say(
            f"{done.name}: another writer has just made version {max(done.newer)}; "
            "stop all other writers, and import once more"
        )
    return done


def _outcome(done: "Outcome") -> str:
    if done.version is None:
        return f"{done.name}: {done.state} from {done.location}"
    versions = "" if done.versions is None else count_of(done.versions, "version")
    files = "" if done.num_files is None else count_of(done.num_files, "file")
    sizes = ", ".join(filter(None, [versions, files, format_span(done.seconds)]))
    return f"{done.name}: {done.state} at version {done.version} ({sizes})"


def _show_imported(app: App, done: list["Outcome"]) -> None:
    changes = ((_outcome(one), one.to_dict()) for one in done)
    app.output.changes(changes, _IMPORTED, "There are no tables.")
    for outcome in done:
        if outcome.message:
            app.say(f"{outcome.name}: {outcome.state}: {outcome.message}")
    states = Counter(outcome.state for outcome in done)
    if len(done) > 1:
        app.say(", ".join(f"{count} {state}" for state, count in states.items()))
    if states["refused"]:
        raise click.exceptions.Exit(FAILED)
    if states["differs"]:
        raise click.exceptions.Exit(FOUND)


@command(epilog="Example: deltasql convert lake/events --partition-by day:date")
@click.argument("location")
@name_option
@click.option(
    "--partition-by",
    type=Parsed("column", _parse_column),
    multiple=True,
    metavar="COLUMN[:TYPE]",
    help="A partition column with folders such as day=2026-01-31; outermost first.",
)
@storage_options
@dry_run_option
@pass_app
def convert(
    app: App,
    location: str,
    name: str | None,
    partition_by: tuple[tuple[str, str], ...],
    storage_options: dict[str, str] | None,
    dry_run: bool,
) -> None:
    """Create a table from Parquet files, without copying them.

    The first commit adds all Parquet files below LOCATION, and is published to
    LOCATION/_delta_log.
    """
    from delkalakedb.deltalake import convert_folder
    from delkalakedb.migrate import name_of

    app.connect(create=not dry_run).close()
    if dry_run:
        _preview_conversion(app, location, name or name_of(location), storage_options)
        return
    table = convert_folder(
        location,
        app.table_uri(name or name_of(location)),
        partition_by=dict(partition_by),
        storage_options=storage_options,
    )
    columns = ("name", "version", "num_files", "size_bytes", "location")
    files = f"{count_of(table.num_files, 'file')} ({format_size(table.size_bytes)})"
    sentence = f"Created {table.name} from {files} at {table.location}"
    app.output.changed(sentence, table.to_dict(), columns)


def _preview_conversion(
    app: App, location: str, name: str, storage_options: dict[str, str] | None
) -> None:
    from delkalakedb.errors import DeltaError
    from delkalakedb.model.paths import LOG
    from delkalakedb.storage import open_store

    store = open_store(location, storage_options)
    if next(store.list(LOG), None) is not None:
        raise DeltaError(f"{store.url}: there is a Delta table already; import it")
    sizes = [f.size_bytes for f in store.list() if f.path.endswith(".parquet")]
    record = {
        "name": name,
        "version": None,
        "num_files": len(sizes),
        "size_bytes": sum(sizes),
        "location": store.url,
    }
    files = f"{count_of(len(sizes), 'file')} ({format_size(sum(sizes))})"
    app.output.changed(f"Would create {name} from {files} at {store.url}", record)


@command(epilog="Example: deltasql sync lake/orders --watch 10s")
@click.argument("table", metavar="TABLE|LOCATION", type=TABLE)
@name_option
@click.option(
    "--cut-over",
    is_flag=True,
    help="Take the table over: from now on it is written only through the catalog.",
)
@click.option("--watch", type=DURATION, help="Repeat, with a pause of this length.")
@outside_files_option
@storage_options
@dry_run_option
@yes_option
@pass_app
def sync(
    app: App,
    /,
    table: str,
    name: str | None,
    cut_over: bool,
    watch: timedelta | None,
    dry_run: bool,
    yes: bool,
    **options: Any,
) -> None:
    """Import new commits of a table that others write by file.

    A table at LOCATION that the catalog doesn't have is imported first. Until the
    cut-over the table is read-only in the catalog: a commit through the catalog fails,
    and nothing is written to the table's log.
    """
    from delkalakedb.migrate import cut_over as take_over, sync as catch_up

    if cut_over and watch:
        raise click.UsageError("give either --watch or --cut-over")
    take = take_over if cut_over else catch_up
    with app.connect(create=not cut_over and not dry_run) as catalog:
        if dry_run:
            _show_imported(app, [_preview_sync(catalog, table, name, options)])
            return
        name = _followed(app, catalog, table, name, **options)
        if cut_over:
            hold = catalog.log(name).head().hold
            app.confirm(f"{name} is {hold}. Have all other writers stopped?", yes=yes)
        done = take(catalog, table=name, progress=not app.quiet, **options)
        while watch is not None:
            app.say(
                f"{done.table}: version {done.version}, {done.versions} new, "
                f"{done.versions_behind} behind"
            )
            time.sleep(watch.total_seconds())
            done = take(catalog, table=name, **options)
    app.output.changed(_synced(done), done.to_dict(), _SYNCED)


def _synced(done: "Synced") -> str:
    hold = f"; read-only here ({done.hold})" if done.hold else ""
    return (
        f"{done.table} is at version {done.version}: "
        f"{count_of(done.versions, 'version')} new, {done.versions_behind} behind{hold}"
    )


def _preview_sync(
    catalog: "Catalog", given: str, name: str | None, options: Mapping[str, Any]
) -> "Outcome":
    from delkalakedb.catalog.load import find_table_at
    from delkalakedb.migrate import Place, name_of, preview
    from delkalakedb.storage import open_store

    locations = {table.name: table.location for table in catalog.tables()}
    store = open_store(locations.get(given, given), options["storage_options"])
    known = given if given in locations else find_table_at(catalog, store.url)
    return preview(catalog, Place(known or name or name_of(given), store))


def _followed(
    app: App,
    catalog: "Catalog",
    given: str,
    name: str | None,
    *,
    storage_options: dict[str, str] | None,
    outside_files: bool,
) -> str:
    """Return the name of the table `given`; import an unknown location first."""
    from delkalakedb.catalog.load import find_table_at
    from delkalakedb.errors import TableNotFoundError, did_you_mean
    from delkalakedb.migrate import follow, name_of
    from delkalakedb.storage import open_store

    known = {table.name for table in catalog.tables()}
    if given in known:
        return given
    store = open_store(given, storage_options)
    if found := find_table_at(catalog, store.url):
        return found
    name = name or name_of(given)
    try:
        follow(
            store,
            catalog,
            table=name,
            outside_files=outside_files,
            progress=not app.quiet,
        )
    except TableNotFoundError as error:
        # Perhaps the location was meant as a name.
        error.args = (f"{error}{did_you_mean(given, known)}",)
        raise
    return name


@command(epilog="Example: deltasql copy --to deltasql://postgres/db/lake --move")
@click.argument("tables", nargs=-1, type=TABLE)
@click.option(
    "--to", "target", required=True, metavar="URI", help="The target catalog."
)
@click.option("--move", is_flag=True, help="Remove the tables from this catalog.")
@dry_run_option
@yes_option
@pass_app
def copy(
    app: App, tables: tuple[str, ...], target: str, move: bool, dry_run: bool, yes: bool
) -> None:
    """Copy tables with their history to another catalog.

    All tables are copied, or TABLES. A table becomes read-only in this catalog when its
    copy begins, because only one catalog may write a table. After the copy was compared
    row by row, the target catalog writes the table; this catalog keeps it read-only, or
    removes it with --move. Files stay where they are. After an interruption, run the
    command again to continue.
    """
    from delkalakedb.migrate import copy_catalog

    app.connect().close()
    if _database(target) == _database(app.catalog_uri):
        raise click.UsageError("--to is this catalog; name another one")
    if not dry_run:
        what = ", ".join(tables) or "all tables"
        question = f"Copy {what}? The tables become read-only in this catalog."
        app.confirm(question, yes=yes)
    done = copy_catalog(
        app.catalog_uri,
        target,
        tables,
        move=move,
        dry_run=dry_run,
        progress=not app.quiet,
    )
    changes = ((_copied(one), one.to_dict()) for one in done)
    app.output.changes(changes, _COPIED, "There are no tables.")


def _database(uri: str) -> tuple[object, ...]:
    """Return what names a catalog's database, without users and options."""
    from delkalakedb.settings import parse_uri

    parsed = parse_uri(uri)
    if parsed.host is None:
        return parsed.engine, os.path.realpath(parsed.database)
    schema = parsed.schema or "public"
    return parsed.engine, parsed.host, parsed.port, parsed.database, schema


def _copied(done: "Copied") -> str:
    return (
        f"{done.table}: {done.state} at version {done.version} "
        f"({count_of(done.versions, 'version')}, {count_of(done.num_files, 'file')}, "
        f"{count_of(done.rows, 'row')} of the catalog)"
    )


@command(epilog="Example: deltasql detach sales --yes")
@click.argument("table", type=TABLE)
@deep_option
@storage_options
@dry_run_option
@yes_option
@pass_app
def detach(app: App, /, table: str, dry_run: bool, yes: bool, **options: Any) -> None:
    """Take TABLE out of the catalog as a plain Delta table.

    Its files stay at their location. Publishes waiting commits, removes a fence, writes
    a checkpoint and verifies the log first. If catalog and log differ, the table stays
    in the catalog. A table that is followed, or was copied to another catalog, is
    removed without these steps.
    """
    from delkalakedb.migrate import detach as leave

    with app.connect() as catalog:
        location = catalog.table(table).location
        if not dry_run:
            app.confirm(f"Detach {table}? Its files stay at {location}.", yes=yes)
        done = leave(catalog, table=table, dry_run=dry_run, **options)
    verb = "Would detach" if dry_run else "Detached"
    sentence = f"{verb} {table} at version {done.version}; its files stay at {location}"
    app.output.changed(sentence, done.to_dict(), _DETACHED)
