"""The `deltasql` command, as a shell and as a terminal see it."""

import csv
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from cli_reference import PAGE, reference
from click.testing import CliRunner

import delkalakedb as dk
from delkalakedb.cli.commands.root import cli
from delkalakedb.cli.output import Output
from delkalakedb.settings.uri import parse_uri
from tests.support.cli import Cli
from tests.support.invocations import INVOCATIONS, arguments

SECRET = "hunter2-Zq"
HEAVY = ("deltalake", "duckdb", "psycopg", "pyarrow", "pydantic", "rich", "sqlglot")


def test_tables_lists_every_table_at_its_latest_version(deltasql: Cli) -> None:
    (table,) = deltasql.json("tables")

    assert (table["name"], table["version"], table["num_files"]) == ("sales", 1, 3)
    assert deltasql.uri is not None
    with dk.connect(deltasql.uri) as catalog:
        assert table == catalog.table("sales").to_dict()


def test_history_lists_commits_newest_first(deltasql: Cli) -> None:
    commits = deltasql.json("history", "sales")

    assert [c["version"] for c in commits] == [1, 0]
    assert [c["num_added_files"] for c in commits] == [1, 2]
    assert deltasql.json("history", "sales", "--limit", "1") == commits[:1]


def test_history_is_filtered_by_time_operation_and_actor(deltasql: Cli) -> None:
    first = deltasql.json("history", "sales")[1]
    moment = datetime.fromtimestamp(first["timestamp_ms"] / 1000, UTC).isoformat()

    def versions(*filters: str) -> list[int]:
        return [c["version"] for c in deltasql.json("history", "sales", *filters)]

    assert versions("--until", moment) == [0]
    assert versions("--since", moment) == [1, 0]
    assert versions("--operation", "MERGE") == []
    assert versions("--actor", first["os_user"]) == [1, 0]


def test_files_are_those_of_the_version_that_may_match(deltasql: Cli) -> None:
    def days(*arguments: str) -> list[object]:
        found = deltasql.json("files", "sales", *arguments)
        return sorted(str(file["partition_values"]) for file in found)

    assert days() == ["{'day': 'mon'}", "{'day': 'tue'}", "{'day': 'wed'}"]
    assert days("--version", "0") == ["{'day': 'mon'}", "{'day': 'tue'}"]
    assert days("--where", "day > 'mon' AND id < 3") == ["{'day': 'tue'}"]
    assert days("--where", "id = 3", "--version", "0") == []


def test_files_says_how_many_were_pruned(on_sqlite: Cli) -> None:
    words = ["files", "sales", "--where", "id = 3"]

    read = on_sqlite(*words).stderr
    assert read.startswith("1 of 3 files would be read: ")
    assert on_sqlite("--quiet", *words).stderr == ""


@pytest.mark.parametrize("command", INVOCATIONS)
def test_every_command_answers_in_text_json_and_csv(
    deltasql: Cli, command: str, tmp_path: Path
) -> None:
    if command == "restore-catalog":
        deltasql("backup", f"{tmp_path}/backup")
    for kind in ("text", "csv"):
        folder = tmp_path / kind
        folder.mkdir()
        deltasql(*arguments(command, folder), "--output", kind)
    (tmp_path / "json").mkdir()
    deltasql.json(*arguments(command, tmp_path / "json"))


@pytest.mark.parametrize("command", ["tables", "history", "files"])
def test_text_and_csv_show_the_same_rows_as_json(on_sqlite: Cli, command: str) -> None:
    words = INVOCATIONS[command]
    whole = on_sqlite.json(*words)
    rows = list(csv.DictReader(io.StringIO(on_sqlite(*words, "-o", "csv").stdout)))
    lines = on_sqlite(*words).stdout.splitlines()

    key = "path" if command == "files" else "version"
    assert [row[key] for row in rows] == [str(record[key]) for record in whole]
    assert len(lines) == len(whole) + 1
    assert lines[0].split() == [column.removesuffix("_ms") for column in rows[0]]
    assert set(rows[0]) <= set(whole[0])


def test_text_shows_times_in_utc_and_csv_as_stored(on_sqlite: Cli) -> None:
    (table,) = on_sqlite.json("tables")
    time_ms = table["timestamp_ms"]

    assert f"{time_ms % 1000:03}Z" in on_sqlite("tables").stdout
    assert str(time_ms) in on_sqlite("tables", "--output", "csv").stdout


def test_empty_answer_is_still_well_formed(on_sqlite: Cli) -> None:
    nothing = ["files", "sales", "--where", "id = 7"]

    assert on_sqlite.json(*nothing) == []
    header = "path,size_bytes,num_records,partition_values,added_version\n"
    assert on_sqlite(*nothing, "--output", "csv").stdout == header
    assert len(on_sqlite(*nothing).stdout.splitlines()) == 1


@pytest.mark.parametrize("where", ["environment", "beside", "named"])
def test_catalog_comes_from_other_places_too(
    on_sqlite: Cli, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DELKALAKEDB_CONFIG", "")
    words = ["tables"]
    if where == "environment":
        monkeypatch.setenv("DELTASQL_CATALOG", str(on_sqlite.uri))
    else:
        name = "deltalakedb.toml" if where == "beside" else "other.toml"
        Path(name).write_text(f'catalog = "{on_sqlite.uri}"')
        words = words if where == "beside" else ["--config", name, *words]

    assert "sales" in CliRunner().invoke(cli, words).stdout


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["history", "nope"], 5, "nope: the catalog has no such table"),
        (["files", "sales", "--version", "9"], 5, "there is no version 9"),
        (["files", "sales", "--where", "nope = 1"], 2, "no column nope"),
        (["files", "sales", "--where", "id ="], 2, "can't parse"),
        (["files", "sales", "--version", "x"], 2, "not a valid integer"),
        (["history", "sales", "--limit", "0"], 2, "not in the range"),
        (["history", "sales", "--since", "soon"], 2, "isn't a time like"),
        (["history"], 2, "Missing argument 'TABLE'"),
        (["nope"], 2, "No such command 'nope'"),
        (["--output", "xml", "tables"], 2, "'xml' is not one of"),
    ],
)
def test_failure_is_one_message_and_an_exit_code(
    on_sqlite: Cli, arguments: list[str], code: int, words: str
) -> None:
    result = on_sqlite(*arguments, code=code)

    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_missing_catalog_option_is_wrong_usage() -> None:
    assert "give --catalog, set DELTASQL_CATALOG" in Cli()("tables", code=2).stderr


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_every_command_says_that_there_is_no_catalog_and_makes_none(
    engine: str, tmp_path: Path
) -> None:
    uri = f"deltasql://{engine}/{tmp_path}/none.db"
    for command in sorted(INVOCATIONS.keys() - MAKING):
        folder = tmp_path / "folder"
        folder.mkdir()
        words = arguments(command, folder)
        result = Cli(uri)(*words, code=3)
        assert f"there is no catalog at {parse_uri(uri)}" in result.output, command
        assert "deltasql init" in result.output
        assert "sql.schema" not in result.output, command
        shutil.rmtree(folder)
        assert list(tmp_path.iterdir()) == [], command


# Commands that make a catalog where there is none, or need none.
MAKING = {"init", "import", "convert", "sync", "restore-catalog", "completion"}


def test_missing_catalog_is_unreachable_and_not_created(tmp_path: Path) -> None:
    for engine in ("sqlite", "duckdb"):
        uri = f"deltasql://{engine}/{tmp_path}/none.db"
        told = Cli(uri)("tables", code=3).stderr
        assert f"there is no catalog at {parse_uri(uri)}" in told
        assert "deltasql init" in told
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
    result = Cli(uri)(*["--debug"] * debug, "tables", code=code)

    assert "***" in result.stderr
    assert SECRET not in result.output
    assert ("Traceback" in result.stderr) == debug


def test_unexpected_error_is_one_message(
    on_sqlite: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError(f"password={SECRET}")

    monkeypatch.setattr(Output, "records", fail)
    result = on_sqlite("tables", code=5)

    assert "KeyError" in result.stderr
    assert SECRET not in result.output
    assert "Traceback" not in result.stderr


# ---- help


def command_names(group: click.Group, above: str = "") -> Iterator[str]:
    """Every command there is, those of groups as `group command`."""
    for name, one in group.commands.items():
        if isinstance(one, click.Group):
            yield from command_names(one, f"{above}{name} ")
        else:
            yield f"{above}{name}"


COMMANDS = sorted(command_names(cli))


def test_every_command_is_tested() -> None:
    assert sorted(INVOCATIONS) == COMMANDS


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_explains_and_gives_an_example(command: str) -> None:
    shown = Cli()(*command.split(), "--help").stdout

    assert f"Example: deltasql {'' if command else '--catalog'}" in shown
    assert command in shown.split("Example:")[1]
    assert "--output" in shown


def test_reference_is_what_the_help_says() -> None:
    assert PAGE.read_text("utf-8") == reference(), "run scripts/cli_reference.py"


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


def test_piped_text_is_plain(on_sqlite: Cli) -> None:
    command = shutil.which("deltasql", path=Path(sys.executable).parent)
    assert command is not None
    done = subprocess.run(
        [command, "tables"],
        env=os.environ | {"DELTASQL_CATALOG": str(on_sqlite.uri), "FORCE_COLOR": "1"},
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
