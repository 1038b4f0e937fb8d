"""Backups of Postgres by its own programs, pg_dump and pg_restore.

A dump holds rows only. A restore reads the rows as text and writes them through the
catalog's own connection. So a dump is never run as SQL, and the rows can go into
another schema than their own.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from delkalakedb.errors import CatalogError

# the folders of Debian, Red Hat and Homebrew for programs that aren't on the PATH
_PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/libpq/bin",
    "/usr/local/opt/libpq/bin",
)
_COPY = re.compile(rb"COPY \S.* \(([\w, ]+)\) FROM stdin;\n")
_END = b"\\.\n"
# lines of a program's output that an error shows
_LAST_LINES = 3


@dataclass(frozen=True, slots=True)
class Dumped:
    """The rows of a table in COPY's text format."""

    columns: str
    lines: Iterator[bytes]


def dump_tables(
    file: Path, tables: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Dump the rows of `tables`, all of one state, to `file`.

    `environment` holds libpq's variables, which say how to connect.
    """
    command = [
        *(_program("pg_dump"), "--format=custom", "--data-only", "--no-password"),
        f"--file={file}",
        *(f"--table={table}" for table in tables),
    ]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, check=False
    )
    if done.returncode:
        raise CatalogError(f"pg_dump failed: {_last_lines(done.stderr)}")


@contextmanager
def dumped_rows(file: Path, table: str) -> Iterator[Dumped]:
    """Read the rows of one table from a dump.

    Raise `CatalogError` if the dump is damaged or lacks the table.
    """
    command = [_program("pg_restore"), "--data-only", f"--table={table}", "--file=-"]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [*command, str(file)], stdout=subprocess.PIPE, stderr=said
        ) as process,
    ):
        assert process.stdout is not None
        lines = iter(process.stdout)
        header = next(filter(None, map(_COPY.fullmatch, lines)), None)
        if header is not None:
            yield Dumped(header[1].decode(), iter(lines.__next__, _END))
            for _ in lines:
                pass
        if process.wait():
            said.seek(0)
            raise CatalogError(f"{file} can't be restored: {_last_lines(said.read())}")
        if header is None:
            raise CatalogError(f"{file} can't be restored: it has no {table}")


def _program(name: str) -> str:
    places = os.pathsep.join(
        [os.environ.get("PATH", os.defpath), *_newest_first(_PLACES)]
    )
    found = shutil.which(name, path=places)
    if found is None:
        raise CatalogError(
            f"{name} isn't installed: it comes with Postgres's client programs "
            "(apt-get install postgresql-client), of the server's version or newer"
        )
    return found


def _newest_first(patterns: Sequence[str]) -> list[str]:
    found = [place for pattern in patterns for place in glob(pattern)]
    return sorted(found, key=lambda p: [int(n) for n in re.findall(r"\d+", p)])[::-1]


def _last_lines(said: bytes) -> str:
    return " ".join(
        said.decode(errors="replace").split("\n")[-_LAST_LINES - 1 :]
    ).strip()
