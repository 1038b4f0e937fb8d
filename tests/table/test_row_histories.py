"""Random histories with deletion vectors, and plain deltalake's without.

After each operation both tables have the same rows, both operations told the same of
rows, and both change feeds say the same. A version of one table has its own number in
the other, because compaction and vacuum find other files there.
"""

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import delkalakedb as dk
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support import readers

IDS = 240
STEPS = 9
FEED = {"delta.enableChangeDataFeed": "true"}
VECTORS = {"delta.enableDeletionVectors": "true"}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("small", pa.int16()),
        ("text", pa.string()),
        ("amount", pa.float64()),
        ("exact", pa.decimal128(20, 4)),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("flag", pa.bool_()),
        ("data", pa.binary()),
        ("nested", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))])),
    ]
)
# delta-rs finds no changes in partitions of odd names.
PARTS = {True: ["p0", "p1"], False: ["a b", "x=1/%"]}
# Operations whose metrics count rows.
CHANGES = ("delete", "update", "merge")
# Operations that put other files in the place of files, with some of the same rows.
MOVES = ("restore",)
Run = Callable[[DeltaTable], Any]
Step = tuple[str, Run]


class History:
    """Two tables to which the same is done, and their version after each step."""

    def __init__(self, catalog_uri: str, folder: Path, chance: random.Random) -> None:
        self.uri = format_uri(parse_uri(catalog_uri).with_table("t"))
        self.path = str(folder / "plain")
        self.chance = chance
        self.fed = chance.random() < 0.6
        self.versions: list[tuple[int, int]] = []
        self.feed = Counter[str]()
        partition_by = chance.choice([None, "part"])
        feed = FEED if self.fed else {}
        for first in range(0, IDS, IDS // 3):
            rows = self.data(range(first, first + IDS // 3))
            common = {"mode": "append", "partition_by": partition_by}
            own = {**VECTORS, **feed}
            dk.write_deltalake(self.uri, rows, configuration=own, **common)
            deltalake.write_deltalake(self.path, rows, configuration=feed, **common)
        self.keep()

    @property
    def tables(self) -> tuple[DeltaTable, DeltaTable]:
        """Both, newly opened."""
        return dk.DeltaTable(self.uri), DeltaTable(self.path)

    def keep(self) -> None:
        """Note the versions that both have now."""
        ours, plain = self.tables
        self.versions.append((ours.version(), plain.version()))

    def data(self, ids: Any) -> pa.Table:
        """Rows of these ids, with values and nulls by chance."""
        chance, parts = self.chance, PARTS[self.fed]

        def maybe(value: Any) -> Any:
            return None if chance.random() < 0.15 else value

        rows = [
            {
                "id": i,
                "part": parts[i % 2],
                "small": maybe(i % 40),
                "text": maybe(f"t{i % 9}é"),
                "amount": maybe(i / 8),
                "exact": maybe(Decimal(i) / 10_000),
                "day": maybe(date(2024, 1, 1) + timedelta(i % 60)),
                "ts": maybe(datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=i)),
                "flag": maybe(i % 3 == 0),
                "data": maybe(bytes([i % 256])),
                "nested": maybe({"x": i, "y": [f"y{i}", None]}),
            }
            for i in ids
        ]
        return pa.Table.from_pylist(rows, SCHEMA)

    def some(self, most: int = 6) -> list[int]:
        return sorted(self.chance.sample(range(IDS + 30), self.chance.randint(1, most)))

    def step(self) -> Step:
        """An operation, drawn once and done to both."""
        kinds = [self.delete] * 3 + [self.update] * 2 + [self.merge] * 3 + [self.other]
        return self.chance.choice(kinds)()

    def condition(self) -> str:
        """SQL that holds for a few rows."""
        chance, low = self.chance, self.chance.randrange(IDS)
        return chance.choice(
            [
                f"id IN ({', '.join(map(str, self.some()))})",
                f"id >= {low} AND id < {low + 7} AND id % 2 = 1",
                f"id BETWEEN {low} AND {low + 4} OR id = {chance.randrange(IDS)}",
                f"small = {low % 40} AND text <> 't3é'",
                f"day = '2024-02-0{1 + low % 9}' AND flag",
                f"ts > '2024-01-01T00:0{low % 4}:1{low % 10}Z' AND id < {low % 40}",
                f"exact = {Decimal(low) / 10_000}",
                f"amount >= {low / 8} AND amount < {(low + 5) / 8}",
                f"text IS NULL AND id < {low % 50}",
                f"flag IS NOT NULL AND NOT (id > {low % 6})",
                f"nested.x = {low}",
                f"upper(text) = 'T{low % 9}É' AND id < {low % 30}",
                f"part = '{PARTS[self.fed][low % 2]}' AND small = {low % 40}",
            ]
        )

    def delete(self) -> Step:
        where = self.condition()
        return f"delete {where}", lambda t: t.delete(where)

    def update(self) -> Step:
        # After an update that changes nothing, delta-rs has no change data.
        where, number = f"({self.condition()}) AND id < 9000", self.chance.randrange(99)
        updates = self.chance.choice(
            [
                {"text": f"'u{number}' || coalesce(text, '')"},
                {"amount": "coalesce(amount, 0) + 1", "small": "NULL", "text": "'n'"},
                {"id": "id + 10000", "text": f"'moved{number}'"},
            ]
        )
        return f"update {where} {updates}", lambda t: t.update(updates, predicate=where)

    def merge(self) -> Step:
        chance, low = self.chance, self.chance.randrange(IDS)
        source = self.data(self.some(9))
        on = chance.choice(
            [
                "t.id = s.id",
                "t.id = s.id AND t.part = s.part",
                f"s.id = t.id AND t.id > {low}",
                "t.id = s.id AND t.flag IS NOT DISTINCT FROM s.flag",
            ]
        )
        clauses = chance.sample(
            [
                ("when_matched_update_all", {"predicate": "s.id % 4 <> 0"}),
                (
                    "when_matched_update",
                    {"updates": {"text": "s.text || '!'", "amount": "t.amount + 1"}},
                ),
                ("when_matched_delete", {"predicate": "s.id % 4 = 0"}),
                ("when_not_matched_insert_all", {"predicate": "s.id % 3 <> 0"}),
                (
                    "when_not_matched_insert",
                    {"updates": {"id": "s.id", "part": "s.part", "small": "7"}},
                ),
                (
                    "when_not_matched_by_source_update",
                    {"updates": {"small": "-1"}, "predicate": f"t.id = {low}"},
                ),
                (
                    "when_not_matched_by_source_delete",
                    {"predicate": f"t.id > {low} AND t.id < {low + 3}"},
                ),
            ],
            chance.randint(1, 4),
        )

        def run(table: DeltaTable) -> Any:
            merger = table.merge(source, on, source_alias="s", target_alias="t")
            for name, options in clauses:
                getattr(merger, name)(**options)
            return merger.execute()

        return f"merge {on} {clauses} {source['id'].to_pylist()}", run

    def other(self) -> Step:
        chance, ids = self.chance, self.some()
        rows, low = self.data(ids), chance.randrange(IDS)
        one = self.data([low])
        back = chance.randrange(len(self.versions))
        restored = dict(zip(("ours", "plain"), self.versions[back], strict=True))

        def write(**options: Any) -> Run:
            data = one if "predicate" in options else rows
            return lambda t: deltalake.write_deltalake(t, data, **options)

        def restore(table: DeltaTable) -> Any:
            side = "ours" if isinstance(table, dk.DeltaTable) else "plain"
            # deltalake refuses to restore the newest version.
            if restored[side] < table.version():
                table.restore(restored[side])

        return chance.choice(
            [
                (f"append {ids}", write(mode="append")),
                (f"append {ids}", write(mode="append")),
                (f"overwrite {ids}", write(mode="overwrite")),
                (
                    f"replace {low}",
                    write(mode="overwrite", predicate=f"id = {low}"),
                ),
                ("compact", lambda t: t.optimize.compact()),
                ("purge", purge),
                ("z-order", lambda t: t.optimize.z_order(["small"])),
                (f"restore {back}", restore),
            ]
        )

    def run(self) -> str:
        """Do one step to both, and compare; what was done."""
        name, run = self.step()
        done = [outcome(run, table) for table in self.tables]
        assert told(name, done[0]) == told(name, done[1]), name
        self.keep()
        ours, plain = self.tables
        assert rows_of(ours) == rows_of(plain), name
        assert ours.count() == plain.count(), name
        if self.fed:
            mine, theirs = self.changes(0), self.changes(1)
            if name.startswith(MOVES):
                mine, theirs = net(mine), net(theirs)
            assert mine == theirs, name
            self.feed += self.changes(0)
        return name

    def changes(self, side: int) -> Counter[str]:
        """What the newest step changed, by the feed."""
        (before, after), table = (
            [pair[side] for pair in self.versions[-2:]],
            self.tables[side],
        )
        if before == after:
            return Counter()
        return fed(table.load_cdf(starting_version=after, ending_version=after))

    def check(self) -> None:
        """Compare every version, in every reader."""
        ours, plain = self.tables
        for mine, theirs in self.versions:
            expected = rows_of(DeltaTable(self.path, theirs))
            table = dk.DeltaTable(self.uri, mine)
            assert rows_of(table) == expected
            assert rows_of(table.to_pyarrow_dataset().to_table()) == expected
            found = polars.scan_delta(table).collect().to_arrow()
            assert rows_of(found.cast(SCHEMA)) == expected
            assert rows_of(DeltaTable(ours.table_uri, mine)) == expected
        assert rows_of(ours.to_pyarrow_table()) == rows_of(plain)
        if self.fed and self.feed:
            first = self.versions[0][0] + 1
            assert fed(ours.load_cdf(starting_version=first)) == self.feed
        assert dk.verify(self.uri, deep=True).ok


def fed(changes: Any) -> Counter[str]:
    """The rows of a feed, without the versions' numbers and times."""
    feed = pa.table(changes)
    names = sorted({*feed.column_names} - {"_commit_version", "_commit_timestamp"})
    return Counter(map(repr, feed.select(names).to_pylist()))


def net(changes: Counter[str]) -> Counter[str]:
    """The changed rows, without those that were deleted and inserted again."""
    kinds = ("insert", "delete")
    inserted, deleted = (
        Counter(
            {
                row.replace(f"'_change_type': '{kind}'", ""): count
                for row, count in changes.items()
                if f"'_change_type': '{kind}'" in row
            }
        )
        for kind in kinds
    )
    inserted.subtract(deleted)
    return Counter({row: count for row, count in inserted.items() if count})


def purge(table: DeltaTable) -> None:
    """Purge our table; deltalake's has no deleted rows."""
    if isinstance(table, dk.DeltaTable):
        table.optimize.purge()


def outcome(run: Run, table: DeltaTable) -> Any:
    """What an operation tells, or the words in which deltalake refused it."""
    try:
        return run(table)
    except deltalake.exceptions.DeltaError as error:
        return str(error)[-40:]


def told(name: str, done: Any) -> Any:
    """What is comparable of what an operation told."""
    if not isinstance(done, dict):
        return done
    if not name.startswith(CHANGES):
        return None
    # An unchanged row is copied with its whole file, or with the rows found.
    odd = {"num_copied_rows", "num_target_rows_copied", "num_output_rows"}
    return {k: v for k, v in done.items() if "rows" in k and k not in odd}


def rows_of(table: Any) -> list[str]:
    """The rows, as delta-rs's scan finds them in a table."""
    found = pa.table(table.scan()) if isinstance(table, DeltaTable) else table
    return sorted(repr(row) for row in found.select(SCHEMA.names).to_pylist())


@pytest.mark.every_engine
@pytest.mark.parametrize(
    "seed",
    [*range(2), *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 150))],
)
def test_random_histories_are_those_of_plain_deltalake(
    catalog_uri: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MODE", chance.choice(["auto", "always"]))
    limit = chance.choice(["4096", "30", "0"])
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", limit)
    history = History(catalog_uri, tmp_path, chance)
    for _ in range(STEPS):
        history.run()
    history.check()


@pytest.mark.soak
@pytest.mark.parametrize("reader", ["duckdb", "clickhouse"])
@pytest.mark.parametrize("seed", range(4))
def test_other_readers_find_the_rows_of_each_version(
    catalog_uri: str,
    tmp_path: Path,
    reader: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", str(seed % 2 * 4096))
    history = History(catalog_uri, tmp_path, random.Random(seed))
    plain = pa.schema([SCHEMA.field(n) for n in ("id", "part", "small")])
    for _ in range(STEPS):
        history.run()
    location = history.tables[0].table_uri.removeprefix("file://")
    for mine, theirs in history.versions:
        table = pa.table(DeltaTable(history.path, theirs).scan())
        rows = table.select(plain.names).cast(plain).to_pylist()
        expected = sorted(repr(list(row.values())) for row in rows)
        assert readers.read(reader, location, mine, plain).rows == expected
