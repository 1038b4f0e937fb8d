"""The `deltasql` command, as a shell and as a terminal see it."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import delkalakedb as dk
from delkalakedb.cli.main import cli
from delkalakedb.cli.output import Output
from delkalakedb.uri import format_uri, parse_uri

SECRET = "hunter2-Zq"
HEAVY = ("deltalake", "duckdb", "psycopg", "pyarrow", "pydantic", "rich", "sqlglot")
COMMANDS: dict[str, list[str]] = {
    "tables": ["tables"],
    "history": ["history", "sales"],
    "files": ["files", "sales"],
}


@pytest.fixture
def uri(catalog_uri: str) -> str:
    """A catalog with a table of two commits and three files."""
    table = format_uri(parse_uri(catalog_uri).with_table("sales"))
    first = pa.table({"id": [1, 2], "day": ["mon", "tue"]})
    second = pa.table({"id": [3], "day": ["wed"]})
    dk.write_deltalake(table, first, partition_by=["day"])
    dk.write_deltalake(table, second, mode="append")
    return catalog_uri


@pytest.fixture
def sqlite_uri(tmp_path: Path) -> str:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    dk.write_deltalake(f"{uri}?table=sales", pa.table({"id": [1]}))
    return uri


def run(*arguments: str, uri: str | None = None) -> Result:
    given = ["--catalog", uri] if uri else []
    return CliRunner().invoke(cli, [*given, *arguments], env={"DELTASQL_CATALOG": None})


def records(*arguments: str, uri: str) -> list[dict[str, object]]:
    result = run("--output", "json", *arguments, uri=uri)
    assert result.exit_code == 0, result.output
    found: list[dict[str, object]] = json.loads(result.stdout)
    return found


def test_tables_lists_every_table_at_its_latest_version(uri: str) -> None:
    (table,) = records("tables", uri=uri)

    assert (table["name"], table["version"], table["num_files"]) == ("sales", 1, 3)
    with dk.connect(uri) as catalog:
        assert table == catalog.table("sales").to_dict()


def test_history_lists_commits_newest_first(uri: str) -> None:
    commits = records("history", "sales", uri=uri)

    assert [c["version"] for c in commits] == [1, 0]
    assert [c["num_added_files"] for c in commits] == [1, 2]
    assert records("history", "sales", "--limit", "1", uri=uri) == commits[:1]


def test_files_are_those_of_the_version_that_may_match(uri: str) -> None:
    def days(*arguments: str) -> list[object]:
        found = records("files", "sales", *arguments, uri=uri)
        return sorted(str(file["partition_values"]) for file in found)

    assert days() == ["{'day': 'mon'}", "{'day': 'tue'}", "{'day': 'wed'}"]
    assert days("--version", "0") == ["{'day': 'mon'}", "{'day': 'tue'}"]
    assert days("--where", "day > 'mon' AND id < 3") == ["{'day': 'tue'}"]
    assert days("--where", "id = 3", "--version", "0") == []


@pytest.mark.parametrize("command", COMMANDS)
def test_text_and_csv_show_the_same_rows_as_json(uri: str, command: str) -> None:
    whole = records(*COMMANDS[command], uri=uri)
    rows = list(
        csv.DictReader(
            io.StringIO(run("--output", "csv", *COMMANDS[command], uri=uri).stdout)
        )
    )
    lines = run(*COMMANDS[command], uri=uri).stdout.splitlines()

    key = "path" if command == "files" else "version"
    assert [row[key] for row in rows] == [str(record[key]) for record in whole]
    assert len(lines) == len(whole) + 1
    assert lines[0].split() == [column.removesuffix("_ms") for column in rows[0]]
    assert set(rows[0]) <= set(whole[0])


def test_text_shows_times_in_utc_and_csv_as_stored(sqlite_uri: str) -> None:
    (table,) = records("tables", uri=sqlite_uri)
    time_ms = table["timestamp_ms"]
    assert isinstance(time_ms, int)

    assert f"{time_ms % 1000:03}Z" in run("tables", uri=sqlite_uri).stdout
    assert str(time_ms) in run("--output", "csv", "tables", uri=sqlite_uri).stdout


def test_empty_answer_is_still_well_formed(sqlite_uri: str, tmp_path: Path) -> None:
    nothing = ["files", "sales", "--where", "id = 7"]

    assert records(*nothing, uri=sqlite_uri) == []
    header = "path,size_bytes,num_records,partition_values,added_version\n"
    assert run("--output", "csv", *nothing, uri=sqlite_uri).stdout == header
    assert len(run(*nothing, uri=sqlite_uri).stdout.splitlines()) == 1


def test_catalog_comes_from_the_environment_too(sqlite_uri: str) -> None:
    result = CliRunner().invoke(cli, ["tables"], env={"DELTASQL_CATALOG": sqlite_uri})

    assert result.exit_code == 0
    assert "sales" in result.stdout


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["history", "nope"], 1, "nope: the catalog has no such table"),
        (["files", "sales", "--version", "9"], 1, "there is no version 9"),
        (["files", "sales", "--where", "nope = 1"], 2, "no column nope"),
        (["files", "sales", "--where", "id ="], 2, "can't parse"),
        (["files", "sales", "--version", "x"], 2, "not a valid integer"),
        (["history", "sales", "--limit", "0"], 2, "not in the range"),
        (["history"], 2, "Missing argument 'TABLE'"),
        (["nope"], 2, "No such command 'nope'"),
        (["--output", "xml", "tables"], 2, "'xml' is not one of"),
    ],
)
def test_failure_is_one_message_and_an_exit_code(
    sqlite_uri: str, arguments: list[str], code: int, words: str
) -> None:
    result = run(*arguments, uri=sqlite_uri)

    assert result.exit_code == code
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_missing_catalog_option_is_wrong_usage() -> None:
    result = run("tables")

    assert result.exit_code == 2
    assert "--catalog or set DELTASQL_CATALOG" in result.stderr


def test_missing_catalog_is_unreachable_and_not_created(tmp_path: Path) -> None:
    for engine in ("sqlite", "duckdb"):
        result = run("tables", uri=f"deltasql://{engine}/{tmp_path}/none.db")

        assert result.exit_code == 3, result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    ("uri", "code"),
    [
        (f"deltasql://postgres/me:{SECRET}@127.0.0.1:1/db", 3),
        (f"deltasql://postgres/me:{SECRET}@h:port/db", 2),
        (f"postgresql://me:{SECRET}@h/db", 2),
    ],
)
def test_failure_shows_no_credential(uri: str, code: int, debug: bool) -> None:
    result = run(*["--debug"] * debug, "tables", uri=uri)

    assert result.exit_code == code
    assert "***" in result.stderr
    assert SECRET not in result.output
    assert ("Traceback" in result.stderr) == debug


def test_unexpected_error_is_one_message(
    sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError(f"password={SECRET}")

    monkeypatch.setattr(Output, "records", fail)
    result = run("tables", uri=sqlite_uri)

    assert result.exit_code == 1
    assert "KeyError" in result.stderr
    assert SECRET not in result.output
    assert "Traceback" not in result.stderr


# ---- help


def commands() -> list[str]:
    assert isinstance(cli, click.Group)
    return sorted(cli.commands)


def test_every_command_is_tested() -> None:
    assert commands() == sorted(COMMANDS)


@pytest.mark.parametrize("command", ["", *commands()])
def test_help_explains_and_gives_an_example(command: str) -> None:
    result = run(*filter(None, [command]), "--help")

    assert result.exit_code == 0
    assert f"Example: deltasql {'' if command else '--catalog'}" in result.stdout
    assert command in result.stdout.split("Example:")[1]


def test_public_names_load_on_first_use() -> None:
    code = "from delkalakedb import *; import delkalakedb as d; print(len(d.__all__))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout == f"{len(dk.__all__)}\n"
    assert set(dk.__all__) <= set(dir(dk))
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        dk.nope  # noqa: B018


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, delkalakedb.cli as c\n"
        "sys.argv = ['deltasql', '--help']\n"
        "try: c.main()\n"
        f"finally: print('HEAVY', {set(HEAVY)!r} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert "Usage: deltasql" in done.stdout
    assert "HEAVY set()" in done.stdout


# ---- where it is written to


def test_piped_text_is_plain(sqlite_uri: str) -> None:
    command = shutil.which("deltasql", path=Path(sys.executable).parent)
    assert command is not None
    done = subprocess.run(
        [command, "tables"],
        env=os.environ | {"DELTASQL_CATALOG": sqlite_uri, "FORCE_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stderr == ""
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["name", "sales"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_text_on_a_terminal_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    Output("text", terminal).records([{"name": "[red]a[/red]"}], ["name"])

    assert "\x1b[1m" in terminal.getvalue()
    assert "[red]a[/red]" in terminal.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_control_characters_of_a_name_are_escaped(stream: type[io.StringIO]) -> None:
    out = stream()
    Output("text", out).records([{"name": "a\x1b[2Jb\nc"}], ["name"])

    assert "a\\x1b[2Jb\\nc" in out.getvalue()
