"""The command `deltasql`: its options and the list of its commands."""

import os

import click

from delkalakedb.cli import shell
from delkalakedb.cli.app import App, Root
from delkalakedb.cli.commands import (
    admin,
    data,
    maintain,
    migrate,
    mirror,
    show,
    tables,
)


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
    epilog="Example: deltasql --catalog deltasql://sqlite/meta.db tables",
)
@click.option(
    "--catalog",
    metavar="URI",
    envvar="DELTASQL_CATALOG",
    show_envvar=True,
    help="The catalog's deltasql:// URI; ${NAME} stands for an environment variable.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    help="The configuration file to use instead of deltalakedb.toml.",
)
@click.version_option(package_name="delkalakedb", prog_name="deltasql")
@click.pass_context
def cli(ctx: click.Context, catalog: str | None, config: str | None) -> None:
    """Migrate, inspect and operate Delta tables whose metadata is in a SQL database."""
    if config:
        os.environ["DELKALAKEDB_CONFIG"] = config
    ctx.ensure_object(App).uri = catalog


cli.add_section(
    "Tables",
    tables.init,
    show.tables,
    tables.create,
    show.describe,
    show.schema,
    show.history,
    show.files,
    tables.rename,
    tables.set_,
    tables.unset,
    tables.drop,
)
cli.add_section(
    "Data", data.head, data.query, shell.shell, data.append, data.export, data.diff
)
cli.add_section(
    "Migrate",
    migrate.import_,
    migrate.convert,
    migrate.sync,
    migrate.copy,
    migrate.detach,
)
cli.add_section(
    "Operate",
    mirror.mirror,
    maintain.verify,
    maintain.optimize,
    maintain.vacuum,
    maintain.checkpoint,
    maintain.restore,
    maintain.retention,
)
cli.add_section(
    "Catalog",
    admin.stats,
    admin.doctor,
    admin.audit,
    admin.upgrade,
    admin.backup,
    admin.restore_catalog,
    admin.completion,
)


def main() -> None:
    """Run the command line."""
    cli(prog_name="deltasql")
