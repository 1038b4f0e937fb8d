"""Commands that create and change tables: `init`, `create`, `rename`, `set`..."""

from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import App, command, pass_app
from delkalakedb.cli.options import NAMES, PAIR, TABLE, dry_run_option, yes_option
from delkalakedb.model.display import count_of, format_size, listed

if TYPE_CHECKING:
    from delkalakedb import Catalog, Table

_SOURCES = ("schema", "schema_file", "like")


@command(epilog="Example: deltasql --catalog deltasql://sqlite/meta.db init")
@pass_app
def init(app: App) -> None:
    """Create the catalog if it doesn't exist.

    The files of tables without a location of their own go to the data_path of the URI,
    or for SQLite and DuckDB to a folder beside the database.
    """
    from delkalakedb.catalog.engine import find_schema_version

    with app.connect(create=True) as catalog:
        created = catalog.init()
        version = find_schema_version(catalog._backend)
        data_path = catalog.settings.data_path or catalog._backend.default_data_path
        record = {
            "catalog": str(catalog.uri),
            "schema_version": version,
            "created": created,
            "data_path": data_path,
        }
    where = f"schema version {version}; new tables go to {data_path}"
    state = "Created the catalog" if created else "There is already the catalog"
    app.output.changed(f"{state} {catalog.uri} ({where})", record)


@command(
    epilog="Example: deltasql create sales --schema 'id BIGINT NOT NULL, day DATE' "
    "--partition-by day"
)
@click.argument("name")
@click.option(
    "--schema",
    metavar="DDL",
    help="The columns as SQL, in Spark's or DuckDB's types.",
)
@click.option(
    "--schema-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="A file with the columns as SQL, or with Delta's schema as JSON.",
)
@click.option(
    "--like",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Use the columns of this Parquet, CSV, JSON lines or Arrow file.",
)
@click.option(
    "--partition-by",
    type=NAMES,
    default=(),
    help="Partition the table by these columns.",
)
@click.option("--location", help="The folder of the table's files.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    type=PAIR,
    help="A table property; may be given several times.",
)
@click.option("--comment", help="The description of the table.")
@click.option(
    "--deletion-vectors/--no-deletion-vectors",
    default=None,
    help="Whether changes may write deletion vectors; the default is a setting.",
)
@click.option("--if-not-exists", is_flag=True, help="Don't fail if the table exists.")
@pass_app
def create(
    app: App,
    /,
    name: str,
    partition_by: tuple[str, ...],
    location: str | None,
    properties: tuple[tuple[str, str], ...],
    comment: str | None,
    deletion_vectors: bool | None,
    if_not_exists: bool,
    **sources: str | None,
) -> None:
    """Create the table NAME without rows.

    Its columns are given by --schema, --schema-file or --like.
    """
    schema, configuration = _schema(sources), dict(properties)
    if deletion_vectors is not None:
        configuration["delta.enableDeletionVectors"] = str(deletion_vectors).lower()
    with app.connect() as catalog:
        there = {t.name: t for t in catalog.tables()} if if_not_exists else {}
        if name in there:
            _show(app, f"{name} exists already", there[name])
            return
        made = catalog.create_table(
            name,
            schema,
            location=location,
            partition_by=partition_by,
            configuration=configuration,
            description=comment,
        )
    _show(app, f"Created {name}", made)


def _schema(sources: dict[str, str | None]) -> str:
    given = [name for name in _SOURCES if sources[name] is not None]
    if len(given) != 1:
        raise click.UsageError("give one of --schema, --schema-file and --like")
    value = str(sources[given[0]])
    if given == ["like"]:
        from delkalakedb.query import sample_schema

        return sample_schema(value)
    if given == ["schema_file"]:
        with click.open_file(value, encoding="utf-8") as file:
            value = str(file.read())
        if value.lstrip().startswith("{"):
            return value
    from delkalakedb.errors import CodecError, SchemaMismatchError
    from delkalakedb.model.schema.ddl import parse_ddl

    try:
        return parse_ddl(value)
    except (CodecError, SchemaMismatchError) as error:
        raise click.UsageError(str(error)) from error


def _show(app: App, done: str, table: "Table") -> None:
    from delkalakedb.settings import redact

    where = redact(table.location)
    record = {**table.to_dict(), "location": where}
    columns = ("name", "version", "partition_columns", "location")
    sentence = f"{done} at version {table.version}; its files are at {where}"
    app.output.changed(sentence, record, columns)


@command(epilog="Example: deltasql rename sales sales_2025")
@click.argument("table", type=TABLE)
@click.argument("name")
@pass_app
def rename(app: App, table: str, name: str) -> None:
    """Rename TABLE to NAME.

    Files and history stay. A write under the old name fails, because no such table
    exists.
    """
    with app.connect() as catalog:
        catalog.rename_table(table, name)
        _show(app, f"Renamed {table} to {name}", catalog.table(name))


@command(epilog="Example: deltasql drop sales --dry-run")
@click.argument("table", type=TABLE)
@click.option(
    "--with-data", is_flag=True, help="Also delete all files below its location."
)
@click.option(
    "--force",
    is_flag=True,
    help="Drop the table even if versions are lost, because they can't be published.",
)
@yes_option
@dry_run_option
@pass_app
def drop(
    app: App, table: str, with_data: bool, force: bool, yes: bool, dry_run: bool
) -> None:
    """Remove TABLE from the catalog.

    Its files stay as a plain Delta table, unless --with-data deletes them.
    """
    from delkalakedb.migrate import Dropped, list_objects
    from delkalakedb.settings import redact

    with app.connect() as catalog:
        published, version, location = catalog._mirror_state(table)
        files = list_objects(catalog, table) if with_data else []
        size_bytes = sum(file.size_bytes for file in files)
        where = redact(location)
        counted = count_of(catalog.table(table).num_files, "file")
        data = f"its {counted} stay at {where}"
        if with_data:
            counted = f"{count_of(len(files), 'file')} ({format_size(size_bytes)})"
            data = f"this deletes {counted} at {where}"
        done = Dropped(
            table, location, version, version - published, len(files), size_bytes
        )
        if not dry_run:
            effect = data[0].upper() + data[1:]
            app.confirm(f"Drop {table} at version {version}? {effect}.", yes=yes)
            done = catalog.drop_table(
                table, with_data=with_data, force=force, progress=not app.quiet
            )
    verb = "Would drop" if dry_run else "Dropped"
    if with_data and not dry_run:
        counted = count_of(done.deleted_files, "file")
        data = f"{counted} ({format_size(done.deleted_bytes)}) at {where} are deleted"
    record = {**done.to_dict(), "location": where, "dry_run": dry_run}
    app.output.changed(f"{verb} {table}; {data}", record)


@command("set", epilog="Example: deltasql set sales delta.checkpointInterval=50")
@click.argument("table", type=TABLE)
@click.argument(
    "properties", nargs=-1, required=True, type=PAIR, metavar="NAME=VALUE..."
)
@pass_app
def set_(app: App, table: str, properties: tuple[tuple[str, str], ...]) -> None:
    """Set properties of TABLE.

    Names that begin with delta. are Delta's properties; all other names are free.
    """
    from delkalakedb.write import set_properties

    with app.connect() as catalog:
        set_properties(catalog, table, dict(properties))
        given = listed([f"{key}={value}" for key, value in properties])
        _show_properties(app, catalog, table, f"Set {given}")


@command(epilog="Example: deltasql unset sales delta.checkpointInterval")
@click.argument("table", type=TABLE)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="Don't fail if a property isn't set.")
@pass_app
def unset(app: App, table: str, names: tuple[str, ...], if_exists: bool) -> None:
    """Remove properties of TABLE: their defaults apply again."""
    from delkalakedb.write import unset_properties

    with app.connect() as catalog:
        unset_properties(catalog, table, names, if_exists=if_exists)
        _show_properties(app, catalog, table, f"Removed {listed(names)}")


def _show_properties(app: App, catalog: "Catalog", name: str, done: str) -> None:
    table = catalog.table(name)
    record: dict[str, Any] = {
        "name": name,
        "version": table.version,
        "properties": table.configuration,
    }
    app.output.changed(f"{done} on {name} (version {table.version})", record)
