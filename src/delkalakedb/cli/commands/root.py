"""The command `deltasql`: its options and the list of its commands."""

import click

from delkalakedb.cli.app import App, Root, command, no_such_command


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
    {
        "init": "commands.tables",
        "tables": "commands.show",
        "create": "commands.tables",
        "describe": "commands.show",
        "schema": "commands.show",
        "history": "commands.show",
        "files": "commands.show",
        "rename": "commands.tables",
        "set_": "commands.tables",
        "unset": "commands.tables",
        "drop": "commands.tables",
    },
)
cli.add_section(
    "Data",
    {
        "head": "commands.data",
        "query": "commands.data",
        "shell": "shell",
        "append": "commands.data",
        "export": "commands.data",
        "diff": "commands.data",
    },
)
cli.add_section(
    "Migrate",
    {
        "import_": "commands.migrate",
        "convert": "commands.migrate",
        "sync": "commands.migrate",
        "copy": "commands.migrate",
        "detach": "commands.migrate",
    },
)
cli.add_section(
    "Operate",
    {
        "mirror": "commands.mirror",
        "verify": "commands.maintain",
        "optimize": "commands.maintain",
        "vacuum": "commands.maintain",
        "checkpoint": "commands.maintain",
        "restore": "commands.maintain",
        "retention": "commands.maintain",
    },
)
cli.add_section(
    "Catalog",
    {
        "stats": "commands.admin",
        "doctor": "commands.admin",
        "audit": "commands.admin",
        "upgrade": "commands.admin",
        "backup": "commands.admin",
        "restore_catalog": "commands.admin",
        "completion": "commands.admin",
        "help_": "commands.root",
    },
)


def main() -> None:
    """Run the command line."""
    cli(prog_name="deltasql")
