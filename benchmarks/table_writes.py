"""Measurements of appends, merges and concurrent writers."""

import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import tables
from bars import Run, short
from measure import Case, medians, run_child, run_together

import delkalakedb as dk
from delkalakedb.model.log import Staged
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.write.committer import commit

ROW = pa.table(
    {
        "id": pa.array([1], pa.int64()),
        "day": pa.array([date(2026, 1, 1)]),
        "ts": pa.array([datetime(2026, 1, 1)], pa.timestamp("us", "UTC")),
        "amount": pa.array([1.5], pa.float64()),
        "city": pa.array(["city-0001"]),
    }
)
_FULL_FILES = 100_000
_FASTER, _FLAT, _NO_SLOWER = 60, 1.3, 1
# On Postgres an append takes four messages and a commit synced to disk.
_FIRST = {"postgres": 0.8}
_IN_A_ROW = 20
_BULK_BYTES = 100_000_000
_OVER_DELTALAKE = 1.15
_MERGED_FILES = 20
_ROUNDS = 5
# An update by key / an append of a row, / one in few files; a read with vectors / none.
_OVER_APPEND, _OVER_FEW_FILES, _OVER_UNMARKED = 6, 1.5, 1.3
_FEW_FILES = 100
_WRITERS, _WRITING_S, _MORE = 8, 5, 5
# rows of the file of which they delete others
_DELETED_FROM = 100_000
Write = Callable[..., None]
RowsOf = Callable[[int, int], pa.Table]


def build_published(catalog: dk.Catalog, location: str, files: int) -> None:
    """Build a published table in ten appends."""
    commit(catalog, Staged(tables.NAME, tables.first_actions(), location=location))
    for version, actions in enumerate(tables.batches(files)):
        commit(catalog, tables.append(actions, version))


def measure_append(run: Run, delta: Path) -> None:
    """Measure an append of one row, to a large and to new tables."""
    files = run.peer_size
    database = run.database("append")
    with database.connect() as catalog:
        build_published(catalog, str(run.folder / "append"), files)
    database.settle()
    large = format_uri(parse_uri(database.uri).with_table(tables.NAME))
    ours, theirs = _New(run, database.uri), _New(run, None)
    cases = {
        "large": _appended(dk.write_deltalake, large),
        "empty": lambda: _appended(dk.write_deltalake, ours.make())(),
        "delta, empty": lambda: _appended(deltalake.write_deltalake, theirs.make())(),
        "in a row": lambda: _in_a_row(dk.write_deltalake, ours.make()),
        "delta, in a row": lambda: _in_a_row(deltalake.write_deltalake, theirs.make()),
    }
    found = medians(cases, budget_s=40, most=40)
    slow = {"": _appended(deltalake.write_deltalake, str(delta))}
    found["delta, large"] = medians(slow, budget_s=20, most=20, warm=1)[""]
    bar = "append one row"
    for name, seconds in found.items():
        run.report(bar, name, seconds * 1000, "ms")
    full = files == _FULL_FILES
    ratio = found["delta, large"] / found["large"]
    what = f"into {short(files)} files, deltalake / ours"
    run.at_least(bar, what, ratio, _FASTER if full else None)
    ratio = found["delta, empty"] / found["empty"]
    first = _FIRST.get(run.engine, _NO_SLOWER)
    run.at_least(bar, "first of a new table, deltalake / ours", ratio, first)
    ratio = found["delta, in a row"] / found["in a row"]
    what = f"{_IN_A_ROW} from empty on, deltalake / ours"
    run.at_least(bar, what, ratio, _NO_SLOWER)
    what = f"into {short(files)} files / into none"
    run.at_most(bar, what, found["large"] / found["empty"], _FLAT)


class _New:
    """A maker of new tables, in a catalog or plain."""

    def __init__(self, run: Run, catalog_uri: str | None) -> None:
        self._folder = run.folder
        self._uri = catalog_uri

    def make(
        self, schema: pa.Schema = ROW.schema, properties: dict[str, str] | None = None
    ) -> str:
        """Create a new table without files."""
        name = f"new_{uuid.uuid4().hex}"
        location = self._folder / name
        days = [column for column in schema.names if column == "day"]
        if self._uri is None:
            deltalake.DeltaTable.create(
                str(location), schema, partition_by=days, configuration=properties
            )
            return str(location)
        uri = format_uri(parse_uri(self._uri).with_table(name))
        where = f"{uri}{'&' if '?' in uri else '?'}location={location}"
        dk.DeltaTable.create(where, schema, partition_by=days, configuration=properties)
        return uri


def _appended(write: Write, table: str, data: pa.Table = ROW) -> Case:
    def case() -> float:
        started = time.perf_counter()
        write(table, data, mode="append")
        return time.perf_counter() - started

    return case


def _in_a_row(write: Write, table: str) -> float:
    """Return the mean seconds of consecutive appends."""
    case = _appended(write, table)
    return statistics.mean(case() for _ in range(_IN_A_ROW))


def measure_bulk(run: Run) -> None:
    """Measure an append of 100 MB against deltalake by path."""
    data = _rows(run.bulk * 43 // 100, 0)
    ours, theirs = _New(run, run.database("bulk").uri), _New(run, None)
    made, plain = ours.make(data.schema), theirs.make(data.schema)
    cases = {
        "ours": _appended(dk.write_deltalake, made, data),
        "deltalake": _appended(deltalake.write_deltalake, plain, data),
    }
    found = medians(cases, least=_ROUNDS, most=_ROUNDS, warm=1)
    bar = f"append {data.nbytes / 1e6:.0f} MB"
    for name, seconds in found.items():
        run.report(bar, name, seconds * 1000, "ms")
    ratio = found["ours"] / found["deltalake"]
    full = data.nbytes >= _BULK_BYTES
    run.at_most(bar, "ours / deltalake", ratio, _OVER_DELTALAKE if full else None)


def measure_merge(run: Run) -> None:
    """Measure a merge of 1% of a table's rows against deltalake by path."""
    ours, theirs = _New(run, run.database("merge").uri), _New(run, None)
    size = run.bulk // _MERGED_FILES
    schema = _rows(0, 0).schema
    where = {"ours": ours.make(schema), "deltalake": theirs.make(schema)}
    for first in range(0, run.bulk, size):
        for table in where.values():
            dk.write_deltalake(table, _rows(size, first), mode="append")
    # Both sides merge the same rows in the same order.
    cases = {name: _merging(table, run.bulk) for name, table in where.items()}
    found = medians(cases, least=_ROUNDS, most=_ROUNDS, warm=1)
    bar = f"merge {short(run.bulk // 100)} rows into {short(run.bulk)}"
    for name, seconds in found.items():
        run.report(bar, name, seconds * 1000, "ms")
    ratio = found["ours"] / found["deltalake"]
    full = run.bulk >= 10_000_000
    run.at_most(bar, "ours / deltalake", ratio, _OVER_DELTALAKE if full else None)
    counts = [dk.DeltaTable(table).count() for table in where.values()]
    run.at_most(bar, "difference in rows", abs(counts[0] - counts[1]), 0, "")


def _merging(table: str, rows: int) -> Case:
    """Return a case that merges the next source: half matching, half new rows."""
    size, numbers = rows // 100, iter(range(100))

    def case() -> float:
        number = next(numbers)
        old = (number * 7 % 90) * size + np.arange(0, size, 2)
        new = rows * 2 + number * size + np.arange(size - len(old))
        ids = pa.array(np.concatenate([old, new]))
        source = _rows(size, 0).set_column(0, "id", ids)
        started = time.perf_counter()
        handle = dk.DeltaTable(table)
        (
            handle.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )
        return time.perf_counter() - started

    return case


def _rows(rows: int, first: int) -> pa.Table:
    order = np.random.default_rng(first)
    return pa.table(
        {
            "id": pa.array(np.arange(first, first + rows)),
            "amount": pa.array(order.random(rows)),
            "city": pa.array(order.integers(0, 5000, rows)).cast(pa.string()),
        }
    )


def _wide_rows(rows: int, first: int) -> pa.Table:
    """Return rows of ten columns and about 200 bytes, most of them random text."""
    order, narrow = np.random.default_rng(first), _rows(rows, first)
    texts = {"email": 24, "token": 32, "note": 100}
    return pa.table(
        {
            **{one: narrow[one] for one in narrow.column_names},
            **{name: _text(order, rows, size) for name, size in texts.items()},
            "ts": pa.array(order.integers(0, 2**50, rows)).cast(
                pa.timestamp("us", "UTC")
            ),
            "quantity": pa.array(order.integers(0, 1000, rows, np.int32)),
            "price": pa.array(order.random(rows)),
            "is_open": pa.array(order.random(rows) < 0.1),
        }
    )


def _text(order: np.random.Generator, rows: int, size: int) -> pa.Array:
    """Return random texts of `size` letters."""
    letters = order.integers(ord("a"), ord("z"), rows * size, np.uint8, endpoint=True)
    ends = np.arange(0, rows * size + 1, size, np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(letters))


def measure_rows(run: Run) -> None:
    """Measure changes of scattered rows by deletion vectors, against deltalake."""
    narrow = _changed_tables(run, "narrow")
    large, _ = narrow["ours"]
    _measure_key(run, large)
    _measure_files(run)
    _measure_marked(run, large)
    _changed_tables(run, "wide")


def _changed_tables(run: Run, shape: str) -> dict[str, tuple[str, str]]:
    """Measure changes of new tables, a large and a small one of each side."""
    rows_of, size = SHAPES[shape], run.bulk // _MERGED_FILES
    vectors, schema = {"delta.enableDeletionVectors": "true"}, rows_of(0, 0).schema
    made: dict[str, tuple[str, str]] = {}
    for name, new, properties in (
        ("ours", _New(run, run.database(f"rows_{shape}").uri), vectors),
        ("deltalake", _New(run, None), None),
    ):
        large, warm = new.make(schema, properties), new.make(schema, properties)
        for first in range(0, run.bulk, size):
            dk.write_deltalake(large, rows_of(size, first), mode="append")
        dk.write_deltalake(warm, rows_of(1000, 0), mode="append")
        made[name] = large, warm
    for kind in CHANGES:
        _measure_change(run, shape, kind, made)
    counts = [dk.DeltaTable(large).count() for large, _ in made.values()]
    wrong = abs(counts[0] - counts[1])
    run.at_most(f"changes of {shape} rows", "difference in rows", wrong, 0, "")
    return made


def _measure_key(run: Run, table: str) -> None:
    """Measure an update of one row by its key against an append of one row."""
    cases = {
        "update": _updated(table, iter(_scattered(300, run.bulk))),
        "append": _appended(dk.write_deltalake, table, _rows(1, 2 * run.bulk)),
    }
    found = medians(cases, least=_ROUNDS, most=20, warm=1)
    bar, full = f"update of 1 in {short(run.bulk)} rows", run.bulk >= 10_000_000
    for name, seconds in found.items():
        run.report(bar, f"ours, {name}, open included", seconds * 1000, "ms")
    ratio = found["update"] / found["append"]
    run.at_most(bar, "update / append of 1 row", ratio, _OVER_APPEND if full else None)


def _measure_files(run: Run) -> None:
    """Measure an update by key in a table of many files against one of few."""
    sizes, cases = (_FEW_FILES, run.peer_size), dict[str, Case]()
    for files in sizes:
        database = run.database(f"update_{files}")
        with database.connect() as catalog:
            build_published(catalog, str(run.folder / f"update_{files}"), files)
        database.settle()
        table = format_uri(parse_uri(database.uri).with_table(tables.NAME))
        properties = {"delta.enableDeletionVectors": "true"}
        dk.DeltaTable(table).alter.set_table_properties(properties)
        # The only file of these tables that exists; its ids are those of no other.
        ids = pa.array(range(-1000, 0), pa.int64())
        real = pa.concat_tables([ROW] * 1000).combine_chunks().set_column(0, "id", ids)
        dk.write_deltalake(table, real, mode="append")
        cases[short(files)] = _updated(table, iter(range(-1000, 0)))
    found = medians(cases, budget_s=20, most=40, warm=3)
    bar = "update of 1 by key"
    for name, seconds in found.items():
        run.report(bar, f"in {name} files", seconds * 1000, "ms")
    few, many = map(short, sizes)
    full = run.peer_size == _FULL_FILES
    what, ratio = f"in {many} files / in {few}", found[many] / found[few]
    run.at_most(bar, what, ratio, _OVER_FEW_FILES if full else None)


def _updated(table: str, keys: Iterator[int]) -> Case:
    """Return a case that updates the row of the next key."""

    def case() -> float:
        where = f"id = {next(keys)}"
        started = time.perf_counter()
        dk.DeltaTable(table).update({"amount": "amount + 1"}, predicate=where)
        return time.perf_counter() - started

    return case


def _measure_marked(run: Run, table: str) -> None:
    """Measure a read of a table with a hundredth of its rows in deletion vectors."""
    before = dk.DeltaTable(table).version()
    dk.DeltaTable(table).delete(f"id % 100 = 7 AND id < {run.bulk}")
    after = dk.DeltaTable(table).version()
    cases = {"without": _read(table, before), "with": _read(table, after)}
    found = medians(cases, least=_ROUNDS, most=_ROUNDS, warm=1)
    bar = f"read of {short(run.bulk)} rows, 1% in vectors"
    for name, seconds in found.items():
        run.report(bar, name, seconds * 1000, "ms")
    full, ratio = run.bulk >= 10_000_000, found["with"] / found["without"]
    run.at_most(bar, "with / without", ratio, _OVER_UNMARKED if full else None)


def _read(table: str, version: int) -> Case:
    def case() -> float:
        handle = dk.DeltaTable(table, version)
        started = time.perf_counter()
        for _ in pa.RecordBatchReader.from_stream(handle.scan()):
            pass
        return time.perf_counter() - started

    return case


def _measure_change(
    run: Run, shape: str, kind: str, made: dict[str, tuple[str, str]]
) -> None:
    """Measure one kind of change, each time in a process of its own."""
    bar, full = f"{kind} in {short(run.bulk)} {shape} rows", run.bulk >= 10_000_000
    took: dict[str, list[float]] = {name: [] for name in made}
    used, written = dict.fromkeys(made, 0), dict.fromkeys(made, 0)
    for seed in range(_ROUNDS):
        for name, (large, warm) in made.items():
            before = _stored_bytes(large)
            found = run_child("change", shape, kind, large, warm, seed, run.bulk)
            took[name].append(found["seconds"])
            used[name] = max(used[name], found["used_bytes"])
            written[name] += _stored_bytes(large) - before
            # Files that no version needs any more would fill the disk.
            dk.DeltaTable(large).vacuum(
                0, dry_run=False, enforce_retention_duration=False
            )
    seconds = {name: statistics.median(found) for name, found in took.items()}
    for name in made:
        run.report(bar, name, seconds[name] * 1000, "ms")
        run.report(bar, f"{name}, memory", used[name] / 1e6, "MB")
    faster, memory, stored = _CHANGED[kind] if full else (None, None, None)
    ratio = seconds["deltalake"] / seconds["ours"]
    run.at_least(bar, "deltalake / ours", ratio, faster)
    ratio = used["ours"] / max(used["deltalake"], 1)
    run.at_most(bar, "ours / deltalake, memory", ratio, memory)
    ratio = written["ours"] / max(written["deltalake"], 1)
    run.at_most(bar, "ours / deltalake, bytes written", ratio, stored)


def _stored_bytes(table: str) -> int:
    folder = Path(dk.DeltaTable(table).table_uri.removeprefix("file://"))
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _scattered(seed: int, rows: int) -> list[int]:
    """Return a thousand ids of a table of `rows` rows."""
    found = np.random.default_rng(seed).choice(rows, 1000, replace=False)
    return [int(number) for number in found]


def _delete(handle: deltalake.DeltaTable, _: RowsOf, seed: int, rows: int) -> None:
    handle.delete(f"id IN ({', '.join(map(str, _scattered(seed, rows)))})")


def _upsert(
    handle: deltalake.DeltaTable, rows_of: RowsOf, seed: int, rows: int
) -> None:
    ids = pa.array(_scattered(seed + 100, rows))
    source = rows_of(1000, 0).set_column(0, "id", ids)
    (
        handle.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )


def _update(handle: deltalake.DeltaTable, _: RowsOf, seed: int, rows: int) -> None:
    where = f"id = {_scattered(seed + 200, rows)[0]}"
    handle.update({"amount": "amount + 1"}, predicate=where)


SHAPES: dict[str, RowsOf] = {"narrow": _rows, "wide": _wide_rows}
CHANGES = {
    "delete of 1,000": _delete,
    "upsert of 1,000": _upsert,
    "update of 1": _update,
}
# times faster than deltalake, and its share of memory and of bytes written
_CHANGED: dict[str, tuple[float | None, float | None, float | None]] = {
    "delete of 1,000": (8, 0.5, 0.01),
    "upsert of 1,000": (5, 0.5, None),
    "update of 1": (None, None, None),
}


def measure_writers(run: Run) -> None:
    """Measure processes that append single rows to one table, against deltalake."""
    ours, theirs = _New(run, run.database("writers").uri), _New(run, None)
    rates, failures = {}, {}
    for name, new in (("ours", ours), ("deltalake", theirs)):
        answers = _write(new)
        # Not `_WRITING_S`, because a process may still be retrying when its time is up.
        longest_s = max(answer["seconds"] for answer in answers)
        rates[name] = sum(answer["appended"] for answer in answers) / longest_s
        failed = [text for answer in answers for text in answer["failures"]]
        failures[name] = len(failed)
        run.notes += [f"{name}: {text[:200]}" for text in failed[:1]]
    bar = f"{_WRITERS} processes append"
    for name, rate in rates.items():
        run.report(bar, name, rate, "/s")
    ratio = rates["ours"] / rates["deltalake"]
    run.at_least(bar, "ours / deltalake, throughput", ratio, _MORE)
    run.at_most(bar, "failures, ours", failures["ours"], 0, "")
    run.report(bar, "failures, deltalake", failures["deltalake"], "")


def _write(new: _New) -> list[dict[str, Any]]:
    table = new.make()
    given = [(table, new.make(), _WRITING_S) for _ in range(_WRITERS)]
    return run_together("append", given)


def measure_deleters(run: Run) -> None:
    """Measure processes that delete other rows of one file, against deltalake."""
    bar, schema = f"{_WRITERS} processes delete rows of one file", _rows(0, 0).schema
    vectors = {"delta.enableDeletionVectors": "true"}
    for name, new, properties in (
        ("ours", _New(run, run.database("deleters").uri), vectors),
        ("deltalake", _New(run, None), None),
    ):
        table, *warm = (new.make(schema, properties) for _ in range(_WRITERS + 1))
        dk.write_deltalake(table, _rows(_DELETED_FROM, 0), mode="append")
        for uri in warm:
            dk.write_deltalake(uri, _rows(1000, 0), mode="append")
        given = [(table, uri, number) for number, uri in enumerate(warm)]
        answers = run_together("delete", given)
        failed = [text for answer in answers for text in answer["failures"]]
        deleted = sum(answer["deleted"] for answer in answers)
        longest_s = max(answer["seconds"] for answer in answers)
        left = pa.table(dk.DeltaTable(table).scan()).num_rows
        run.report(bar, name, deleted / longest_s, "/s")
        run.notes += [f"{name}: {text[:200]}" for text in failed[:1]]
        most = 0 if name == "ours" else None
        run.at_most(
            bar, f"deletes that had to run again, {name}", len(failed), most, ""
        )
        wrong = abs(_DELETED_FROM - deleted - left)
        run.at_most(bar, f"rows that were lost or came back, {name}", wrong, most, "")
