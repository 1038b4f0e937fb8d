"""What may change in a table's metadata under a running commit."""

import msgspec
import pytest

from delkalakedb.model.actions import Format, Metadata, Protocol
from delkalakedb.model.rules.conflicts import harmful_changes

ICT = {
    "delta.enableInCommitTimestamps": "true",
    "delta.inCommitTimestampEnablementVersion": "1",
    "delta.inCommitTimestampEnablementTimestamp": "1",
}
ROW_TRACKING = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_v",
}
MAPPED = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"}
BY_NAME = {"delta.columnMapping.mode": "name"}


def supporting(feature: str) -> Protocol:
    return Protocol(
        min_reader_version=1, min_writer_version=7, writer_features=[feature]
    )


def schema(*names: str, nested: bool = False, **metadata: object) -> str:
    field = {"type": "long", "nullable": True, "metadata": metadata}
    struct = {"type": "struct", "fields": [{"name": name, **field} for name in names]}
    if nested:
        outer = {"name": "s", **field, "type": struct}
        struct = {"type": "struct", "fields": [outer]}
    return msgspec.json.encode(struct).decode()


def metadata(configuration: dict[str, str], schema_string: str = "{}") -> Metadata:
    return Metadata(
        id="t",
        format=Format(provider="parquet"),
        schema_string=schema_string,
        partition_columns=[],
        configuration=configuration,
    )


@pytest.mark.parametrize(
    ("before", "after", "needs", "allowed"),
    [
        ({}, {"delta.enableDeletionVectors": "true"}, "deletionVectors", True),
        ({}, {"delta.enableDeletionVectors": "true"}, "", False),
        ({}, {"delta.enableDeletionVectors": "false"}, "deletionVectors", False),
        ({"delta.enableDeletionVectors": "true"}, {}, "deletionVectors", False),
        ({}, {"delta.checkpointPolicy": "v2"}, "v2Checkpoint", True),
        ({"delta.checkpointPolicy": "v2"}, {"delta.checkpointPolicy": "classic"},
         "v2Checkpoint", False),
        ({}, ICT, "inCommitTimestamp", True),
        (ICT, {**ICT, "delta.inCommitTimestampEnablementVersion": "2"},
         "inCommitTimestamp", False),
        ({}, ROW_TRACKING, "rowTracking", True),
        ({}, {**ROW_TRACKING, "delta.enableRowTracking": "false"},
         "rowTracking", False),
        ({}, {"delta.columnMapping.mode": "name",
              "delta.columnMapping.maxColumnId": "2"}, "columnMapping", True),
        ({}, {"delta.columnMapping.mode": "id"}, "columnMapping", False),
        ({"delta.columnMapping.mode": "id"}, {"delta.columnMapping.mode": "name"},
         "columnMapping", False),
        ({}, {"io.unitycatalog.tableId": "u"}, "", True),
        ({}, {"delta.appendOnly": "true"}, "appendOnly", False),
        ({}, {"my.own": "1"}, "", False),
        ({"my.own": "1"}, {"my.own": "1"}, "", True),
    ],
)  # fmt: skip
def test_property_change_is_allowed_by_the_list_only(
    before: dict[str, str], after: dict[str, str], needs: str, allowed: bool
) -> None:
    found = harmful_changes(metadata(before), metadata(after), supporting(needs))
    assert (not found) is allowed


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("columns", "annotations", "configuration", "allowed"),
    [
        (("p", "x"), MAPPED, BY_NAME, True),
        (("p", "x"), MAPPED, {}, False),
        (("p", "x"), {**MAPPED, "comment": "new"}, BY_NAME, False),
        (("p", "renamed"), MAPPED, BY_NAME, False),
        (("p", "x", "y"), MAPPED, BY_NAME, False),
    ],
)
def test_schema_change_is_allowed_only_as_column_mapping_annotations(
    columns: tuple[str, ...],
    annotations: dict[str, object],
    configuration: dict[str, str],
    allowed: bool,
    nested: bool,
) -> None:
    old = metadata({}, schema("p", "x", nested=nested))
    new = metadata(configuration, schema(*columns, nested=nested, **annotations))
    found = harmful_changes(old, new, supporting("columnMapping"))
    assert found == ([] if allowed else ["the schema"])


def test_schema_in_another_spelling_is_the_same_schema() -> None:
    text = schema("p", "x")
    old, new = metadata({}, text), metadata({}, text.replace(":", ": "))
    assert harmful_changes(old, new, supporting("columnMapping")) == []


def test_absent_configuration_is_an_empty_one() -> None:
    absent = msgspec.structs.replace(metadata({}), configuration=msgspec.UNSET)
    assert harmful_changes(absent, metadata({}), supporting("columnMapping")) == []


@pytest.mark.parametrize("field", ["id", "name", "description"])
def test_other_field_that_changed_is_named(field: str) -> None:
    new = msgspec.structs.replace(metadata({}), **{field: "other"})
    assert harmful_changes(metadata({}), new, supporting("columnMapping")) == [field]
