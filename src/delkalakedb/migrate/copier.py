"""Copy: hand tables over from one catalog to another, with all of their history.

Two catalogs must never both decide the next version of one `_delta_log`. So a copy
first puts a hold on the table in the source, and from then on the source refuses
commits to it. The rows are staged in the target part by part, compared with the source,
and shown in one transaction. After that the target owns the table; the source keeps it
read-only, or forgets it.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from delkalakedb.catalog import Catalog, connect
from delkalakedb.catalog.commit import Outbox
from delkalakedb.catalog.load import (
    MOVED,
    MOVING,
    PARTS,
    StagedTable,
    count_rows,
    find_difference,
    find_table_at,
    forget_table,
    hold_mirror,
    inserts,
    read_rows,
    renumbered,
    set_hold,
)
from delkalakedb.catalog.read import Head
from delkalakedb.errors import CatalogError, MirrorError, ReadOnlyError
from delkalakedb.progress import Progress, ProgressOption, report, reporting
from delkalakedb.settings import Uri

State = Literal["copied", "already there", "would copy"]


@dataclass(frozen=True, slots=True)
class Copied:
    """A table that another catalog has now, and the number of rows copied to it.

    Args:
        table: the table's name.
        location: where the table's files are.
        state: `copied`, `already there`, or `would copy`.
        version: the newest version.
        versions: how many versions the catalog has.
        num_files: the number of live files.
        rows: how many rows of the catalog's SQL tables were copied.
        seconds: how long the copy took.

    Examples:
        >>> source, target = "deltasql://sqlite/meta.db", "deltasql://sqlite/new.db"
        >>> (copied,) = dk.copy_catalog(source, target)
        >>> copied.table, copied.state, copied.versions
        ('sales', 'copied', 2)
    """

    table: str
    location: str
    state: State
    version: int
    versions: int
    num_files: int
    rows: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values.

        Returns:
            The values by field.

        Examples:
            >>> source, target = "deltasql://sqlite/meta.db", "deltasql://sqlite/new.db"
            >>> (copied,) = dk.copy_catalog(source, target, dry_run=True)
            >>> copied.to_dict()["state"]
            'would copy'
        """
        return asdict(self)


def copy_catalog(
    source: str | Uri,
    target: str | Uri,
    tables: Sequence[str] | None = None,
    *,
    move: bool = False,
    dry_run: bool = False,
    progress: ProgressOption = None,
) -> list[Copied]:
    """Hand tables over to another catalog, with all of their history.

    The tables' files stay where they are. Repeat the call to continue a copy that was
    interrupted.

    Args:
        source: the catalog that has the tables.
        target: the catalog that gets them; created if there is none.
        tables: names of tables; all tables of `source` by default.
        move: make the source forget the tables in the end, instead of keeping them
            read-only.
        dry_run: only report what would be copied.
        progress: called with a `Progress` whose unit is the rows of a table in the
            catalog; True draws a bar.

    Returns:
        What was done for each table.

    Raises:
        ReadOnlyError: A table is followed, or was moved to another catalog.
        MirrorError: The target has another table at a location, or another process
            holds a table.
        CatalogError: Both are one catalog, or the copied rows differ.

    Examples:
        >>> source, target = "deltasql://sqlite/meta.db", "deltasql://sqlite/new.db"
        >>> [copied.state for copied in dk.copy_catalog(source, target)]
        ['copied']
        >>> dk.connect(target)["sales"].count()
        3
    """
    with connect(source) as ours, reporting(progress):
        names = tables or [table.name for table in ours.tables()]
        if dry_run:
            return [_preview(ours, name) for name in names]
        with connect(target) as theirs:
            return [_copy(ours, theirs, name, move=move) for name in names]


def _preview(source: Catalog, name: str) -> Copied:
    head = source.log(name).head()
    rows = sum(count_rows(source._backend, part, head.table_id) for part in PARTS)
    return _copied(head, "would copy", rows, time.monotonic())


def _copy(source: Catalog, target: Catalog, name: str, *, move: bool) -> Copied:
    if source._backend is target._backend:
        raise CatalogError(f"{source.uri}: a catalog can't be copied to itself")
    started = time.monotonic()
    head = source.log(name).head()
    moving, moved = f"{MOVING}{target.uri}", f"{MOVED}{target.uri}"
    if head.hold not in (None, moving, moved):
        raise ReadOnlyError(f"{name} isn't copied: it is {head.hold} in {source.uri}")
    there = find_table_at(target, head.location)
    state: State = "copied"
    rows = 0
    if there is not None:
        _check_handed_over(target, head, there)
        state = "already there"
    elif head.hold == moved:
        raise ReadOnlyError(
            f"{name} isn't copied: it was {moved}, which has no such table"
        )
    else:
        rows = _hand_over(source, target, head, moving)
    _end_hold(source, head, moved, move=move)
    return _copied(head, state, rows, started)


def _hand_over(source: Catalog, target: Catalog, head: Head, moving: str) -> int:
    with _held(source, target, head, moving) as head:
        mirror = Outbox(source._backend).load(head.name)
        staged = StagedTable(target, head.name, head.location, _key(source, head))
        rows = _stage(source, target, head, staged)
        ours = (source._backend, head.table_id)
        if differs := find_difference(ours, (target._backend, staged.table_id)):
            staged.drop()
            raise CatalogError(
                f"{head.name} isn't copied: {differs} differs in {target.uri}"
            )
        staged.show(mirror.checkpoint_version, published=mirror.published_version)
    return rows


@contextmanager
def _held(source: Catalog, target: Catalog, head: Head, moving: str) -> Iterator[Head]:
    """Yield the head of a held table; on an error, end the hold if it isn't copied."""
    name = head.name
    if head.hold is None and not set_hold(source, name, moving, before=None):
        raise MirrorError(f"{name} isn't copied: another process holds it; try again")
    try:
        # Waits for a publisher that is at work; the hold lets no other begin.
        with hold_mirror(source, name):
            pass
        yield source.log(name).head()
    except BaseException:
        if find_table_at(target, head.location) is None:
            set_hold(source, name, None, before=moving)
        raise


def _stage(source: Catalog, target: Catalog, head: Head, staged: StagedTable) -> int:
    numbered = renumbered(head, staged.table_id)
    counts = [count_rows(source._backend, part, head.table_id) for part in PARTS]
    total, done = sum(counts), 0
    for part in PARTS:
        before = count_rows(target._backend, part, staged.table_id)
        done += before
        ours = (source._backend, part, head.table_id)
        for rows in read_rows(*ours, before, staged.table_id):
            with staged.writing() as session:
                staged.write(session, numbered, inserts(part, rows))
            done += rows.num_rows
            what = f"copy {head.name}"
            report(Progress(what=what, done=done, total=total, unit="rows"))
    return total


def _end_hold(source: Catalog, head: Head, moved: str, *, move: bool) -> None:
    hold = source.log(head.name).head().hold
    if hold != moved and not set_hold(source, head.name, moved, before=hold):
        raise MirrorError(f"{head.name}: another process changed its hold; copy again")
    if move:
        forget_table(source, head.name, head.version, what="move", published=False)


def _check_handed_over(target: Catalog, head: Head, there: str) -> None:
    """Raise `MirrorError` if two catalogs would write one log."""
    if head.hold is None or there != head.name:
        raise MirrorError(
            f"{head.name} isn't copied: {target.uri} has a table {there} at its "
            "location already; detach it from one of the two"
        )


def _key(source: Catalog, head: Head) -> str:
    told = (str(source.uri), head.table_id, head.first_version, head.version)
    return hashlib.sha256(repr((told, head.timestamp_ms)).encode()).hexdigest()[:16]


def _copied(head: Head, state: State, rows: int, started: float) -> Copied:
    return Copied(
        table=head.name,
        location=head.location,
        state=state,
        version=head.version,
        versions=head.version - head.first_version + 1,
        num_files=head.num_files,
        rows=rows,
        seconds=round(time.monotonic() - started, 3),
    )
