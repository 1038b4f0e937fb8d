"""Table properties: defaults, values, and clear errors."""

import pytest

from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import Format, Metadata
from delkalakedb.model.schema.properties import (
    TableProperties,
    check_values,
    parse_interval_ms,
    parse_properties,
)

HOUR = 3_600_000


def test_without_configuration_the_defaults_of_delta_hold() -> None:
    properties = parse_properties({"another": "thing", "delta.appendOnly": None})
    assert properties == TableProperties()
    assert properties.log_retention_ms == 30 * 24 * HOUR
    assert properties.deleted_file_retention_ms == 7 * 24 * HOUR
    assert properties.data_skipping_num_indexed_cols == 32
    assert properties.isolation_level == "Serializable"


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("appendOnly", "TRUE", "append_only", True),
        ("isolationLevel", "writeserializable", "isolation_level", "WriteSerializable"),
        ("checkpointInterval", "100", "checkpoint_interval", 100),
        ("enableInCommitTimestamps", "true", "enable_in_commit_timestamps", True),
        (
            "inCommitTimestampEnablementVersion",
            "0",
            "in_commit_timestamp_enablement_version",
            0,
        ),
        (
            "inCommitTimestampEnablementTimestamp",
            "1700000000000",
            "in_commit_timestamp_enablement_timestamp_ms",
            1_700_000_000_000,
        ),
        ("enableRowTracking", "true", "enable_row_tracking", True),
        ("enableDeletionVectors", "true", "enable_deletion_vectors", True),
        ("enableChangeDataFeed", "true", "enable_change_data_feed", True),
        ("columnMapping.mode", "name", "column_mapping_mode", "name"),
        ("dataSkippingNumIndexedCols", "-1", "data_skipping_num_indexed_cols", -1),
        (
            "dataSkippingStatsColumns",
            "a, b.c,`x,.``y`.z",
            "data_skipping_stats_columns",
            (("a",), ("b", "c"), ("x,.`y", "z")),
        ),
        ("dataSkippingStatsColumns", "", "data_skipping_stats_columns", ()),
        ("logRetentionDuration", "interval 60 days", "log_retention_ms", 1440 * HOUR),
        ("deletedFileRetentionDuration", "0 hours", "deleted_file_retention_ms", 0),
        ("enableExpiredLogCleanup", "false", "enable_expired_log_cleanup", False),
        ("checkpointPolicy", "v2", "checkpoint_policy", "v2"),
        (
            "checkpoint.writeStatsAsJson",
            "false",
            "checkpoint_write_stats_as_json",
            False,
        ),
        (
            "checkpoint.writeStatsAsStruct",
            "true",
            "checkpoint_write_stats_as_struct",
            True,
        ),
    ],
)
def test_a_property_is_read_by_its_name(
    name: str, text: str, field: str, value: object
) -> None:
    assert getattr(parse_properties({f"delta.{name}": text}), field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("appendOnly", "yes"),
        ("isolationLevel", "ReadCommitted"),
        ("checkpointInterval", "0"),
        ("checkpointInterval", "ten"),
        ("checkpointInterval", "1_0"),
        ("dataSkippingNumIndexedCols", "-2"),
        ("dataSkippingStatsColumns", "a,,b"),
        ("dataSkippingStatsColumns", "a,`b"),
        ("columnMapping.mode", "upper"),
        ("logRetentionDuration", "1 month"),
        ("logRetentionDuration", "soon"),
        ("logRetentionDuration", ""),
        ("logRetentionDuration", "-1 days"),
        ("checkpointPolicy", "v3"),
    ],
)
def test_a_bad_value_is_refused_with_name_and_value(name: str, text: str) -> None:
    with pytest.raises(DeltaError) as caught:
        check_values({f"delta.{name}": text})
    assert f"delta.{name}" in str(caught.value)
    assert repr(text) in str(caught.value)
    assert "needed" in str(caught.value)


def test_a_bad_value_has_its_default_unless_readers_need_it() -> None:
    odd = {"delta.appendOnly": "yes", "delta.checkpointInterval": "0"}
    assert parse_properties({**odd, "delta.isolationLevel": "Serializable"}) == (
        TableProperties()
    )
    with pytest.raises(DeltaError, match=r"columnMapping\.mode is 'upper'"):
        parse_properties({"delta.columnMapping.mode": "upper"})


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("interval 1 week", 168 * HOUR),
        ("INTERVAL 2 WEEKS", 336 * HOUR),
        ("36 hours", 36 * HOUR),
        ("1 day 12 hours 30 minutes", 36 * HOUR + HOUR // 2),
        ("  interval   5   seconds ", 5_000),
        ("1500 microseconds", 1),
        ("7 milliseconds", 7),
    ],
)
def test_intervals_are_read_in_their_units(text: str, milliseconds: int) -> None:
    assert parse_interval_ms(text) == milliseconds


def test_metadata_may_lack_a_configuration() -> None:
    metadata = Metadata(
        id="i",
        format=Format(provider="parquet"),
        schema_string="{}",
        partition_columns=[],
    )
    assert parse_properties(metadata) == TableProperties()
