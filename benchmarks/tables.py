"""Synthetic tables, with the same files as plain Delta tables and in a catalog.

File `i` of `n` holds the ids from `i * 1000` on, so `id` is clustered. Each day has
`FILES_PER_DAY` files at every size, scattered over the table, so a query of one day
finds the same number of files at every size. No data file is written.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from hashlib import md5
from pathlib import Path

import deltalake
import msgspec
import pyarrow as pa

import delkalakedb as dk
from delkalakedb.catalog.commit.outcome import Committed
from delkalakedb.model.actions import (
    Action,
    Add,
    Format,
    Metadata,
    Protocol,
    encode_commit,
)
from delkalakedb.model.log import Reads, Staged

NAME = "events"
FILES_PER_DAY = 100
ROWS_PER_FILE = 1000
BATCHES = 10
DEAD_PER_LIVE = 10
FIELDS = {
    "id": "long",
    "day": "date",
    "ts": "timestamp",
    "amount": "double",
    "city": "string",
}
_FIRST_DAY = date(2000, 1, 1)
_FIRST_TS = datetime(2024, 1, 1, tzinfo=UTC)
_MODIFIED_MS = 1_700_000_000_000
_FILE_BYTES = 1_000_000
_RANGE_FILES = 3
_COMMITS_PER_TRANSACTION = 200


@dataclass(frozen=True)
class File:
    """A file of a table, as in every copy of the table."""

    number: int
    path: str
    day: str
    id: tuple[int, int]
    ts: tuple[datetime, datetime]
    amount: tuple[float, float]
    city: tuple[str, str]


@dataclass(frozen=True)
class Query:
    """A selective predicate, and the number of files that may match it."""

    label: str
    where: str
    matches: int


def days(files: int) -> int:
    """Return the number of partitions of a table with `files` files."""
    return max(1, files // FILES_PER_DAY)


def file(number: int, files: int, generation: int = 0) -> File:
    """Return file `number` of a table with `files` live files."""
    key = md5(f"{generation}/{number}".encode()).hexdigest()
    day = str(_FIRST_DAY + timedelta(days=number % days(files)))
    ts = _FIRST_TS + timedelta(seconds=number)
    low = int(key[:4], 16) / 100
    city = int(key[4:7], 16)
    return File(
        number=number,
        path=f"day={day}/part-{number:05}-{key}-c000.snappy.parquet",
        day=day,
        id=(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE - 1),
        ts=(ts, ts + timedelta(seconds=59)),
        amount=(low, low + 99.5),
        city=(f"city-{city:04}", f"city-{city + 500:04}"),
    )


def queries(files: int) -> list[Query]:
    """Return a range of `id` and a partition, whose files also exist at N/2."""
    first = files // 4
    low = first * ROWS_PER_FILE
    high = low + _RANGE_FILES * ROWS_PER_FILE - 1
    day = file(days(files) // 3, files).day
    found = sum(n % days(files) == days(files) // 3 for n in range(files))
    return [
        Query("range", f"id BETWEEN {low} AND {high}", _RANGE_FILES),
        Query("partition", f"day = '{day}'", found),
    ]


def add(number: int, files: int, generation: int = 0) -> Add:
    """Return the add action of a file, with statistics as delta-rs writes them."""
    f = file(number, files, generation)
    bounds = zip(f.id, f.ts, f.amount, f.city, strict=True)
    low, high = (
        {"id": i, "ts": f"{ts:%Y-%m-%dT%H:%M:%SZ}", "amount": amount, "city": city}
        for i, ts, amount, city in bounds
    )
    stats = {
        "numRecords": ROWS_PER_FILE,
        "minValues": low,
        "maxValues": high,
        "nullCount": dict.fromkeys(low, 0),
    }
    return Add(
        path=f.path,
        partition_values={"day": f.day},
        size=_FILE_BYTES + number % 1000,
        modification_time=_MODIFIED_MS + number,
        data_change=True,
        stats=msgspec.json.encode(stats).decode(),
    )


def adds(
    files: int, generation: int = 0, *, first: int = 0, last: int | None = None
) -> list[Action]:
    """Yield the add actions of a table, or of some of its files."""
    numbers = range(first, files if last is None else last)
    return [add(number, files, generation) for number in numbers]


def batches(files: int) -> Iterator[list[Action]]:
    """Yield the actions of each commit of a table after the first."""
    size = -(-files // BATCHES)
    for first in range(0, files, size):
        yield adds(files, first=first, last=min(first + size, files))


def first_actions() -> list[Action]:
    """Return the protocol and metadata of all synthetic tables."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in FIELDS.items()
    ]
    schema = msgspec.json.encode({"type": "struct", "fields": fields}).decode()
    return [
        Protocol(min_reader_version=1, min_writer_version=2),
        Metadata(
            id="7c1f7a52-6b1e-4a53-9d1a-0b5a7f1e2d3c",
            format=Format(provider="parquet", options={}),
            schema_string=schema,
            partition_columns=["day"],
            created_time=_MODIFIED_MS,
            configuration={},
        ),
    ]


def build_delta(location: Path, files: int, *, checkpoint: bool = True) -> None:
    """Build a plain Delta table, with a checkpoint by delta-rs at its last version."""
    log = location / "_delta_log"
    log.mkdir(parents=True)
    for version, actions in enumerate([first_actions(), *batches(files)]):
        (log / f"{version:020}.json").write_bytes(encode_commit(actions))
    if checkpoint:
        deltalake.DeltaTable(location).create_checkpoint()


def build_empty(catalog: dk.Catalog) -> int:
    """Create a table without files, and return its version."""
    location = f"/nowhere/{NAME}"
    return _commit(catalog, Staged(NAME, first_actions(), location=location))


def build_catalog(catalog: dk.Catalog, files: int) -> None:
    """Build a table of `files` files in ten appends."""
    version = build_empty(catalog)
    for actions in batches(files):
        version = _commit(catalog, append(actions, version))


def build_dead(catalog: dk.Catalog, files: int) -> None:
    """Build a table and overwrite it ten times: ten dead files for each live one."""
    version = build_empty(catalog)
    for generation in range(DEAD_PER_LIVE + 1):
        reads = Reads(version=version, whole_table=True)
        actions = adds(files, generation)
        version = _commit(catalog, Staged(NAME, actions, reads, remove_all=True))


def build_commits(catalog: dk.Catalog, commits: int) -> None:
    """Build a table of one file per commit, with many commits per transaction."""
    version = build_empty(catalog)
    while version < commits:
        upto = min(version + _COMMITS_PER_TRANSACTION, commits)
        staged = [append([add(v, commits)], v) for v in range(version, upto)]
        catalog.commit(*staged)
        version = upto


def append(actions: list[Action], version: int) -> Staged:
    """Return a staged blind append by a writer that has read `version`."""
    return Staged(NAME, actions, Reads(version=version))


def arrow(files: int) -> pa.Table:
    """Return the files of a table as Arrow rows, for another catalog."""
    rows = []
    for number in range(files):
        f = file(number, files)
        row = {"number": number, "path": f.path, "day": f.day}
        for name in ("id", "ts", "amount", "city"):
            low, high = getattr(f, name)
            row |= {f"{name}_min": _text(low), f"{name}_max": _text(high)}
        rows.append(row)
    return pa.Table.from_pylist(rows)


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}+00"
    return str(value)


def _commit(catalog: dk.Catalog, staged: Staged) -> int:
    (outcome,) = catalog.commit(staged)
    assert isinstance(outcome, Committed)
    return outcome.version
