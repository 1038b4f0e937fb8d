"""The `deltasql` command: its options, and where each command is."""

import os

import click

from delkalakedb.cli import (
    backup,
    care,
    completion,
    data,
    expiring,
    looking,
    migration,
    mirror,
    operate,
    shell,
    tables,
)
from delkalakedb.cli.app import App, Root

__all__ = ["cli", "main"]


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
    help="The catalog, a deltasql:// URI; ${NAME} in it stands for a variable.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    help="The configuration file, in place of deltalakedb.toml.",
)
@click.version_option(package_name="delkalakedb", prog_name="deltasql")
@click.pass_context
def cli(ctx: click.Context, catalog: str | None, config: str | None) -> None:
    """Migrate, inspect and operate Delta tables whose truth lives in SQL."""
    if config:
        os.environ["DELKALAKEDB_CONFIG"] = config
    ctx.ensure_object(App).uri = catalog


cli.add_section(
    "Tables",
    tables.init,
    looking.tables,
    tables.create,
    looking.describe,
    looking.schema,
    looking.history,
    looking.files,
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
    migration.import_,
    migration.convert,
    migration.sync,
    migration.copy,
    migration.detach,
)
cli.add_section(
    "Operate",
    mirror.mirror,
    operate.verify,
    operate.optimize,
    expiring.vacuum,
    operate.checkpoint,
    operate.restore,
    expiring.retention,
)
cli.add_section(
    "Catalog",
    care.stats,
    care.doctor,
    care.audit,
    care.upgrade,
    backup.backup,
    backup.restore_catalog,
    completion.completion,
)


def main() -> None:
    """Run the command line."""
    cli(prog_name="deltasql")
