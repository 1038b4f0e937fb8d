"""The `deltasql` command, as a shell and as a terminal see it."""

import csv
import io
import json
import os
import re
import shlex
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
        stored = catalog.table("sales").to_dict()
    assert table.pop("schema") == json.loads(stored.pop("schema_string"))
    times = [table.pop(name) for name in ("timestamp", "created_time")]
    assert times[0].endswith("Z")
    assert table == stored


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
    assert set(rows[0]) <= set(whole[0])


def test_text_shows_times_to_the_minute_and_csv_as_stored(on_sqlite: Cli) -> None:
    (table,) = on_sqlite.json("tables")
    time_ms = table["timestamp_ms"]

    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    assert f"  {moment:%Y-%m-%d %H:%M}  " in on_sqlite("tables").stdout
    assert table["timestamp"] == f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"
    assert str(time_ms) in on_sqlite("tables", "--output", "csv").stdout


def test_empty_answer_is_still_well_formed(on_sqlite: Cli) -> None:
    nothing = ["files", "sales", "--where", "id = 7"]

    assert on_sqlite.json(*nothing) == []
    header = "path,size_bytes,num_records,partition_values,added_version\n"
    assert on_sqlite(*nothing, "--output", "csv").stdout == header
    assert on_sqlite(*nothing).stdout == "No file matches.\n"


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
MAKING = {"init", "import", "convert", "sync", "restore-catalog", "completion", "help"}


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


def test_summaries_of_all_commands_fit_their_lines() -> None:
    for words in (["--help"], ["help"], ["help", "mirror"]):
        result = CliRunner(env={"COLUMNS": "80"}).invoke(cli, words, terminal_width=80)
        assert result.exit_code == 0
        assert "..." not in result.stdout.replace("[ARGS]...", "")
        assert max(map(len, result.stdout.splitlines())) <= 80


def test_help_of_a_command_is_that_of_its_option() -> None:
    def lines(*words: str) -> list[str]:
        return Cli()(*words).stdout.splitlines()[1:]

    assert lines("help", "history") == lines("history", "--help")
    assert lines("help", "mirror", "status") == lines("mirror", "status", "--help")
    assert (
        "'statsu'; did you mean status?"
        in Cli()("help", "mirror", "statsu", code=2).stderr
    )


# ---- names that are nearly right


@pytest.mark.parametrize(
    ("words", "code", "near"),
    [
        (["histroy", "sales"], 2, "'histroy'; did you mean history?"),
        (["mirror", "stauts"], 2, "'stauts'; did you mean status?"),
        (["files", "SALE"], 5, "no such table; did you mean sales?"),
        (["files", "sales", "--where", "dya = 'mon'"], 2, "dya; did you mean day?"),
        (["verify", "slaes"], 5, "no such table; did you mean sales?"),
        (["head", "sales", "--columns", "dya"], 2, "no column dya; did you mean day?"),
        (
            ["set", "sales", "delta.appendonly=true"],
            5,
            "delta.appendonly; did you mean delta.appendOnly?",
        ),
    ],
)
def test_near_name_is_suggested(
    on_sqlite: Cli, words: list[str], code: int, near: str
) -> None:
    assert near in on_sqlite(*words, code=code).stderr


# ---- options before and after the command, and times


def test_shared_options_stand_before_or_after_the_command(
    on_sqlite: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_CONFIG", "")
    uri, config = str(on_sqlite.uri), tmp_path / "other.toml"
    config.write_text(f'catalog = "{uri}"')
    for where in (["--catalog", uri], ["--config", str(config)]):
        for kind in (["-o", "json"], ["--output", "json", "-q"]):
            monkeypatch.setenv("DELKALAKEDB_CONFIG", "")
            before = CliRunner().invoke(cli, [*where, *kind, "mirror", "status"])
            monkeypatch.setenv("DELKALAKEDB_CONFIG", "")
            after = CliRunner().invoke(cli, ["mirror", "status", *where, *kind])
            assert (before.exit_code, after.exit_code) == (0, 0), after.output
            assert json.loads(before.stdout)[0]["table"] == "sales"
            assert json.loads(after.stdout)[0]["state"] == "published"


@pytest.mark.parametrize("command", ["history sales", "audit", "audit --events"])
@pytest.mark.parametrize("since", ["1d", "90m", "yesterday", "today", "2020-01-31"])
def test_since_takes_times_and_durations(
    on_sqlite: Cli, command: str, since: str
) -> None:
    every = on_sqlite.json(*command.split())

    assert every
    assert on_sqlite.json(*command.split(), "--since", since) == every
    assert on_sqlite.json(*command.split(), "--until", "1d") == []
    assert on_sqlite.json(*command.split(), "-n", "1") == every[:1]


def test_json_has_times_as_text_and_schemas_as_json(on_sqlite: Cli) -> None:
    (commit, *_) = on_sqlite.json("history", "sales")
    stated = datetime.fromisoformat(commit["timestamp"])

    assert stated.timestamp() * 1000 == pytest.approx(commit["timestamp_ms"])
    (event, *_) = on_sqlite.json("audit", "--events")
    assert event["occurred_at"].endswith("Z")


# ---- sentences


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "create q2 --schema 'id INT'",
            r"Created q2 at version 0; its files are at \S+",
        ),
        ("rename sales sold", r"Renamed sales to sold at version 1; its files are at "),
        ("set sales owner=me", r"Set owner=me on sales \(version 2\)"),
        ("unset sales owner --if-exists", r"Removed owner on sales \(version 1\)"),
        ("drop sales --dry-run", r"Would drop sales; its 3 files stay at \S+"),
        ("drop sales --yes", r"Dropped sales; its 3 files stay at \S+"),
        (
            "drop sales --with-data --yes",
            r"Dropped sales; \d+ files \(.* KB\) at \S+ are deleted",
        ),
        (
            "restore sales --version 0 --yes",
            "Restored sales to version 0 as version 2: \N{MINUS SIGN}1 file",
        ),
        ("optimize sales", r"sales has nothing to optimize \(version 1\)"),
        ("vacuum sales", "sales has no file to delete"),
        ("retention --all", "sales has no expired version"),
        ("checkpoint sales", "Wrote a checkpoint of sales at version 1"),
        ("mirror fence sales --yes", "Fenced sales at version 2"),
        ("mirror fence sales --dry-run", "Would fence sales after version 1"),
        ("mirror republish sales", "The log of sales lacks nothing"),
        ("mirror adopt sales", "There is no foreign commit."),
        ("detach sales --yes", r"Detached sales at version 1; its files stay at \S+"),
        ("upgrade", r"The catalog needs no upgrade: it has schema version \d+"),
        ("init", "There is already the catalog .*"),
        ("diff sales 1 1", r"Versions 1 and 1 of sales don't differ\."),
        ("history sales --operation NOPE", r"No commit matches\."),
        ("audit --operation NOPE", r"No commit matches\."),
        ("audit --events --operation NOPE", r"No event matches\."),
    ],
)
def test_change_says_one_sentence(on_sqlite: Cli, words: str, sentence: str) -> None:
    shown = on_sqlite(*shlex.split(words)).stdout

    assert re.match(sentence, shown), shown
    assert len(shown.splitlines()) == 1


def test_catalog_without_tables_says_so(tmp_path: Path) -> None:
    command = Cli(f"deltasql://sqlite/{tmp_path}/meta.db")
    command("init")

    for words in ("tables", "stats", "verify", "mirror status"):
        assert command(*words.split()).stdout == "There are no tables.\n"
    assert command.json("tables") == []
