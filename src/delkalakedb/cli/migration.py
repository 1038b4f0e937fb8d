"""Commands for the way in and out: `import`, `convert`, `sync`, `copy`, `detach`."""

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delkalakedb.cli.app import App, command, pass_app
from delkalakedb.cli.failures import FAILED, FOUND
from delkalakedb.cli.options import (
    DURATION,
    PAIR,
    TABLE,
    dry_run_option,
    outside_files_option,
    yes_option,
)

if TYPE_CHECKING:
    from delkalakedb import Catalog
    from delkalakedb.migrate.following import Synced
    from delkalakedb.migrate.importing import ImportProgress, Tell
    from delkalakedb.migrate.trees import Outcome, Place

__all__ = ["convert", "copy", "detach", "import_", "sync"]

_F = TypeVar("_F", bound=Callable[..., Any])
_IMPORTED = ("name", "state", "version", "versions", "num_files", "seconds", "location")
_SYNCED = ("table", "hold", "version", "versions", "versions_behind", "timestamp_ms")
_COPIED = ("table", "state", "version", "versions", "num_files", "rows", "seconds")
_DETACHED = ("table", "version", "location")


class _Column(click.ParamType[tuple[str, str]]):
    name = "column"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """A column's name and its Delta type, a string unless told."""
        name, _, kind = value.partition(":")
        return name, kind or "string"


def storage_options(command: _F) -> _F:
    """`--storage-option NAME=VALUE`, any number of times."""

    def collect(
        ctx: click.Context, param: click.Parameter, given: tuple[tuple[str, str], ...]
    ) -> dict[str, str] | None:
        return dict(given) or None

    return click.option(
        "--storage-option",
        "storage_options",
        type=PAIR,
        multiple=True,
        callback=collect,
        help="For the object store, as deltalake takes it; the environment's are used.",
    )(command)


@command(
    "import", epilog="Example: deltasql import s3://lake/bronze --recursive --dry-run"
)
@click.argument("location")
@click.option("--name", help="The table's name; its folder's by default.")
@click.option(
    "--recursive", "-r", is_flag=True, help="Every Delta table below LOCATION."
)
@click.option("--prefix", default="", help="With --recursive: names begin with this.")
@click.option(
    "--no-history",
    is_flag=True,
    help="Start at the newest checkpoint, not at the oldest version there is.",
)
@click.option(
    "--deep", is_flag=True, help="Verify every version, and look for the data files."
)
@outside_files_option
@storage_options
@dry_run_option
@pass_app
def import_(
    app: App,
    location: str,
    name: str | None,
    recursive: bool,
    prefix: str,
    no_history: bool,
    deep: bool,
    outside_files: bool,
    storage_options: dict[str, str] | None,
    dry_run: bool,
) -> None:
    """Bring the Delta table at LOCATION into the catalog, or what was written since.

    Nothing is written to LOCATION. Cut short, the same command goes on where it
    stopped; run again, it finds that all is there. Others may go on writing: stop them
    and import once more, then everybody writes through the catalog.

    With --recursive every folder that has a _delta_log is a table, named after its
    folder, or after its path with dots where two folders are called the same. Tables
    that can't be honoured are refused by name, and the others go on.

    Ends with a verify: exit 1 if catalog and log differ, 5 if a table was refused.
    """
    from delkalakedb.migrate.trees import preview

    if name and recursive:
        raise click.UsageError("--name is for one table; with --recursive use --prefix")
    with app.connect(create=not dry_run) as catalog:
        places = _places(catalog, location, name, prefix, recursive, storage_options)
        if dry_run:
            done = [preview(catalog, p, history=not no_history) for p in places]
        else:
            options = {"history": not no_history, "outside_files": outside_files}
            done = [
                _imported(app, catalog, place, deep=deep, **options) for place in places
            ]
    _show_imported(app, done)


def _places(
    catalog: "Catalog",
    location: str,
    name: str | None,
    prefix: str,
    recursive: bool,
    options: dict[str, str] | None,
) -> list["Place"]:
    from delkalakedb.catalog.staging import find_table_at
    from delkalakedb.errors import DeltaError
    from delkalakedb.migrate.trees import Place, find_places, name_of
    from delkalakedb.storage import open_store

    if recursive:
        found = find_places(catalog, location, options, prefix=prefix)
        if not found:
            raise DeltaError(f"{location}: there is no Delta table below it")
        return found
    store = open_store(location, options)
    given = name or find_table_at(catalog, store.url) or name_of(location)
    return [Place(given, store)]


def _imported(
    app: App, catalog: "Catalog", place: "Place", **options: bool
) -> "Outcome":
    from delkalakedb.migrate.trees import import_place

    with app.progress(place.name) as advance:
        tell = _telling(advance)
        done = import_place(catalog, place, progress=tell, **options)
    if done.newer:
        app.say(
            f"{done.name}: others still write to it, version {max(done.newer)} just "
            "now; stop them, and import once more"
        )
    return done


def _telling(advance: Callable[[int, int | None], None]) -> "Tell":
    """Versions of all there are; files, while those of a checkpoint come in."""
    last = None

    def tell(progress: "ImportProgress") -> None:
        nonlocal last
        if progress.version == last:
            advance(progress.num_files, None)
        else:
            advance(progress.version + 1, progress.latest_version + 1)
        last = progress.version

    return tell


def _show_imported(app: App, done: list["Outcome"]) -> None:
    app.output.records([outcome.to_dict() for outcome in done], _IMPORTED)
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
@click.option("--name", help="The table's name; its folder's by default.")
@click.option(
    "--partition-by",
    type=_Column(),
    multiple=True,
    metavar="COLUMN[:TYPE]",
    help="A column that folders such as day=2026-01-31 stand for; outermost first.",
)
@storage_options
@pass_app
def convert(
    app: App,
    location: str,
    name: str | None,
    partition_by: tuple[tuple[str, str], ...],
    storage_options: dict[str, str] | None,
) -> None:
    """Make a table of the Parquet files at LOCATION, which stay where they are.

    Its first commit names them all, and goes to LOCATION/_delta_log.
    """
    from delkalakedb.migrate.trees import name_of
    from delkalakedb.table.converting import convert_folder

    app.connect(create=True).close()
    table = convert_folder(
        location,
        app.table_uri(name or name_of(location)),
        partition_by=dict(partition_by),
        storage_options=storage_options,
    )
    columns = ("name", "version", "num_files", "size_bytes", "location")
    app.output.record(table.to_dict(), columns)


@command(epilog="Example: deltasql sync lake/orders --watch 10s")
@click.argument("table", metavar="TABLE|LOCATION", type=TABLE)
@click.option("--name", help="What a new table is called; its folder's by default.")
@click.option("--cut-over", is_flag=True, help="Take it over: from now on we decide.")
@click.option("--watch", type=DURATION, help="Again and again, with such a pause.")
@outside_files_option
@storage_options
@yes_option
@pass_app
def sync(
    app: App,
    table: str,
    name: str | None,
    cut_over: bool,
    watch: timedelta | None,
    outside_files: bool,
    storage_options: dict[str, str] | None,
    yes: bool,
) -> None:
    """Follow a table that others still write by file.

    A LOCATION that the catalog doesn't have is brought in and followed from then on.
    Until the cut-over the table is read-only here: commits through the catalog are
    refused, and nothing is written to its log.
    """
    from delkalakedb.migrate.following import cut_over_in, sync_in

    if cut_over and watch:
        raise click.UsageError("--watch ends where --cut-over begins")
    take = partial(
        cut_over_in if cut_over else sync_in,
        storage_options=storage_options,
        outside_files=outside_files,
    )
    with app.connect(create=not cut_over) as catalog:
        name = _followed(app, catalog, table, name, storage_options, outside_files)
        if cut_over:
            hold = catalog.log(name).head().hold
            question = f"{name} is {hold}. Have its other writers stopped for good?"
            app.confirm(question, yes=yes)
        done = take(catalog, name)
        while watch is not None:
            _tell_synced(app, done)
            time.sleep(watch.total_seconds())
            done = take(catalog, name)
    app.output.record(done.to_dict(), _SYNCED)


def _followed(
    app: App,
    catalog: "Catalog",
    given: str,
    name: str | None,
    options: dict[str, str] | None,
    outside_files: bool,
) -> str:
    """The table's name; what the catalog doesn't have is brought in first."""
    from delkalakedb.catalog.staging import find_table_at
    from delkalakedb.migrate.following import follow_into
    from delkalakedb.migrate.trees import name_of
    from delkalakedb.storage import open_store

    if given in {table.name for table in catalog.tables()}:
        return given
    store = open_store(given, options)
    if found := find_table_at(catalog, store.url):
        return found
    name = name or name_of(given)
    with app.progress(name) as advance:
        tell = _telling(advance)
        follow_into(catalog, name, store, outside_files=outside_files, progress=tell)
    return name


def _tell_synced(app: App, done: "Synced") -> None:
    app.say(
        f"{done.table}: version {done.version}, {done.versions} new, "
        f"{done.versions_behind} behind"
    )


@command(epilog="Example: deltasql copy --to deltasql://postgres/db/lake --move")
@click.argument("tables", nargs=-1, type=TABLE)
@click.option("--to", "target", required=True, metavar="URI", help="The other catalog.")
@click.option("--move", is_flag=True, help="Forget the tables here in the end.")
@dry_run_option
@yes_option
@pass_app
def copy(
    app: App, tables: tuple[str, ...], target: str, move: bool, dry_run: bool, yes: bool
) -> None:
    """Hand TABLES, or all of them, over to another catalog, with all history.

    Only one catalog may write a table. So each is read-only here from the moment its
    copy begins; once it is there and was compared row by row, the other catalog has it.
    This one keeps it read-only, or forgets it with --move. Files stay where they are.
    Cut short, the same command goes on.
    """
    from delkalakedb.migrate.copying import copy_catalog

    app.connect().close()
    if not dry_run:
        what = ", ".join(tables) or "all tables"
        app.confirm(f"Hand over {what}? They become read-only here.", yes=yes)
    with app.progress("rows") as advance:
        done = copy_catalog(
            app.catalog_uri,
            target,
            tables,
            move=move,
            dry_run=dry_run,
            progress=lambda name, rows, total: advance(rows, total),
        )
    app.output.records([one.to_dict() for one in done], _COPIED)


@command(epilog="Example: deltasql detach sales --yes")
@click.argument("table", type=TABLE)
@click.option(
    "--deep", is_flag=True, help="Verify every version, and look for the data files."
)
@storage_options
@dry_run_option
@yes_option
@pass_app
def detach(
    app: App,
    table: str,
    deep: bool,
    storage_options: dict[str, str] | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Leave TABLE as a plain Delta table at the same place, and forget it.

    Publishes what waits, takes a fence away, writes a checkpoint and verifies the log.
    Where catalog and log don't agree nothing is forgotten. A table that is followed, or
    was handed over, is only forgotten. --dry-run verifies and changes nothing.
    """
    from delkalakedb.migrate.detaching import detach_from

    with app.connect() as catalog:
        location = catalog.table(table).location
        if not dry_run:
            app.confirm(f"Forget {table}? It stays at {location}.", yes=yes)
        done = detach_from(
            catalog,
            table,
            deep=deep,
            storage_options=storage_options,
            dry_run=dry_run,
        )
    app.output.record(done.to_dict(), _DETACHED)
