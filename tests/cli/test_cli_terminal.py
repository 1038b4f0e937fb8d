"""The command on a real terminal: tables, bars, questions, Ctrl-C, and broken pipes."""

import errno
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import delkalakedb as dk
from delkalakedb.model.display import text_width
from tests.support.cli import Cli, can_read, make_sales
from tests.support.invocations import INVOCATIONS

COMMAND = shutil.which("deltasql", path=Path(sys.executable).parent) or ""
PATIENCE_S = 60
BOLD = "\x1b[1m"
# A command that takes long, and counts what it has done.
LONG = """
import time
from delkalakedb.cli.app import command, pass_app
from delkalakedb.cli.commands.root import cli, main

@command()
@pass_app
def long(app):
    with app.connect() as catalog, app.progress("long work") as advance:
        catalog.rename_table("sales", "moved")
        for done in range(1000):
            advance(done, 1000)
            time.sleep(0.05)

cli.add_command(long)
main()
"""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A catalog that the tests only look at."""
    command = Cli(f"deltasql://sqlite/{tmp_path_factory.mktemp('lake')}/meta.db")
    make_sales(command.table())
    return command


class Session:
    """A command whose standard streams are a terminal."""

    def __init__(self, uri: str | None, *words: str, **env: str) -> None:
        self.seen = ""
        self._terminal, theirs = pty.openpty()
        given = {"DELTASQL_CATALOG": uri or "", "TERM": "xterm", "COLUMNS": "160"}
        kept = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        self._process = subprocess.Popen(
            # The terminal from which it is interrupted.
            ["setsid", "--ctty", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**kept, **given, **env},
        )
        os.close(theirs)

    def read_until(self, text: str) -> None:
        """Wait for something to be shown."""
        while text not in self.seen:
            assert self._read(), self.seen

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self._terminal, text.encode())

    def interrupt(self) -> int:
        """Press Ctrl-C until it is heeded; the exit code.

        Python misses one that comes right before it starts to wait for a line.
        """
        self.type("\x03")
        for _ in range(PATIENCE_S):
            if "Interrupted" in self.seen:
                break
            if can_read(self._terminal, 2):
                assert self._read(), self.seen
            else:
                self.type("\x03")
        return self.end()

    def end(self) -> int:
        """Wait for the end; the exit code."""
        while self._read():
            pass
        code = self._process.wait(PATIENCE_S)
        os.close(self._terminal)
        return code

    def _read(self) -> bool:
        assert can_read(self._terminal, PATIENCE_S), self.seen
        try:
            data = os.read(self._terminal, 65536)
        except OSError as error:
            # The other end is closed.
            if error.errno != errno.EIO:
                raise
            return False
        self.seen += data.decode()
        return bool(data)


def run(catalog: Cli, *words: str, **env: str) -> tuple[int, str]:
    session = Session(catalog.uri, COMMAND, *words, **env)
    return session.end(), session.seen


def test_tables_are_drawn_in_bold_unless_colours_are_off(catalog: Cli) -> None:
    code, shown = run(catalog, "tables")
    plain_code, plain = run(catalog, "tables", NO_COLOR="1")

    assert (code, plain_code) == (0, 0)
    assert BOLD in shown
    assert "sales" in shown
    assert "\x1b[3" not in plain
    assert [line.split()[0] for line in shown.replace(BOLD, "").splitlines()] == [
        "name",
        "sales",
    ]


# Each command of a list, twice: cut for the terminal, and in full.
EACH = """
import json, sys
from pathlib import Path
from delkalakedb.cli.commands.root import cli
from tests.support.invocations import arguments

folder = Path(sys.argv[1])
for number, name in enumerate(json.loads(sys.argv[2])):
    for more in ([], ["--wide"]):
        place = folder / f"{number}{len(more)}"
        place.mkdir()
        print("COMMAND", name, *more, flush=True)
        words = arguments(name, place)
        if name == "rename":
            words[1:] = ["renamed" if more else "other", f"renamed{'!' * len(more)}"]
        try:
            cli.main([*words, "--quiet", *more], standalone_mode=False)
        except SystemExit:
            pass
"""
# What they write is made for other programs, or as wide as their users want it.
UNCUT = {"completion", "help"}
LONG_TEXT = "a text of several words with s3://bucket/" + "long/" * 20 + " in it"


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_command_breaks_a_word_on_a_terminal(
    width: int, own: Cli, tmp_path: Path
) -> None:
    own("create", "other", "--schema", "id BIGINT")
    name = "a_table_with_a_name_of_more_than_sixty_characters_as_some_have_it"
    own("create", name, "--schema", "id BIGINT", "--comment", LONG_TEXT)
    commands = [name for name in INVOCATIONS if name not in UNCUT]
    (tmp_path / "runs").mkdir()
    own("backup", f"{tmp_path}/runs/backup")
    root = str(Path(__file__).parents[2])
    words = [sys.executable, "-c", EACH, f"{tmp_path}/runs", json.dumps(commands)]
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    session = Session(own.uri, *words, COLUMNS=str(width), PYTHONPATH=path)

    code = session.end()

    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", session.seen).replace("\r", "")
    assert code == 0, plain
    parts = re.split(r"^COMMAND (.*)\n", plain, flags=re.M)[1:]
    shown = dict(zip(parts[::2], parts[1::2], strict=True))
    assert len(shown) == 2 * len(commands)
    for command in commands:
        cut, whole = shown[command], shown[f"{command} --wide"]
        assert "Error" not in cut, cut
        for line in cut.splitlines():
            assert text_width(line) <= width or " " not in line.strip(), (command, line)
        if command in READING:
            odd = {word for word in cut.split() if "…" not in word}
            assert odd <= set(whole.split()), command


READING = (
    "tables",
    "describe",
    "schema",
    "history",
    "files",
    "head",
    "query",
    "diff",
    "mirror status",
    "verify",
    "stats",
    "audit",
)


def test_query_of_long_texts_is_cut_at_their_ends(catalog: Cli) -> None:
    more = ", ".join(f"{number} AS c{number}" for number in range(30))
    sql = f"SELECT '{LONG_TEXT}' AS note, id, {more} FROM sales"
    code, shown = run(catalog, "query", sql, COLUMNS="60")
    _, wide = run(catalog, "query", sql, "--wide", COLUMNS="60")

    assert code == 0
    lines = shown.replace("\r", "").splitlines()
    assert [line.count("…") for line in lines[1:4]] == [1, 1, 1]
    assert lines[4].startswith("(")
    assert "more columns; --wide shows all)" in lines[4]
    assert wide.count(LONG_TEXT) == 3
    assert "more columns" not in wide


def test_states_are_coloured_and_named(catalog: Cli) -> None:
    _, shown = run(catalog, "mirror", "status")
    _, plain = run(catalog, "mirror", "status", NO_COLOR="1")

    assert "\x1b[32mpublished\x1b[0m" in shown
    assert "published" in plain
    assert "\x1b" not in plain


@pytest.fixture
def own(tmp_path: Path) -> Cli:
    command = Cli(f"deltasql://sqlite/{tmp_path}/meta.db")
    make_sales(command.table())
    return command


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, 1), ("y", 0, 0)])
def test_drop_asks_first(own: Cli, answer: str, code: int, left: int) -> None:
    session = Session(own.uri, COMMAND, "drop", "sales")
    session.read_until("Drop sales at version 1?")
    session.read_until("[y/N]")
    session.type(f"{answer}\n")

    assert session.end() == code
    assert len(own.json("tables")) == left


def test_interrupt_at_a_question_changes_nothing(own: Cli) -> None:
    session = Session(own.uri, COMMAND, "drop", "sales", "--with-data")
    session.read_until("[y/N]")

    assert session.interrupt() == 130
    assert "Interrupted" in session.seen
    assert "Traceback" not in session.seen
    assert dk.DeltaTable(own.table()).to_pyarrow_table().num_rows == 3


def test_interrupt_of_long_work_keeps_what_was_committed(own: Cli) -> None:
    session = Session(own.uri, sys.executable, "-c", LONG, "long")
    session.read_until("long work")
    session.read_until("/1,000")

    assert session.interrupt() == 130
    assert "Traceback" not in session.seen
    assert [table["name"] for table in own.json("tables")] == ["moved"]
    dk.DeltaTable(own.table("moved")).delete("id = 1")
    assert own("verify", "moved").exit_code == 0


def test_bar_is_shown_on_a_terminal_only(own: Cli) -> None:
    env = os.environ | {"DELTASQL_CATALOG": str(own.uri)}
    piped = subprocess.Popen(
        [sys.executable, "-c", LONG, "long"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    while own.json("tables")[0]["name"] != "moved" and time.monotonic() < deadline:
        time.sleep(0.1)
    piped.send_signal(signal.SIGINT)
    out, err = piped.communicate(timeout=PATIENCE_S)

    assert piped.returncode == 130
    assert (out, err) == ("", "Interrupted; commits already made stay.\n")


@pytest.mark.parametrize("kind", ["text", "json", "csv"])
def test_pipe_that_is_closed_early_is_no_error(kind: str, many: Cli) -> None:
    shell = f"set -o pipefail; {COMMAND} files many -o {kind} | head -1"
    done = subprocess.run(
        ["bash", "-c", shell],
        env=os.environ | {"DELTASQL_CATALOG": str(many.uri)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A table with more files than a pipe holds."""
    from delkalakedb.model.actions import Add
    from delkalakedb.model.log import Reads, Staged

    command = Cli(f"deltasql://sqlite/{tmp_path_factory.mktemp('many')}/meta.db")
    with dk.connect(str(command.uri)) as catalog:
        command("init")
        command("create", "many", "--schema", "id BIGINT")
        adds = [
            Add(
                path=f"part-{number:06}-{'x' * 100}.parquet",
                partition_values={},
                size=1,
                modification_time=1,
                data_change=True,
            )
            for number in range(20_000)
        ]
        catalog.commit(Staged("many", adds, Reads(version=0)))
    return command


@pytest.mark.parametrize("where", ["environment", "before", "after"])
def test_table_names_are_completed(catalog: Cli, where: str) -> None:
    given = f"--catalog {catalog.uri} "
    words = {
        "environment": "deltasql describe sa",
        "before": f"deltasql {given}describe sa",
        "after": f"deltasql describe {given}sa",
    }[where]
    done = subprocess.run(
        [COMMAND],
        env=os.environ
        | {
            "DELTASQL_CATALOG": str(catalog.uri) if where == "environment" else "",
            "_DELTASQL_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "plain,sales\n"
