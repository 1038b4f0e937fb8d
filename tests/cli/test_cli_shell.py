"""`deltasql shell`: piped, from a file, and in a real pseudo-terminal."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from delkalakedb.cli.shell import ShellInput, split
from tests.support.cli import Cli, can_read

COMMAND = shutil.which("deltasql", path=Path(sys.executable).parent)
NAMES = {"tables", "history", "describe"}


# ---- statements


@pytest.mark.parametrize(
    ("text", "found", "rest"),
    [
        ("SELECT 1;", [ShellInput("SELECT 1")], ""),
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT ';' ; SELECT", [ShellInput("SELECT ';'")], "SELECT"),
        ("SELECT 'it''s;' -- ;\n;", [ShellInput("SELECT 'it''s;' -- ;")], ""),
        ('SELECT "a;""b" /* ; */;', [ShellInput('SELECT "a;""b" /* ; */')], ""),
        (r"SELECT e'\';';", [ShellInput(r"SELECT e'\';'")], ""),
        ("SELECT $$;$$; x", [ShellInput("SELECT $$;$$")], "x"),
        ("SELECT $a$ ; $$ ; $a$;", [ShellInput("SELECT $a$ ; $$ ; $a$")], ""),
        ("SELECT 'open ; ", [], "SELECT 'open ; "),
        ("SELECT /* open ; ", [], "SELECT /* open ; "),
        ("; ;\n-- only words;\n", [], ""),
        ("tables", [ShellInput("tables", True)], ""),
        (".tables -o json;", [ShellInput("tables -o json", True)], ""),
        ("\\history sales ;", [ShellInput("history sales", True)], ""),
        ("DESCRIBE sales;", [ShellInput("describe sales", True)], ""),
        ("describe  FROM sales;", [ShellInput("describe  FROM sales")], ""),
        ("Describe (SELECT 1)", [], "Describe (SELECT 1)"),
        ("\\dt\nSELECT 1;", [ShellInput("\\dt", True), ShellInput("SELECT 1")], ""),
        ("\\d sales;", [ShellInput("\\d sales", True)], ""),
        (".nope\ntables", [ShellInput(".nope", True), ShellInput("tables", True)], ""),
        ("tables_of(1);", [ShellInput("tables_of(1)")], ""),
        (
            "FROM a\n;describe a\ntables;\nFROM b",
            [
                ShellInput("FROM a"),
                ShellInput("describe a", True),
                ShellInput("tables", True),
            ],
            "FROM b",
        ),
    ],
)
def test_text_is_cut_where_statements_end(
    text: str, found: list[ShellInput], rest: str
) -> None:
    assert split(text, NAMES) == (found, rest)


PARTS = st.lists(
    st.sampled_from(["'a;b'", '"c;d"', "x1", "--e;\n", "/*;*/", "$$;$$", "(", " "]),
    min_size=1,
)


@given(st.lists(PARTS, max_size=4))
def test_statements_are_found_again_however_they_come(sql: list[list[str]]) -> None:
    statements = [f"SELECT {''.join(parts)}".strip() for parts in sql]
    text = "".join(f"{one}\n;" for one in statements)
    expected = [ShellInput(one) for one in statements]

    assert split(text, NAMES) == (expected, "")
    found, rest = [], ""
    for letter in text:
        some, rest = split(rest + letter, NAMES)
        found += some
    assert found == expected


# ---- batches


def test_pipe_runs_queries_and_commands_in_turn(deltasql: Cli) -> None:
    text = (
        "SELECT count(*) AS n\nFROM sales AT (VERSION => 0);\n"
        "history sales --limit 1\n.tables;\nSELECT id FROM sales WHERE id = 3"
    )
    result = deltasql("shell", "--output", "csv", stdin=text)

    lines = result.stdout.splitlines()
    assert lines[:2] == ["n", "2"]
    assert lines[2].startswith("version,timestamp_ms,operation")
    assert lines[4].startswith("name,version")
    assert lines[-2:] == ["id", "3"]
    assert result.stderr == ""


def test_first_error_ends_a_batch_with_its_code(on_sqlite: Cli) -> None:
    text = "SELECT 1 AS a;\nSELECT nope FROM sales;\nhistory nope\nSELECT 2 AS b;"

    stopped = on_sqlite("shell", stdin=text, code=2)
    assert stopped.stdout.split() == ["a", "1"]
    assert len(stopped.stderr.splitlines()) == 1
    went_on = on_sqlite("shell", "--keep-going", stdin=text, code=2)
    assert went_on.stdout.split() == ["a", "1", "b", "2"]
    assert len(went_on.stderr.splitlines()) == 2
    on_sqlite("shell", stdin="history nope", code=5)
    on_sqlite("shell", stdin="history", code=2)
    on_sqlite("shell", stdin="head 'sales", code=5)
    on_sqlite("shell", stdin="diff sales 0 1", code=1)


def test_batch_comes_from_a_file_and_may_leave(on_sqlite: Cli, tmp_path: Path) -> None:
    file = tmp_path / "batch.sql"
    file.write_text("SELECT 1 AS a;\nquit\nSELECT 2 AS a;")

    assert json.loads(on_sqlite("shell", "--file", str(file), "-o", "json").stdout) == [
        {"a": 1}
    ]


def test_limit_holds_for_queries(on_sqlite: Cli) -> None:
    result = on_sqlite("shell", "--limit", "1", "-o", "csv", stdin="FROM sales;")

    assert len(result.stdout.splitlines()) == 2


def test_help_lists_the_commands(on_sqlite: Cli) -> None:
    assert "history" in on_sqlite("shell", stdin="help").stdout
    assert "--limit" in on_sqlite("shell", stdin="help history").stdout
    on_sqlite("shell", stdin="shell", code=2)


def test_commands_of_psql_and_sqlite_are_answered(on_sqlite: Cli) -> None:
    def lines(text: str, *words: str) -> list[str]:
        return on_sqlite("shell", *words, stdin=text).stdout.splitlines()

    tables = lines("tables")
    assert lines("\\dt") == lines("\\d") == lines(".tables") == tables
    described = lines("describe sales")[:3]
    assert lines("\\d sales")[:3] == lines("DESCRIBE sales;")[:3] == described
    assert lines("\\dt\nSELECT 1 AS a;") == [*tables, "a", "1"]
    assert any("\\timing" in line for line in lines("\\?"))
    assert lines("\\q\nSELECT 1;") == []


def test_rows_are_expanded_and_statements_timed(on_sqlite: Cli) -> None:
    sql = "SELECT 1 AS a, 'x y' AS note;"
    result = on_sqlite("shell", stdin=f"\\x\n{sql}\n\\x off\n\\timing\n{sql}")

    expanded, table = result.stdout.split("x y")[:2]
    assert expanded.split() == ["--", "row", "1", "a", "1", "note"]
    assert table.split() == ["a", "note", "1"]
    assert len(re.findall(r"Time: \d+ ms", result.stderr)) == 1


@pytest.mark.parametrize("line", ["\\nope", ".tabels"])
def test_unknown_backslash_command_swallows_nothing(on_sqlite: Cli, line: str) -> None:
    text = f"{line}\nSELECT 2 AS b;"

    stopped = on_sqlite("shell", "--keep-going", stdin=text, code=2)
    assert f"no command {line}" in stopped.stderr
    assert stopped.stdout.split() == ["b", "2"]


# ---- a terminal


class Terminal:
    """A shell in a pseudo-terminal, and who types into it."""

    def __init__(self, uri: str, home: Path) -> None:
        assert COMMAND is not None
        self._mine, theirs = pty.openpty()
        env = {
            "DELTASQL_CATALOG": uri,
            "XDG_STATE_HOME": str(home),
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "TERM": "xterm",
            "COLUMNS": "200",
        }
        self.process = subprocess.Popen(
            [COMMAND, "shell"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | env,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self._mine, keys.encode())

    def expect(self, pattern: str, seconds: float = 30) -> None:
        """Wait for a text, and forget what came before its end."""
        until = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            ready = can_read(self._mine, until - time.monotonic())
            assert ready, f"{pattern!r} didn't come: {self.seen!r}"
            self.seen += self._read()
        self.seen = self.seen[found.end() :]

    def _read(self) -> str:
        text = os.read(self._mine, 65536).decode(errors="replace")
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._mine)


@pytest.fixture
def terminal(on_sqlite: Cli, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(str(on_sqlite.uri), tmp_path / "state")
    yield opened
    opened.close()


def test_session_in_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    terminal.expect("deltasql>")
    terminal.type("SELECT id + 40 AS n FROM sal\t")
    terminal.expect("es")
    terminal.type(" WHERE da\t")
    terminal.expect("day")
    terminal.type(" = 'wed';\r")
    terminal.expect("43")
    terminal.expect(r"\(1 row\)")
    terminal.expect("deltasql>")

    terminal.type("SELECT 7 * 6\r")
    terminal.expect(r"\.\.\.>")
    terminal.type("AS answer;\r")
    terminal.expect("42")
    terminal.expect("deltasql>")

    terminal.type("SELECT nope FROM sales;\r")
    terminal.expect('Error: column "nope" not found')
    terminal.expect("deltasql>")

    terminal.type("hist\t")
    terminal.expect("history")
    terminal.type(" sal\t")
    terminal.expect("sales")
    terminal.type(" --limit 1\r")
    terminal.expect("WRITE")
    terminal.expect("deltasql>")

    terminal.type("SELECT sum(a * b) FROM range(100000000000) x(a), range(99) y(b);\r")
    time.sleep(1)
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.expect("Interrupted")
    terminal.expect("deltasql>")

    terminal.type("half a line\x03")
    terminal.expect("deltasql>")
    terminal.type("-- s3://me:hunter2-Zq@place/x\r")
    terminal.expect("deltasql>")
    terminal.type("\x04")
    assert terminal.process.wait(30) == 0

    history = tmp_path / "state" / "deltasql" / "history"
    text = history.read_text()
    assert "FROM sales" in text
    assert "hunter2-Zq" not in text
    assert history.stat().st_mode & 0o077 == 0


def test_prompt_limits_rows_and_pages_them(
    on_sqlite: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGER", "sed 's/^/paged /'")
    terminal = Terminal(str(on_sqlite.uri), tmp_path / "state")
    try:
        terminal.expect(r"deltasql \d.* on deltasql://sqlite/\S+ \(1 table\)")
        terminal.expect("deltasql>")
        terminal.type("SELECT * FROM range(1200) t(n);\r")
        terminal.expect(r"paged\s+n")
        terminal.expect(r"paged\s+999")
        terminal.expect("paged …")
        terminal.expect(r"\(1,000 rows; --limit shows more\)")
        terminal.type("\\dt\r")
        terminal.expect(r"name\s+version")
        terminal.expect("deltasql>")
        terminal.type("SELECT 5 AS five;\r")
        terminal.expect(r"five\s+5\s+\(1 row\)")
    finally:
        terminal.close()


def test_exit_leaves_the_terminal(terminal: Terminal) -> None:
    terminal.expect("deltasql>")
    terminal.type("exit\r")

    assert terminal.process.wait(30) == 0
