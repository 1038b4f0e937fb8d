"""The command `deltasql`: its options and the list of its commands."""

import click

from delkalakedb.cli import shell
from delkalakedb.cli.app import App, Root, command, no_such_command
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
@click.version_option(package_name="delkalakedb", prog_name="deltasql")
def cli() -> None:
    """Migrate, inspect and operate Delta tables whose metadata is in a SQL database."""


@command("help", epilog="Example: deltasql help history")
@click.argument("names", nargs=-1, metavar="[COMMAND]")
@click.pass_context
def help_(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of COMMAND, or the list of all commands."""
    above = ctx.find_root()
    found = above.command
    for name in names:
        group = found if isinstance(found, click.Group) else click.Group()
        one = group.get_command(above, name)
        if one is None:
            raise no_such_command(name, group.commands, above)
        found, above = one, click.Context(one, above, name)
    lines = found.get_help(above).splitlines()
    ctx.ensure_object(App).output.lines(lines, "line")


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
    help_,
)


def main() -> None:
    """Run the command line."""
    cli(prog_name="deltasql")
