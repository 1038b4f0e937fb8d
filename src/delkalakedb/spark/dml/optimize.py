"""Rewrite files as fewer larger ones, in the order of a Z curve, or clustered."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, functions as sf
from pyspark.sql.types import ArrayType, MapType, StructType

from delkalakedb.catalog import Snapshot
from delkalakedb.clock import now_ms
from delkalakedb.errors import DeltaError, SchemaMismatchError
from delkalakedb.model.actions import Add, Metadata, known
from delkalakedb.model.predicate.predicate import Predicate
from delkalakedb.model.rules.clusters import clustered, clustering_runs, to_cluster
from delkalakedb.model.stats.stats import measured_columns
from delkalakedb.spark.dml.rewrite import Targeted
from delkalakedb.spark.pyspark_api import repartition_by_id
from delkalakedb.spark.reader import FILE_COLUMN, Files, Target, others
from delkalakedb.spark.schemas import quoted, spark_schema, table_schema
from delkalakedb.spark.writer import Output, commit_info
from delkalakedb.write import Operation
from delkalakedb.write.engines import InPlace, Purge, Work

# bits of a column's rank in the Z curve
_BITS = 7
# rows that ranks are estimated from
_SAMPLED_ROWS = 20_000


def check_z_order(metadata: Metadata, names: Sequence[str]) -> None:
    """Raise `SchemaMismatchError` if rows can't be Z-ordered by the columns `names`."""
    if not names:
        raise SchemaMismatchError("executeZOrderBy needs at least one column")
    for column in spark_schema(metadata, list(names)):
        if column.name in metadata.partition_columns:
            raise SchemaMismatchError(
                f"{column.name} is a partition column. Z-Ordering can only be "
                "performed on data columns"
            )
        if isinstance(column.dataType, ArrayType | MapType | StructType):
            raise SchemaMismatchError(
                f"{column.name} is of type {column.dataType.simpleString()}, which has "
                "no order"
            )


def z_order(
    rows: DataFrame, columns: Sequence[Column], partitions: Sequence[str], num_rows: int
) -> list[Column]:
    """Return the sort keys that put the rows of each partition on a Z curve.

    Args:
        rows: the rows, which are sampled.
        columns: the columns of the curve.
        partitions: the partition columns.
        num_rows: the number of rows.
    """
    curve = columns[0] if len(columns) == 1 else _curve(rows, columns, num_rows)
    return [*(sf.col(quoted(name)) for name in partitions), curve]


def _curve(rows: DataFrame, columns: Sequence[Column], num_rows: int) -> Column:
    """Return the interleaved bits of the columns' ranks."""
    fraction = min(1.0, _SAMPLED_ROWS / max(num_rows, 1))
    sample = rows.select(*columns).sample(fraction, seed=0).collect()
    bits = min(_BITS, 63 // len(columns))
    count = 1 << bits
    ranks = [
        _rank(column, _cuts([row[i] for row in sample], count), count)
        for i, column in enumerate(columns)
    ]
    parts = [
        sf.shiftleft(sf.shiftright(rank, bit).bitwiseAND(1), bit * len(ranks) + i)
        for bit in range(bits)
        for i, rank in enumerate(reversed(ranks))
    ]
    return reduce(lambda one, other: one.bitwiseOR(other), parts)


def _cuts(values: list[Any], count: int) -> list[Any]:
    """Return the values that split `values` into `count` parts of about equal size."""
    known = sorted(v for v in values if v is not None and v == v)
    found = {known[len(known) * i // count] for i in range(1, count) if known}
    return sorted(found - {known[0]}) if known else []


def _rank(column: Column, cuts: list[Any], count: int) -> Column:
    """Return a value's rank among `cuts`, scaled to `count`; nulls have rank 0."""

    def searched(low: int, high: int) -> Column:
        if low == high:
            # Scaled, because columns with few values must use all bits, too.
            return sf.lit(low * count // (len(cuts) + 1)).cast("bigint")
        middle = (low + high) // 2
        below = column < sf.lit(cuts[middle])
        return sf.when(below, searched(low, middle)).otherwise(
            searched(middle + 1, high)
        )

    return sf.when(column.isNull(), sf.lit(0).cast("bigint")).otherwise(
        searched(0, len(cuts))
    )


_MAX_BYTES = "spark.databricks.delta.optimize.maxFileSize"
_MIN_BYTES = "spark.databricks.delta.optimize.minFileSize"
# the size from which the files of one run of clustering aren't clustered again
_SETTLED_BYTES = (
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold"
)
_DEFAULT_BYTES = 1024**3
_BIN = "__dk_bin"
Bins = list[list[Add]]


def optimization(
    targeted: Targeted,
    condition: str | None,
    z_order_by: Sequence[str],
    files: Predicate,
) -> Operation[dict[str, Any]]:
    """Return the operation that rewrites files as larger ones, or along a Z curve.

    Args:
        targeted: returns the target of a version.
        condition: selects the partitions to optimize.
        z_order_by: the columns of the Z curve; none for a compaction.
        files: selects the files that the operation reads.
    """
    engine = InPlace(
        lambda to: _Optimization(targeted(to.base), condition, z_order_by).run(files)
    )
    return Operation("optimize", engine, files, rearranges=True)


def purge(
    targeted: Targeted, condition: str | None, files: Predicate, target: Target
) -> Operation[dict[str, Any]]:
    """Return the operation that rewrites files without their deleted rows.

    Args:
        targeted: returns the target of a version.
        condition: selects the partitions to purge.
        files: selects the files that the operation reads.
        target: the latest version.
    """

    def chosen(snapshot: Snapshot) -> set[str]:
        considered = _considered(targeted(snapshot), condition, files)
        return {add.path for add in considered.adds}

    given = [] if condition is None else [_parsed(target, condition)]
    parameters = {
        "predicate": json.dumps(given, ensure_ascii=False),
        "applyPurge": True,
    }
    engine = Purge(parameters=parameters, chosen=chosen)
    return Operation("purge", engine, files, rearranges=True)


def purge_metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of a purge in delta-spark's shape."""
    names = ("numDeletionVectorsRemoved", "numDeletionVectorRowsRemoved")
    return {
        **metrics,
        "filesAdded": json.loads(metrics["filesAdded"]),
        "filesRemoved": json.loads(metrics["filesRemoved"]),
        "deletionVectorStats": {name: metrics[name] for name in names},
    }


@dataclass(frozen=True)
class _Optimization:
    """The optimization of one version of a table."""

    target: Target
    where: str | None
    z_order_by: Sequence[str]
    start_ms: int = field(default_factory=now_ms)

    def run(self, where: Predicate) -> Work[dict[str, Any]]:
        """Write the new files, and return the commit."""
        if self.z_order_by and self._clusters:
            raise DeltaError(
                f"{self.target.snapshot.table.name}: the table is clustered by "
                f"{', '.join(self._clusters)}, so executeZOrderBy can't order it; use "
                "executeCompaction, which clusters the files"
            )
        considered = _considered(self.target, self.where, where)
        bins = self._bins(considered)
        chosen = considered.only([add.path for adds in bins for add in adds])
        if not chosen:
            return Work(self._result(considered, chosen, [], bins))
        with Output(self.target) as out:
            out.write(self._arranged(chosen, bins))
            if self._clusters:
                out.adds = clustered(out.adds, self._clusters, str(uuid4()))
            info = commit_info("OPTIMIZE", self._parameters(), _metrics(chosen, out))
            result = self._result(considered, chosen, out.adds, bins)
            return out.work(result, info, chosen.adds, rearranged=True)

    @cached_property
    def _clusters(self) -> list[str]:
        """The columns that the table is clustered by."""
        return self.target.snapshot.clustering_columns()

    @property
    def _curve(self) -> list[Column]:
        """The columns of the curve that orders the rows."""
        if self._clusters:
            return [sf.col(path) for path in self._clusters]
        return [sf.col(quoted(name)) for name in self.z_order_by]

    def _bins(self, files: Files) -> Bins:
        """Group the files to rewrite.

        A Z order rewrites all files, clustering those that aren't clustered yet, and a
        compaction small files and those with deletion vectors.
        """
        most = self._bytes(_MAX_BYTES)
        every = bool(self._curve)
        if self._clusters:
            settled = self._bytes(_SETTLED_BYTES, 100 * _DEFAULT_BYTES)
            adds = to_cluster(files.adds, self._clusters, settled)
        else:
            least = self._bytes(_MIN_BYTES)
            adds = [a for a in files.adds if every or _is_slight(a, least)]
        bins = [b for part in _by_partition(adds) for b in _packed(part, most)]
        return [b for b in bins if every or len(b) > 1 or b[0].deletion_vector]

    def _arranged(self, chosen: Files, bins: Bins) -> DataFrame:
        partitions = self.target.metadata.partition_columns
        if self._curve:
            rows = self.target.frame(chosen)
            num_rows = sum(n or 0 for n in chosen.rows.values())
            order = z_order(rows, self._curve, partitions, num_rows)
            if len(bins) > len(_partitions(bins)):
                placed = rows.repartitionByRange(len(bins), *order)
                return placed.sortWithinPartitions(*order)
            return self._binned(chosen, bins).sortWithinPartitions(*order)
        return self._binned(chosen, bins)

    def _binned(self, chosen: Files, bins: Bins) -> DataFrame:
        """Return the rows of the files, each bin in one Spark partition."""
        numbers = [(add.path, i) for i, adds in enumerate(bins) for add in adds]
        table = self.target.spark.createDataFrame(
            numbers, f"{FILE_COLUMN} STRING, {_BIN} INT"
        )
        rows = self.target.frame(chosen, tagged=True)
        binned = rows.join(sf.broadcast(table), FILE_COLUMN)
        placed = repartition_by_id(binned, len(bins), sf.col(_BIN))
        return placed.select(*self.target.names)

    def _bytes(self, setting: str, default: int = _DEFAULT_BYTES) -> int:
        return int(str(self.target.spark.conf.get(setting, str(default))))

    def _parameters(self) -> dict[str, Any]:
        given = [] if self.where is None else [_parsed(self.target, self.where)]
        return {
            "predicate": json.dumps(given, ensure_ascii=False),
            "zOrderBy": json.dumps(list(self.z_order_by), ensure_ascii=False),
            "clusterBy": json.dumps(self._clusters, ensure_ascii=False),
            "auto": False,
        }

    def _clustering(
        self, considered: Files, merged: dict[str, int], clusters: bool
    ) -> dict[str, Any] | None:
        """Return the metrics of a clustered table; Delta's cube is a run's files."""
        if not self._clusters:
            return None
        runs = clustering_runs(considered.adds, self._clusters)
        cubes = _count([add for files in runs.values() for add in files])
        others = {
            "num": len(considered) - cubes["num"],
            "size": considered.size_bytes - cubes["size"],
        }
        return {
            "inputZCubeFiles": cubes,
            "inputOtherFiles": others,
            "inputNumZCubes": len(runs),
            "mergedFiles": merged,
            "numOutputZCubes": int(clusters),
        }

    def _result(
        self, considered: Files, gone: Files, adds: list[Add], bins: Bins
    ) -> dict[str, Any]:
        """Return delta-spark's metrics; those that are unknown here are null."""
        partitions, metadata = len(_partitions(bins)), self.target.metadata
        num_columns = len(table_schema(metadata))
        measured = {column.path[0] for column in measured_columns(metadata)}
        merged, nothing = _count(gone.adds), _count([])
        z_order = {
            "strategyName": "all",
            "inputCubeFiles": nothing,
            "inputOtherFiles": merged,
            "inputNumCubes": 0,
            "mergedFiles": merged,
            "numOutputCubes": partitions,
            "mergedNumCubes": None,
        }
        return {
            "numFilesAdded": len(adds),
            "numFilesRemoved": len(gone),
            "filesAdded": _sizes(adds),
            "filesRemoved": _sizes(gone.adds),
            "partitionsOptimized": partitions,
            "zOrderStats": z_order if self.z_order_by and bins else None,
            "clusteringStats": self._clustering(considered, merged, bool(adds)),
            "numBins": len(bins),
            "numBatches": 1 if bins else 0,
            "totalConsideredFiles": len(considered),
            "totalFilesSkipped": len(considered) - len(gone),
            "preserveInsertionOrder": False,
            "numFilesSkippedToReduceWriteAmplification": 0,
            "numBytesSkippedToReduceWriteAmplification": 0,
            "startTimeMs": self.start_ms,
            "endTimeMs": now_ms(),
            "totalClusterParallelism": None,
            "totalScheduledTasks": len(bins),
            "autoCompactParallelismStats": None,
            "deletionVectorStats": {
                "numDeletionVectorsRemoved": gone.num_vectors,
                "numDeletionVectorRowsRemoved": sum(
                    vector.cardinality
                    for add in gone.adds
                    if (vector := known(add.deletion_vector))
                ),
            },
            "numTableColumns": num_columns,
            "numTableColumnsWithStats": min(num_columns, len(measured)),
        }


def _considered(target: Target, condition: str | None, where: Predicate) -> Files:
    """Return the files of the partitions that `condition` selects."""
    files = target.files(where)
    if condition is None:
        return files
    decided = target.decided(files, condition)
    if decided is None:
        partitions = target.metadata.partition_columns
        raise DeltaError(
            f"{target.snapshot.table.name}: {condition!r} isn't a condition "
            "on partition columns alone, but optimize rewrites whole files. "
            + "".join(
                f"Predicate references non-partition column '{name}'. "
                for name in others(partitions, condition)[:1]
            )
            + "Only the partition columns may be referenced: "
            f"[{', '.join(partitions)}]"
        )
    return decided


def _parsed(target: Target, condition: str) -> str:
    """Return `condition` as Spark's parser shows it, like Delta Spark's history."""
    query = f"EXPLAIN EXTENDED SELECT 1 WHERE {condition}"
    ((plan,),) = target.spark.sql(query).collect()
    found = re.search(r"Filter (.*)", plan)
    return found[1] if found else condition


def _count(adds: Sequence[Add]) -> dict[str, int]:
    return {"num": len(adds), "size": sum(add.size for add in adds)}


def _is_slight(add: Add, least_bytes: int) -> bool:
    return add.size < least_bytes or bool(add.deletion_vector)


def _by_partition(adds: Sequence[Add]) -> Iterator[list[Add]]:
    parts: defaultdict[Any, list[Add]] = defaultdict(list)
    for add in adds:
        parts[frozenset(add.partition_values.items())].append(add)
    yield from parts.values()


def _partitions(bins: Bins) -> set[Any]:
    return {frozenset(adds[0].partition_values.items()) for adds in bins}


def _packed(adds: list[Add], most_bytes: int) -> Bins:
    """Group files into bins of at most `most_bytes`, unless one file is larger."""
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
