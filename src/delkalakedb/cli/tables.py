"""Commands that make and change tables: `init`, `create`, `rename`, `set`, `drop`..."""

from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import App, command, pass_app
from delkalakedb.cli.options import NAMES, PAIR, TABLE, dry_run_option, yes_option

if TYPE_CHECKING:
    from delkalakedb import Catalog, Table

__all__ = ["create", "drop", "init", "rename", "set_", "unset"]

_SOURCES = ("schema", "schema_file", "like")


@command(epilog="Example: deltasql --catalog deltasql://sqlite/meta.db init")
@pass_app
def init(app: App) -> None:
    """Create the catalog, or see that it is there.

    Tables without a location of their own go to the URI's ?data_path=, or for SQLite
    and DuckDB to a folder beside the database.
    """
    from delkalakedb.catalog.migrations import find_schema_version

    with app.connect(create=True) as catalog:
        created = catalog.init()
        version = find_schema_version(catalog.backend)
        data_path = catalog.settings.data_path or catalog.backend.default_data_path
        record = {
            "catalog": str(catalog.uri),
            "schema_version": version,
            "created": created,
            "data_path": data_path,
        }
    app.output.record(record)


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
    help="A Parquet, CSV, JSON lines or Arrow file that has these columns.",
)
@click.option(
    "--partition-by",
    type=NAMES,
    default=(),
    help="Partition the table by these columns.",
)
@click.option("--location", help="The folder of its files.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    type=PAIR,
    help="A table property; may be given several times.",
)
@click.option("--comment", help="What the table is.")
@click.option("--if-not-exists", is_flag=True, help="Fine if there is one already.")
@pass_app
def create(
    app: App,
    /,
    name: str,
    partition_by: tuple[str, ...],
    location: str | None,
    properties: tuple[tuple[str, str], ...],
    comment: str | None,
    if_not_exists: bool,
    **sources: str | None,
) -> None:
    """Create the table NAME without rows.

    Its columns come from --schema, --schema-file or --like.
    """
    schema = _schema(sources)
    with app.connect() as catalog:
        if if_not_exists and (there := _find(catalog, name)):
            app.say(f"{name} is there already")
            _show(app, there)
            return
        made = catalog.create_table(
            name,
            schema,
            location=location,
            partition_by=partition_by,
            configuration=dict(properties),
            description=comment,
        )
    _show(app, made)


def _schema(sources: dict[str, str | None]) -> str:
    given = [name for name in _SOURCES if sources[name] is not None]
    if len(given) != 1:
        raise click.UsageError("give one of --schema, --schema-file and --like")
    value = str(sources[given[0]])
    if given == ["like"]:
        from delkalakedb.table.samples import sample_schema

        return sample_schema(value)
    if given == ["schema_file"]:
        with click.open_file(value, encoding="utf-8") as file:
            value = str(file.read())
        if value.lstrip().startswith("{"):
            return value
    return _parsed(value)


def _parsed(ddl: str) -> str:
    from delkalakedb.errors import CodecError, SchemaMismatchError
    from delkalakedb.model.ddl import parse_ddl

    try:
        return parse_ddl(ddl)
    except (CodecError, SchemaMismatchError) as error:
        raise click.UsageError(str(error)) from error


def _find(catalog: "Catalog", name: str) -> "Table | None":
    return next((table for table in catalog.tables() if table.name == name), None)


def _show(app: App, table: "Table") -> None:
    from delkalakedb.redaction import redact

    record = {**table.to_dict(), "location": redact(table.location)}
    app.output.record(record, ("name", "version", "partition_columns", "location"))


@command(epilog="Example: deltasql rename sales sales_2025")
@click.argument("table", type=TABLE)
@click.argument("name")
@pass_app
def rename(app: App, table: str, name: str) -> None:
    """Give TABLE another NAME.

    Its files and its history stay where they are. Whoever still writes under the old
    name is told that there is no such table.
    """
    with app.connect() as catalog:
        catalog.rename_table(table, name)
        _show(app, catalog.table(name))


@command(epilog="Example: deltasql drop sales --dry-run")
@click.argument("table", type=TABLE)
@click.option(
    "--with-data", is_flag=True, help="Delete all that lies below its location, too."
)
@click.option(
    "--force",
    is_flag=True,
    help="Even if versions of it can't be published; they are lost.",
)
@yes_option
@dry_run_option
@pass_app
def drop(
    app: App, table: str, with_data: bool, force: bool, yes: bool, dry_run: bool
) -> None:
    """Have the catalog forget TABLE.

    Its files stay and are a plain Delta table from then on, unless --with-data is
    given: then they are deleted.
    """
    from delkalakedb.migrate.dropping import Dropped, list_objects
    from delkalakedb.redaction import redact

    with app.connect() as catalog:
        published, version, location = catalog.mirror_state(table)
        files = list_objects(catalog, table) if with_data else []
        size_bytes = sum(file.size_bytes for file in files)
        where = redact(location)
        data = f"its files stay at {where}"
        if with_data:
            data = f"{len(files)} files ({size_bytes} bytes) at {where} are deleted"
        done = Dropped(
            table, location, version, version - published, len(files), size_bytes
        )
        if not dry_run:
            app.confirm(f"Drop {table} at version {version}? {data}.", yes=yes)
            with app.progress(f"drop {table}") as advance:
                done = catalog.drop_table(
                    table, with_data=with_data, force=force, progress=advance
                )
    if not with_data:
        app.say(data)
    app.output.record({**done.to_dict(), "location": where, "dry_run": dry_run})


@command("set", epilog="Example: deltasql set sales delta.checkpointInterval=50")
@click.argument("table", type=TABLE)
@click.argument(
    "properties", nargs=-1, required=True, type=PAIR, metavar="NAME=VALUE..."
)
@pass_app
def set_(app: App, table: str, properties: tuple[tuple[str, str], ...]) -> None:
    """Set properties of TABLE.

    Those whose names begin with delta. are Delta's; others are one's own.
    """
    from delkalakedb.table.properties import set_properties

    with app.connect() as catalog:
        set_properties(catalog, table, dict(properties))
        _show_properties(app, catalog, table)


@command(epilog="Example: deltasql unset sales delta.checkpointInterval")
@click.argument("table", type=TABLE)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="Fine if some aren't set.")
@pass_app
def unset(app: App, table: str, names: tuple[str, ...], if_exists: bool) -> None:
    """Take properties from TABLE, so that their defaults apply again."""
    from delkalakedb.table.properties import unset_properties

    with app.connect() as catalog:
        unset_properties(catalog, table, names, if_exists=if_exists)
        _show_properties(app, catalog, table)


def _show_properties(app: App, catalog: "Catalog", name: str) -> None:
    table = catalog.table(name)
    record: dict[str, Any] = {
        "name": name,
        "version": table.version,
        "properties": table.configuration,
    }
    app.output.record(record)
