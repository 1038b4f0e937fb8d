"""A table's history and details as frames, in delta-spark's columns."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from delkalakedb.catalog import Snapshot
from delkalakedb.model.protocol import supported_features
from delkalakedb.model.tables import Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["detail_of", "history_of"]

_HISTORY = """
    version BIGINT, timestamp TIMESTAMP, userId STRING, userName STRING,
    operation STRING, operationParameters MAP<STRING, STRING>,
    job STRUCT<jobId: STRING, jobName: STRING, jobRunId: STRING, runId: STRING,
        jobOwnerId: STRING, triggerType: STRING>,
    notebook STRUCT<notebookId: STRING>, clusterId STRING, readVersion BIGINT,
    isolationLevel STRING, isBlindAppend BOOLEAN,
    operationMetrics MAP<STRING, STRING>, userMetadata STRING, engineInfo STRING
"""
_DETAIL = """
    format STRING, id STRING, name STRING, description STRING, location STRING,
    createdAt TIMESTAMP, lastModified TIMESTAMP, partitionColumns ARRAY<STRING>,
    clusteringColumns ARRAY<STRING>, numFiles BIGINT, sizeInBytes BIGINT,
    properties MAP<STRING, STRING>, minReaderVersion INT, minWriterVersion INT,
    tableFeatures ARRAY<STRING>
"""


def history_of(
    spark: "SparkSession", snapshot: Snapshot, limit: int | None = None
) -> "DataFrame":
    """The commits up to a version, newest first."""
    rows = [_commit(commit) for commit in snapshot.history(limit)]
    return spark.createDataFrame(rows, _HISTORY)


def detail_of(spark: "SparkSession", snapshot: Snapshot) -> "DataFrame":
    """One row about a version of a table."""
    table = snapshot.table
    row = {
        "format": "delta",
        "id": table.id,
        "name": table.name,
        "description": table.description,
        "location": table.location,
        "createdAt": _moment(table.created_time_ms),
        "lastModified": _moment(table.timestamp_ms),
        "partitionColumns": list(table.partition_columns),
        "clusteringColumns": [],
        "numFiles": table.num_files,
        "sizeInBytes": table.size_bytes,
        "properties": dict(table.configuration),
        "minReaderVersion": table.min_reader_version,
        "minWriterVersion": table.min_writer_version,
        "tableFeatures": sorted(supported_features(snapshot.protocol)),
    }
    return spark.createDataFrame([row], _DETAIL)


def _commit(commit: Commit) -> dict[str, Any]:
    return {
        "version": commit.version,
        "timestamp": _moment(commit.timestamp_ms),
        "userName": commit.os_user,
        "operation": commit.operation,
        "operationParameters": _texts(commit.operation_parameters),
        "readVersion": commit.read_version,
        "isolationLevel": commit.isolation_level,
        "isBlindAppend": commit.is_blind_append,
        "operationMetrics": _texts(commit.operation_metrics),
        "userMetadata": commit.user_metadata,
        "engineInfo": commit.engine_info,
    }


def _texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {
        key: value if isinstance(value, str | None) else json.dumps(value)
        for key, value in values.items()
    }


def _moment(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC)
