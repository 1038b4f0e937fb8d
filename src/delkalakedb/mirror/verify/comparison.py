"""Comparison of two streams of actions, in any order, in bounded memory.

Each action is added to the sum of its bucket, so that equal sides need one pass. Only
the buckets whose sums differ are read again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from zlib import crc32

import msgspec

from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import KINDS, Action, action_to_dict
from delkalakedb.model.markup import Listing, StateWord, card, grid
from delkalakedb.model.schema.schema import Column, Schema
from delkalakedb.model.stats.stats import Stats, column_bounds, parse_stats
from delkalakedb.model.stats.values import TIMES, kind_of


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between the catalog and the log.

    `where` is a file, `what` the action or the field in it, or None for the whole file.
    `sql` and `log` are the values of the two sides as short text, or None if a side has
    no value.
    """

    version: int
    where: str
    what: str | None
    sql: str | None
    log: str | None
    message: str

    def __str__(self) -> str:
        return f"version {self.version}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """The differences between a table's mirror and the catalog.

    Both are compared at the published version. So a lag of the mirror isn't a
    difference.

    Args:
        table: the table's name.
        ratified_version: the newest version in the catalog.
        published_version: the newest version in the log; -1 for none.
        versions_checked: how many versions were compared.
        differences: the differences that were found.
        complete: whether these are all differences; False if there are more than were
            asked for.

    Examples:
        >>> print(dk.verify("deltasql://sqlite/meta.db?table=sales"))
        sales: ok (ratified 1, published 1, versions checked: 1)
    """

    table: str
    ratified_version: int
    published_version: int
    versions_checked: int
    differences: tuple[Difference, ...] = ()
    complete: bool = True

    @property
    def ok(self) -> bool:
        """Whether there is no difference."""
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values.

        Returns:
            The values by field, and whether the report is `ok`.

        Examples:
            >>> dk.verify("deltasql://sqlite/meta.db?table=sales").to_dict()["ok"]
            True
        """
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {**values, "differences": list(values["differences"]), "ok": self.ok}

    def _repr_html_(self) -> str:
        fields = {
            "mirror": StateWord("ok" if self.ok else "differs"),
            "version": self.ratified_version,
            "published": self.published_version,
            "versions checked": self.versions_checked,
        }
        rows = ((one.version, one.where, one.message) for one in self.differences)
        end = "" if self.complete else "<div>… and more</div>"
        found = grid(["version", "file", "difference"], rows) + end
        return card(f"verify {self.table}", fields, "" if self.ok else found)

    def __str__(self) -> str:
        count = len(self.differences)
        verdict = "ok" if self.ok else f"{count} difference{'s' * (count > 1)}"
        lines = [
            f"{self.table}: {verdict} (ratified {self.ratified_version}, published "
            f"{self.published_version}, versions checked: {self.versions_checked})",
            *(f"  {difference}" for difference in self.differences),
        ]
        return "\n".join(lines if self.complete else [*lines, "  ... and more"])


class Reports(Listing[Report]):
    """The reports on several tables: a list that a notebook shows as a table."""

    @staticmethod
    def _row(item: Report) -> Mapping[str, object]:
        return {
            "table": item.table,
            "mirror": StateWord("ok" if item.ok else "differs"),
            "version": item.ratified_version,
            "published": item.published_version,
            "versions checked": item.versions_checked,
            "differences": "; ".join(map(str, item.differences)),
        }


Body = dict[str, Any]
Form = Callable[[str, Body], Body]

# A checkpoint may say `dataChange: false` of every file.
_UNKEPT = {"add": {"dataChange"}, "remove": {"dataChange", "stats", "tags"}}
_MAPS = frozenset({"partitionValues", "tags", "configuration", "options"})


def as_written(kind: str, body: Body) -> Body:
    """Return all fields of an action, as a commit has them."""
    return body


def as_checkpointed(kind: str, body: Body) -> Body:
    """Return the fields of an action that a checkpoint keeps.

    Null and absent fields are equal there, and unknown fields are lost, because of
    Parquet.
    """
    kept = set(KINDS[kind].__struct_encode_fields__) - _UNKEPT.get(kind, set())
    return plain({name: value for name, value in body.items() if name in kept})


def as_parsed(schema: Schema) -> Form:
    """Return the form of actions in a checkpoint that has typed statistics."""
    columns = schema.leaves()

    def form(kind: str, body: Body) -> Body:
        kept = as_checkpointed(kind, body)
        stats = parse_stats(kept.pop("stats", None))
        return kept if stats is None else kept | {"stats": _typed(stats, columns)}

    return form


def as_unmeasured(kind: str, body: Body) -> Body:
    """Return the fields of an action that a checkpoint without statistics keeps."""
    return as_checkpointed(kind, {n: v for n, v in body.items() if n != "stats"})


def plain(body: Body) -> Body:
    """Return the body without null and empty values, but with all values of maps."""
    return {
        name: plain(value) if isinstance(value, dict) and name not in _MAPS else value
        for name, value in body.items()
        if value is not None and value != {} and value != []
    }


def _typed(stats: Stats, columns: Sequence[Column]) -> Body:
    bounds = {".".join(column.physical): _bounds(column, stats) for column in columns}
    loose = stats.tight_bounds is False
    return {"numRecords": stats.num_records, "loose": loose, "bounds": bounds}


def _bounds(column: Column, stats: Stats) -> list[Any]:
    bounds = column_bounds(column, kind_of(column.type), stats)
    lo, hi = bounds.lo, bounds.hi
    if column.type in TIMES and isinstance(lo, int):
        # Typed statistics are read back with milliseconds as their unit.
        lo //= 1000
    return [lo, hi, bounds.has_null, bounds.has_value]


Source = Callable[[], Iterable[Action]]
# Errors of a broken or missing file, ours and Arrow's.
UNREADABLE = (DeltaError, OSError, ValueError)

_BUCKETS = 4096
# Buckets whose actions are kept in memory at a time.
_BUCKETS_READ = 16
# Characters of a value in a difference.
_SHOWN = 200
_IDENTITY = {"txn": "appId", "domainMetadata": "domain", "cdc": "path"}
_encode = msgspec.json.Encoder(order="sorted").encode
_Bodies = dict[str, list[Body]]


class _BrokenLogError(Exception):
    """The log can't be read; the cause is the error that reading raised."""


def compare(
    version: int, where: str, sql: Source, log: Source, form: Form
) -> Iterator[Difference]:
    """Yield the differences between the actions of the catalog and those of the log.

    Both sides are read once, and once more for each `_BUCKETS_READ` buckets that
    differ.
    """
    try:
        ours, theirs = _sums(sql(), form), _sums(_guarded(log), form)
        if ours == theirs:
            return
        differing = [n for n in range(_BUCKETS) if ours[n] != theirs[n]]
        for start in range(0, len(differing), _BUCKETS_READ):
            some = frozenset(differing[start : start + _BUCKETS_READ])
            both = _read(sql(), form, some), _read(_guarded(log), form, some)
            yield from _mismatches(version, where, *both)
    except _BrokenLogError as error:
        yield broken(version, where, error.__cause__)


def compare_fields(
    version: int, where: str, sql: Body, log: Body, action: str | None = None
) -> Iterator[Difference]:
    """Yield a difference for each field whose values differ."""
    for name in sorted(sql.keys() | log.keys()):
        ours, theirs = _shown(sql, name), _shown(log, name)
        if _encoded(sql, name) != _encoded(log, name):
            what = f"{action}: {name}" if action else name
            message = (
                f"{where}: {what} is {theirs or 'absent'}, in SQL {ours or 'absent'}"
            )
            yield Difference(version, where, what, ours, theirs, message)


def broken(version: int, where: str, why: object) -> Difference:
    """Return the difference for a file that is missing or can't be read."""
    return Difference(version, where, None, None, None, f"{where}: {why}")


def _guarded(log: Source) -> Iterator[Action]:
    """Yield the log's actions; wrap their errors.

    Wrapped errors are distinguished from the catalog's.
    """
    try:
        yield from log()
    except UNREADABLE as error:
        raise _BrokenLogError from error


def _formed(actions: Iterable[Action], form: Form) -> Iterator[tuple[int, str, Body]]:
    for action in actions:
        ((kind, body),) = action_to_dict(action).items()
        if not isinstance(body, dict):
            body = {"value": body}
        key = _key(kind, body)
        yield crc32(key.encode()) % _BUCKETS, key, form(kind, body)


def _key(kind: str, body: Body) -> str:
    if kind in ("add", "remove"):
        vector = body.get("deletionVector")
        mark = f" (deletion vector {vector['pathOrInlineDv']})" if vector else ""
        return f"{kind} {body['path']}{mark}"
    return f"{kind} {body[_IDENTITY[kind]]}" if kind in _IDENTITY else kind


def _sums(actions: Iterable[Action], form: Form) -> list[int]:
    sums = [0] * _BUCKETS
    for bucket, key, body in _formed(actions, form):
        digest = blake2b(_encode([key, body]), digest_size=16).digest()
        sums[bucket] += int.from_bytes(digest, "big")
    return sums


def _read(actions: Iterable[Action], form: Form, buckets: Set[int]) -> _Bodies:
    found: _Bodies = defaultdict(list)
    for bucket, key, body in _formed(actions, form):
        if bucket in buckets:
            found[key].append(body)
    return found


def _mismatches(
    version: int, where: str, ours: _Bodies, theirs: _Bodies
) -> Iterator[Difference]:
    for key in sorted(ours.keys() | theirs.keys()):
        sql, log = ours.get(key, []), theirs.get(key, [])
        if len(sql) == len(log) == 1:
            yield from compare_fields(version, where, sql[0], log[0], key)
        elif sorted(map(_encode, sql)) != sorted(map(_encode, log)):
            yield _counted(version, where, key, sql, log)


def _counted(
    version: int, where: str, key: str, sql: list[Body], log: list[Body]
) -> Difference:
    how = f"{len(log)} times in {where} and {len(sql)} times in SQL"
    if not log:
        how = f"in SQL but not in {where}"
    elif not sql:
        how = f"in {where} but not in SQL"
    ours, theirs = (_text(bodies) if bodies else None for bodies in (sql, log))
    return Difference(version, where, key, ours, theirs, f"{key} is {how}")


def _encoded(body: Body, name: str) -> bytes:
    return _encode(body[name]) if name in body else b""


def _shown(body: Body, name: str) -> str | None:
    return _text(body[name]) if name in body else None


def _text(value: Any) -> str:
    text = _encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
