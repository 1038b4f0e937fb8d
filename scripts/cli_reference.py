"""Write docs/cli.md from the help texts of `deltasql`.

Usage: python scripts/cli_reference.py
"""

from collections.abc import Iterator
from pathlib import Path

import click

from delkalakedb.cli.commands.root import cli

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = """# The command

This page lists every command and option of `deltasql`. `scripts/cli_reference.py`
writes it from the command's help texts; don't edit it.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | success, but tables differ, a check fails, or a commit isn't published yet |
| 2 | invalid usage: an unknown option, or a text that isn't understood (see below) |
| 3 | the catalog can't be reached |
| 4 | a conflict: another commit won, or another process holds a lock |
| 5 | failure: any other error |
| 130 | interrupted |

Exit code 2 is for SQL that can't be parsed or names an unknown column, and for schemas,
conditions, times, URIs and settings that are wrong. Exit code 5 is for what the catalog
refuses: an unknown table or version, a name or a property that can't be used, or data
that doesn't fit the table.

"""


def reference() -> str:
    """Return the text of the page."""
    return HEAD + "\n".join(_parts())


def _parts() -> Iterator[str]:
    yield _block(cli, "deltasql")
    for title, names in cli.sections.items():
        yield f"## {title}\n"
        for name in names:
            yield from _command(cli.commands[name], f"deltasql {name}")


def _command(command: click.Command, path: str) -> Iterator[str]:
    yield f"### {path.removeprefix('deltasql ')}\n"
    yield _block(command, path)
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from _command(one, f"{path} {name}")


def _block(command: click.Command, path: str) -> str:
    settings = cli.context_settings | {"terminal_width": 88}
    context = click.Context(command, info_name=path, **settings)
    return f"```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), "utf-8")
