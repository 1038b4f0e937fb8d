"""Pruning against brute force: it may keep a file too many, never one too few."""

import json
import math
import random
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given, settings, strategies as st

from delkalakedb.model.predicate.matcher import HasNull, Range, drivers, matcher
from delkalakedb.model.predicate.predicate import parse_predicate
from delkalakedb.model.schema.schema import Schema, parse_schema
from delkalakedb.model.stats.stats import (
    ALL_NULL,
    class_reach,
    column_bounds,
    index_entry,
    parse_stats,
    partition_bounds,
)
from delkalakedb.model.stats.values import kind_of
from tests.support.examples import examples

TYPES = {
    "i": "long",
    "n": "integer",
    "f": "float",
    "d": "double",
    "m": "decimal(38,10)",
    "w": "decimal(38,0)",
    "s": "string",
    "b": "boolean",
    "dt": "date",
    "ts": "timestamp",
    "nz": "timestamp_ntz",
    "x": "long",
    "p": "string",
    "q": "long",
    "h": "double",
}
PARTITIONS = ("p", "q", "h")
SQL_NAMES = {"x": "st.x"}
OPS = ("=", "!=", "<", "<=", ">", ">=")
TOP = "\U0010ffff"


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _schema() -> Schema:
    fields = [_field(name, kind) for name, kind in TYPES.items() if name != "x"]
    fields.append(_field("st", {"type": "struct", "fields": [_field("x", "long")]}))
    return parse_schema(json.dumps({"type": "struct", "fields": fields}))


SCHEMA = _schema()
COLUMNS = {name: SCHEMA.column(SQL_NAMES.get(name, name)) for name in TYPES}


def _single(number: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


# Values


# A theme keeps a column's values near each other, where bounds decide.
BASES = [0, 2**53, -(2**53), 2**62, 2**63 - 4, -(2**63) + 3]


def _integers(rng: random.Random, theme: int) -> int:
    return BASES[theme] + rng.randrange(-3, 4)


def _doubles(rng: random.Random, theme: int) -> float:
    special = [math.nan, math.nan, math.inf, -math.inf, 0.0, -0.0]
    near = [0.1, 5e-324, 1e308, 1e39, 3.4028235e38, 16777216.0][theme]
    number = near * rng.choice([1, -1, 1 + 2**-52, 1 + 2**-23, 1 + 2**-24, 0.5])
    return rng.choice([number, number, float(rng.randrange(4)), rng.choice(special)])


def _decimals(rng: random.Random, theme: int, scale: int) -> Decimal:
    digits = [1, 12, 19, 20, 30, 38][theme]
    near = 10**digits - 1 - rng.randrange(4)
    whole = 10**scale * rng.randrange(3)
    return Decimal(rng.choice([near, near, -near, whole])).scaleb(-scale)


def _texts(rng: random.Random, theme: int) -> str:
    alphabet = ["a", "b", "\x7f", "é", "\ud7ff", "\ue000", "😀", TOP, TOP, "\0", "'"]
    head = ["", "k" * 31, "k" * 63, "k" * 64, "é" * 32, "é" * 63][theme]
    return head + "".join(rng.choice(alphabet) for _ in range(rng.randrange(4)))


def _days(rng: random.Random, theme: int) -> date:
    first = [date(2024, 1, 1), date(1, 1, 1), date(9999, 12, 28), date(1900, 2, 27)]
    return first[theme % 4] + timedelta(days=rng.randrange(4))


def _moments(rng: random.Random, theme: int, zone: Any) -> datetime:
    day = datetime.combine(_days(rng, theme), datetime.min.time(), zone)
    micros = rng.choice([0, 1, 999, 1000, 123456, 123457, 999999])
    return day + timedelta(seconds=rng.choice([0, 1]), microseconds=micros)


MAKERS: dict[str, Callable[[random.Random, int], Any]] = {
    "long": _integers,
    "integer": lambda rng, theme: rng.randrange(-3, 3),
    "float": lambda rng, theme: _single(_doubles(rng, theme)),
    "double": _doubles,
    "decimal(38,10)": lambda rng, theme: _decimals(rng, theme, 10),
    "decimal(38,0)": lambda rng, theme: _decimals(rng, theme, 0),
    "string": _texts,
    "boolean": lambda rng, theme: rng.random() < 0.5,
    "date": _days,
    "timestamp": lambda rng, theme: _moments(rng, theme, UTC),
    "timestamp_ntz": lambda rng, theme: _moments(rng, theme, None),
}


def _key(value: Any) -> Any:
    """NaN is greater than every number."""
    nan = isinstance(value, float) and math.isnan(value)
    return (1, 0) if nan else (0, value)


# Statistics as writers give them


def _spark_text_max(text: str) -> str | None:
    if len(text) <= 32:
        return text
    for length in range(32, min(len(text), 64)):
        for tie in ("\x7f", TOP):
            if text[length] < tie:
                return text[:length] + tie
    return None


def _rust_text_max(text: str) -> str | None:
    if len(text.encode()) <= 64:
        return text
    head = text.encode()[:64].decode(errors="ignore")
    for length in range(len(head), 0, -1):
        code = ord(head[length - 1]) + 1
        code = 0xE000 if code == 0xD800 else code
        if code <= 0x10FFFF:
            return head[: length - 1] + chr(code)
    return None


def _capped(number: Decimal) -> Any:
    if number == number.to_integral_value():
        return max(-(2**63), min(2**63 - 1, int(number)))
    return float(number)


def _written_time(value: datetime, rng: random.Random) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    zone = rng.choice(["Z", "+00:00"]) if value.tzinfo else ""
    return text.replace("T", rng.choice("T ")) + zone


def _spark_bound(value: Any, name: str, rng: random.Random, last: bool) -> Any:
    if isinstance(value, str):
        return _spark_text_max(value) if last else value[:32]
    if isinstance(value, Decimal):
        return f"@@{value:f}@@"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("inf", "Infinity").replace("nan", "NaN")
    if TYPES[name] == "float":
        return next(
            float(text)
            for digits in range(1, 12)
            if _single(float(text := f"{value:.{digits}g}")) == value
        )
    return _rust_bound(value, name, rng, last)


def _rust_bound(value: Any, name: str, rng: random.Random, last: bool) -> Any:
    if isinstance(value, str):
        head = value.encode()[:64].decode(errors="ignore")
        return _rust_text_max(value) if last else head
    if isinstance(value, Decimal):
        return _capped(value)
    if isinstance(value, float) and math.isinf(value):
        return None
    if isinstance(value, datetime):
        return _written_time(value, rng)
    return value.isoformat() if isinstance(value, date) else value


def _stats(rows: list[dict[str, Any]], spark: bool, rng: random.Random) -> str:
    stats: dict[str, Any] = {"numRecords": len(rows)}
    bound = _spark_bound if spark else _rust_bound
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in rows if row[name] is not None]
        nulls[name] = len(rows) - len(values)
        if not spark:
            values = [value for value in values if value == value]
        if name in PARTITIONS or not values or (spark and TYPES[name] == "boolean"):
            continue
        lows[name] = bound(min(values, key=_key), name, rng, False)
        highs[name] = bound(max(values, key=_key), name, rng, True)
    for key, found in (("minValues", lows), ("maxValues", highs), ("nullCount", nulls)):
        if "x" in found:
            found["st"] = {"x": found.pop("x")}
        if rng.random() < 0.95:
            stats[key] = found
    return json.dumps(stats).replace('"@@', "").replace('@@"', "")


def _partition_text(value: Any) -> str | None:
    return None if value is None else str(value)


# Predicates: made as trees, written as SQL, and evaluated with three-valued logic


def _tree(rng: random.Random, names: list[str], rows: list[Any], depth: int) -> Any:
    shape = rng.random()
    if depth and shape < 0.55:
        op = rng.choice(["and", "and", "or", "not"])
        count = 1 if op == "not" else rng.randrange(1, 4)
        return op, [_tree(rng, names, rows, depth - 1) for _ in range(count)]
    name = rng.choice(names)
    if shape < 0.6:
        return "constant", rng.choice([True, False, None])
    if shape < 0.68:
        return rng.choice(["null", "notnull"]), name
    if shape < 0.76:
        return "in", name, [_literal(rng, name, rows) for _ in range(rng.randrange(4))]
    if shape < 0.82:
        return "between", name, _literal(rng, name, rows), _literal(rng, name, rows)
    if shape < 0.88 and TYPES[name] == "string":
        return "like", name, (_literal(rng, name, rows) or "").split("%")[0]
    op = rng.choice([*OPS, "<=>"])
    return "compare", name, op, _literal(rng, name, rows), rng.random() < 0.3


def _literal(rng: random.Random, name: str, rows: list[Any]) -> Any:
    if rng.random() < 0.05:
        return None
    known = rng.choice(rows)[name]
    if known is not None and rng.random() < 0.6:
        return known
    kind = TYPES[name].replace("float", "double")
    return MAKERS[kind](rng, rng.randrange(6))


def _sql_literal(value: Any, rng: random.Random) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, datetime):
        text = value.isoformat(sep=rng.choice(" T"))
        return rng.choice(["'{}'", "TIMESTAMP '{}'", "'{}'::timestamp"]).format(text)
    if isinstance(value, date):
        return rng.choice(["'{}'", "DATE '{}'", "CAST('{}' AS DATE)"]).format(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"CAST('{value}' AS DOUBLE)"
    return f"{value:f}" if isinstance(value, Decimal) else repr(value)


def _sql(tree: Any, rng: random.Random) -> str:
    kind, *rest = tree
    if kind in ("and", "or"):
        return "(" + f" {kind} ".join(_sql(part, rng) for part in rest[0]) + ")"
    if kind == "not":
        return f"NOT ({_sql(rest[0][0], rng)})"
    if kind == "constant":
        return {True: "TRUE", False: "FALSE", None: "NULL"}[rest[0]]
    name = SQL_NAMES.get(rest[0], rng.choice(['"{}"', "`{}`", "{}"]).format(rest[0]))
    if kind == "null" or kind == "notnull":
        return f"{name} IS {'NOT ' if kind == 'notnull' else ''}NULL"
    if kind == "in":
        return f"{name} IN ({', '.join(_sql_literal(v, rng) for v in rest[1])})"
    if kind == "between":
        low, high = (_sql_literal(value, rng) for value in rest[1:])
        return f"{name} BETWEEN {low} AND {high}"
    if kind == "like":
        pattern = rest[1].replace("!", "!!").replace("_", "!_") + "%"
        return f"{name} LIKE {_sql_literal(pattern, rng)} ESCAPE '!'"
    _, op, value, flipped = rest
    literal = _sql_literal(value, rng)
    mirrored = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    return (
        f"{literal} {mirrored.get(op, op)} {name}"
        if flipped
        else (f"{name} {op} {literal}")
    )


def _compare(left: Any, op: str, right: Any) -> bool | None:
    if left is None or right is None:
        return (left is None and right is None) if op == "<=>" else None
    a, b = _key(left), _key(right)
    return {
        "=": a == b,
        "<=>": a == b,
        "!=": a != b,
        "<": a < b,
        "<=": a <= b,
        ">": a > b,
        ">=": a >= b,
    }[op]


def _all(results: list[bool | None]) -> bool | None:
    if any(result is False for result in results):
        return False
    return None if any(result is None for result in results) else True


def _any(results: list[bool | None]) -> bool | None:
    return _not(_all([_not(result) for result in results]))


def _not(result: bool | None) -> bool | None:
    return None if result is None else not result


def _holds(tree: Any, row: dict[str, Any], read: Any) -> bool | None:
    kind, *rest = tree
    if kind in ("and", "or"):
        results = [_holds(part, row, read) for part in rest[0]]
        return _all(results) if kind == "and" else _any(results)
    if kind == "not":
        return _not(_holds(rest[0][0], row, read))
    if kind == "constant":
        return bool(rest[0]) if rest[0] is not None else None
    value = row[rest[0]]
    if kind == "null":
        return value is None
    if kind == "notnull":
        return value is not None
    if kind == "like":
        return None if value is None else value.startswith(rest[1])
    value = read(value, rest[0])
    if kind == "in":
        return _any([_compare(value, "=", read(item, rest[0])) for item in rest[1]])
    if kind == "between":
        low = _compare(value, ">=", read(rest[1], rest[0]))
        return _all([low, _compare(value, "<=", read(rest[2], rest[0]))])
    return _compare(value, rest[1], read(rest[2], rest[0]))


# Engines compare decimals with literals as they are or as doubles, and round the
# literals of 32-bit columns or don't.
def _as_it_is(value: Any, name: str) -> Any:
    return value


def _as_double(value: Any, name: str) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def _as_single(value: Any, name: str) -> Any:
    rounded = TYPES[name] == "float" and value is not None
    return _single(value) if rounded else value


READINGS = (_as_it_is, _as_double, _as_single)


def _scan_finds(term: Range | HasNull, partition_values: Any, stats: str) -> bool:
    column = term.column
    kind = kind_of(column.type)
    assert kind is not None
    if column.path[0] in PARTITIONS:
        bounds = partition_bounds(column, partition_values[column.physical[0]])
    else:
        bounds = column_bounds(column, kind, parse_stats(stats))
    if isinstance(term, HasNull):
        return bounds.has_null
    lo, hi, number = index_entry(bounds, kind)
    if number == ALL_NULL:
        return False
    below = term.hi is None or (lo <= term.hi and hi <= class_reach(number, term.hi))
    return below and (term.lo is None or hi >= term.lo)


def _files(rng: random.Random, rows: list[Any]) -> list[list[Any]]:
    sizes = [rng.randrange(1, 4) for _ in rows]
    files, at = [], 0
    ordered = sorted(rows, key=lambda row: [str(row[name]) for name in PARTITIONS])
    while at < len(ordered):
        chunk = ordered[at : at + sizes[at]]
        same = [str(chunk[0][name]) for name in PARTITIONS]
        chunk = [r for r in chunk if [str(r[name]) for name in PARTITIONS] == same]
        files.append(chunk)
        at += len(chunk)
    return files


def _check(tree: Any, predicate: Any, file: list[Any], seed: random.Random) -> None:
    partition_values = {name: _partition_text(file[0][name]) for name in PARTITIONS}
    live = [row for row in file if seed.random() < 0.9]
    if not any(_holds(tree, row, read) is True for row in live for read in READINGS):
        return
    may_match = matcher(predicate, PARTITIONS)
    found = drivers(predicate, PARTITIONS)
    for spark in (True, False):
        stats = _stats(file, spark, seed)
        assert may_match(partition_values, stats), (tree, stats)
        for driver in found:
            hit = any(_scan_finds(term, partition_values, stats) for term in driver)
            assert hit, (tree, driver, stats)


def _table(rng: random.Random) -> tuple[list[str], list[Any]]:
    """Rows, and the columns to ask for: one more often than the others."""
    name = rng.choice([name for name in TYPES if name not in PARTITIONS])
    other = rng.choice([other for other in TYPES if other not in (name, *PARTITIONS)])
    themes = {key: rng.randrange(6) for key in TYPES}
    fixed = {key: MAKERS[TYPES[key]](rng, themes[key]) or None for key in PARTITIONS}

    def cell(key: str) -> Any:
        if key in PARTITIONS and rng.random() < 0.7:
            return fixed[key]
        value = MAKERS[TYPES[key]](rng, themes[key])
        # Null and the empty text are one partition value.
        return None if rng.random() < 0.1 or (value == "" and key == "p") else value

    rows = [{key: cell(key) for key in (name, other, *PARTITIONS)} for _ in range(12)]
    return [name, name, name, name, other, *PARTITIONS], rows


@settings(max_examples=examples(500), deadline=None)
@given(st.integers(0, 2**64))
def test_a_file_with_a_matching_row_is_always_kept(seed: int) -> None:
    rng = random.Random(seed)
    names, rows = _table(rng)
    files = _files(rng, rows)
    for _ in range(4):
        tree = _tree(rng, names, rows, 3)
        predicate = parse_predicate(_sql(tree, rng), SCHEMA, PARTITIONS)
        for file in files:
            _check(tree, predicate, file, rng)


def _tuple(rng: random.Random, names: list[str], rows: list[Any]) -> tuple[Any, Any]:
    name = rng.choice(names)
    op = rng.choice([*OPS, "in", "not in"])
    drawn = [_literal(rng, name, rows) for _ in range(rng.randrange(1, 4))]
    values = [value for value in drawn if value not in (None, "") and value == value]
    column = SQL_NAMES.get(name, name)
    if not values:
        op = "in"
    if op in ("in", "not in"):
        tree: Any = ("in", name, values)
        return (column, op, values), tree if op == "in" else ("not", [tree])
    return (column, op, values[0]), ("compare", name, op, values[0], False)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**64))
def test_a_file_with_a_row_that_matches_tuples_is_always_kept(seed: int) -> None:
    rng = random.Random(seed)
    names, rows = _table(rng)
    files = _files(rng, rows)
    for _ in range(4):
        groups = [
            [_tuple(rng, names, rows) for _ in range(rng.randrange(1, 3))]
            for _ in range(rng.randrange(1, 3))
        ]
        tree = ("or", [("and", [part for _, part in group]) for group in groups])
        tuples = [[item for item, _ in group] for group in groups]
        predicate = parse_predicate(tuples, SCHEMA, PARTITIONS)
        for file in files:
            _check(tree, predicate, file, rng)
