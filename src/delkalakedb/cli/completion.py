"""The command that prints what a shell needs to complete the others."""

import click

from delkalakedb.cli.app import App, command

__all__ = ["completion"]


@command(epilog="Example: deltasql completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands, options and tables.

    Tables are those of $DELTASQL_CATALOG, of --catalog, or of the configuration. For
    fish, write it to ~/.config/fish/completions/deltasql.fish.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "deltasql", "_DELTASQL_COMPLETE")
    lines = script.source().strip().splitlines()
    ctx.ensure_object(App).output.lines(lines, "line")
