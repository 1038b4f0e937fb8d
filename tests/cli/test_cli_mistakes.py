"""One mistake has one exit code and one message, whatever the command is."""

import pytest

from tests.support.cli import Cli

TABLE = "salse"
# What a command is given, with TABLE for the name of a table that isn't there.
UNKNOWN_TABLE = """
    describe TABLE | schema TABLE | history TABLE | files TABLE | head TABLE
    stats TABLE | diff TABLE 0 1 | export TABLE out.csv | sync TABLE
    verify TABLE | optimize TABLE | checkpoint TABLE | restore TABLE --version 0
    vacuum TABLE | retention TABLE | rename TABLE x | drop TABLE --yes
    detach TABLE --yes | set TABLE a=b | unset TABLE a | mirror status TABLE
    mirror fence TABLE --yes | mirror adopt TABLE | mirror retry TABLE
    mirror republish TABLE | append TABLE rows.csv
"""
# With COLUMN for the name of a column that isn't there.
UNKNOWN_COLUMN = (
    ("head", "sales", "--columns", "COLUMN"),
    ("export", "sales", "out.csv", "--columns", "COLUMN"),
    ("files", "sales", "--where", "COLUMN = 1"),
    ("optimize", "sales", "--where", "COLUMN = 1"),
    ("optimize", "sales", "--z-order", "COLUMN"),
)


def commands(text: str) -> list[list[str]]:
    lines = text.replace("\n", "|").split("|")
    return [line.replace("TABLE", TABLE).split() for line in lines if line.strip()]


def test_unknown_table_is_refused_alike_by_every_command(on_sqlite: Cli) -> None:
    for words in commands(UNKNOWN_TABLE):
        done = on_sqlite(*words, code=5)

        assert done.stdout == "", words
        assert "; did you mean sales?" in done.stderr, words
    found = on_sqlite("query", f"SELECT * FROM {TABLE}", code=5)
    assert "; did you mean sales?" in found.stderr


@pytest.mark.parametrize("words", UNKNOWN_COLUMN, ids=" ".join)
def test_unknown_column_is_refused_alike(
    on_sqlite: Cli, words: tuple[str, ...]
) -> None:
    done = on_sqlite(*(word.replace("COLUMN", "idd") for word in words), code=2)

    assert done.stdout == ""
    assert "no column idd; did you mean id?" in done.stderr
