"""Optimize: the same rows in fewer files, or in an order that is read faster."""

# ruff: noqa: N802, N803 - delta-spark's names

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from delkalakedb.catalog import Snapshot
from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import Add
from delkalakedb.model.predicate import Anything, Predicate
from delkalakedb.spark.frames import FILE_COLUMN
from delkalakedb.spark.handles import Handle
from delkalakedb.spark.output import Output, commit_info
from delkalakedb.spark.target import Files, Target, pruning
from delkalakedb.spark.zorder import check_z_order, z_order
from delkalakedb.workspace import Operation
from delkalakedb.workspace.inplace import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DeltaOptimizeBuilder"]

_MAX_BYTES = "spark.databricks.delta.optimize.maxFileSize"
_MIN_BYTES = "spark.databricks.delta.optimize.minFileSize"
_DEFAULT_BYTES = 1024**3
_BIN = "__dk_bin"
_SIZES = """STRUCT<min: BIGINT, max: BIGINT, avg: DOUBLE, totalFiles: BIGINT,
    totalSize: BIGINT>"""
_RESULT = f"""
    path STRING, metrics STRUCT<
        numFilesAdded: BIGINT, numFilesRemoved: BIGINT,
        filesAdded: {_SIZES}, filesRemoved: {_SIZES},
        partitionsOptimized: BIGINT, totalConsideredFiles: BIGINT,
        totalFilesSkipped: BIGINT>
"""
Targeted = Callable[[Snapshot], Target]
Bins = list[list[Add]]


class DeltaOptimizeBuilder:
    """Which files to optimize, and how."""

    def __init__(
        self, targeted: Targeted, handle: Handle, where: str | None = None
    ) -> None:
        self._targeted = targeted
        self._handle = handle
        self._where = where

    def where(self, partitionFilter: str) -> "DeltaOptimizeBuilder":
        """Only partitions for which a condition holds."""
        return DeltaOptimizeBuilder(self._targeted, self._handle, partitionFilter)

    def executeCompaction(self) -> "DataFrame":
        """Write small files anew as larger ones; one row with what that took."""
        return self._execute([])

    def executeZOrderBy(self, *cols: str | Sequence[str]) -> "DataFrame":
        """Write files anew with rows together that are alike in some columns."""
        names = [n for col in cols for n in ([col] if isinstance(col, str) else col)]
        check_z_order(self._handle.snapshot().metadata, names)
        return self._execute(names)

    def _execute(self, z_order_by: list[str]) -> "DataFrame":
        target = self._targeted(self._handle.snapshot())
        where = Anything() if self._where is None else pruning(self._where, target)

        def run(snapshot: Snapshot) -> Work[dict[str, Any]]:
            found = self._targeted(snapshot)
            return _Optimization(found, self._where, z_order_by).run(where)

        done = self._handle.perform(Operation("optimize", run, where, rearranges=True))
        row = (target.snapshot.table.location, done)
        return target.spark.createDataFrame([row], _RESULT)


@dataclass(frozen=True)
class _Optimization:
    """The optimization of one version of a table."""

    target: Target
    where: str | None
    z_order_by: list[str]

    def run(self, where: Predicate) -> Work[dict[str, Any]]:
        """Write the files anew."""
        considered = self._considered(where)
        bins = self._all(considered) if self.z_order_by else self._small(considered)
        chosen = considered.only([add.path for adds in bins for add in adds])
        if not chosen:
            return Work(_result(considered, chosen, [], bins))
        with Output(self.target) as out:
            out.write(self._arranged(chosen, bins))
            info = commit_info("OPTIMIZE", self._parameters(), _metrics(chosen, out))
            result = _result(considered, chosen, out.adds, bins)
            return out.work(result, info, chosen.adds, rearranged=True)

    def _considered(self, where: Predicate) -> Files:
        files = self.target.files(where)
        if self.where is None:
            return files
        decided = self.target.decided(files, self.where)
        if decided is None:
            raise DeltaError(
                f"{self.target.snapshot.table.name}: {self.where!r} isn't a condition "
                "on partition columns alone; optimize rewrites whole files"
            )
        return decided

    def _small(self, files: Files) -> Bins:
        """Files that together make larger ones, or that lose their vectors."""
        least, most = self._bytes(_MIN_BYTES), self._bytes(_MAX_BYTES)
        small = [a for a in files.adds if a.size < least or a.deletion_vector]
        bins = [b for part in _by_partition(small) for b in _packed(part, most)]
        return [b for b in bins if len(b) > 1 or b[0].deletion_vector]

    def _all(self, files: Files) -> Bins:
        most = self._bytes(_MAX_BYTES)
        return [b for part in _by_partition(files.adds) for b in _packed(part, most)]

    def _arranged(self, chosen: Files, bins: Bins) -> "DataFrame":
        partitions = self.target.metadata.partition_columns
        if self.z_order_by:
            rows = self.target.frame(chosen)
            num_rows = sum(n or 0 for n in chosen.rows.values())
            order = z_order(rows, self.z_order_by, partitions, num_rows)
            if len(bins) > len(_partitions(bins)):
                placed = rows.repartitionByRange(len(bins), *order)
                return placed.sortWithinPartitions(*order)
            return self._binned(chosen, bins).sortWithinPartitions(*order)
        return self._binned(chosen, bins)

    def _binned(self, chosen: Files, bins: Bins) -> "DataFrame":
        """The rows of each bin together, and of no other with them."""
        numbers = [(add.path, i) for i, adds in enumerate(bins) for add in adds]
        table = self.target.spark.createDataFrame(
            numbers, f"{FILE_COLUMN} STRING, {_BIN} INT"
        )
        rows = self.target.frame(chosen, tagged=True)
        binned = rows.join(sf.broadcast(table), FILE_COLUMN)
        placed = binned.repartitionById(len(bins), sf.col(_BIN))
        return placed.select(*self.target.names)

    def _bytes(self, setting: str) -> int:
        return int(str(self.target.spark.conf.get(setting, str(_DEFAULT_BYTES))))

    def _parameters(self) -> dict[str, Any]:
        given = [] if self.where is None else [self.where]
        return {
            "predicate": json.dumps(given, ensure_ascii=False),
            "zOrderBy": json.dumps(self.z_order_by, ensure_ascii=False),
            "clusterBy": "[]",
            "auto": False,
        }


def _by_partition(adds: Sequence[Add]) -> Iterator[list[Add]]:
    parts: defaultdict[Any, list[Add]] = defaultdict(list)
    for add in adds:
        parts[frozenset(add.partition_values.items())].append(add)
    yield from parts.values()


def _partitions(bins: Bins) -> set[Any]:
    return {frozenset(adds[0].partition_values.items()) for adds in bins}


def _packed(adds: list[Add], most_bytes: int) -> Bins:
    """The files in bins, none larger than can be unless a file alone is."""
    bins: Bins = []
    room = -1
    for add in sorted(adds, key=lambda add: add.size):
        if add.size > room:
            bins.append([])
            room = most_bytes
        bins[-1].append(add)
        room -= add.size
    return bins


def _metrics(gone: Files, out: Output) -> dict[str, int]:
    sizes = sorted(add.size for add in out.adds)
    names = ("minFileSize", "p25FileSize", "p50FileSize", "p75FileSize", "maxFileSize")
    return {
        "numAddedFiles": len(out.adds),
        "numAddedBytes": out.size_bytes,
        "numRemovedFiles": len(gone),
        "numRemovedBytes": gone.size_bytes,
        "numDeletionVectorsRemoved": gone.num_vectors,
        **{
            name: sizes[(len(sizes) - 1) * quarter // 4]
            for quarter, name in enumerate(names)
            if sizes
        },
    }


def _result(
    considered: Files, gone: Files, adds: list[Add], bins: Bins
) -> dict[str, Any]:
    return {
        "numFilesAdded": len(adds),
        "numFilesRemoved": len(gone),
        "filesAdded": _sizes(adds),
        "filesRemoved": _sizes(gone.adds),
        "partitionsOptimized": len(_partitions(bins)),
        "totalConsideredFiles": len(considered),
        "totalFilesSkipped": len(considered) - len(gone),
    }


def _sizes(adds: Sequence[Add]) -> dict[str, Any]:
    sizes = [add.size for add in adds]
    total = sum(sizes)
    return {
        "min": min(sizes, default=None),
        "max": max(sizes, default=None),
        "avg": total / len(sizes) if sizes else 0.0,
        "totalFiles": len(sizes),
        "totalSize": total,
    }
