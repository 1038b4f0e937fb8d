"""The command as the tests call it."""

import json
import select
from typing import Any

import pyarrow as pa
from click.testing import CliRunner, Result

import delkalakedb as dk
from delkalakedb.cli.commands.root import cli
from delkalakedb.settings.uri import format_uri, parse_uri


def can_read(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read by then; of any number of open files."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


class Cli:
    """The command on one catalog, in this process."""

    def __init__(self, uri: str | None = None) -> None:
        self.uri = uri

    def __call__(self, *words: str, code: int = 0, stdin: str | None = None) -> Result:
        """Run it; `code` is the exit code that is expected."""
        result = self.invoke(*words, stdin=stdin)
        assert result.exit_code == code, (words, result.output, result.exception)
        return result

    def invoke(self, *words: str, stdin: str | None = None) -> Result:
        """Run it, whatever its exit code."""
        given = ["--catalog", self.uri] if self.uri else []
        env = {"DELTASQL_CATALOG": None}
        return CliRunner().invoke(cli, [*given, *words], env=env, input=stdin)

    def json(self, *words: str, code: int = 0) -> Any:
        """What it answers as JSON."""
        return json.loads(self("--output", "json", *words, code=code).stdout)

    def table(self, name: str = "sales") -> str:
        """The URI of a table in the catalog."""
        assert self.uri is not None
        return format_uri(parse_uri(self.uri).with_table(name))


def make_sales(uri: str) -> None:
    """`sales`: two commits, three files, partitioned by `day`."""
    first = pa.table({"id": [1, 2], "day": ["mon", "tue"]})
    second = pa.table({"id": [3], "day": ["wed"]})
    dk.write_deltalake(uri, first, partition_by=["day"])
    dk.write_deltalake(uri, second, mode="append")
