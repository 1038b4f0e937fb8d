"""`.crc` files sum up a version."""

import json

import msgspec

from delkalakedb import Catalog
from delkalakedb.mirror.checkpoint.checkpoint import version_checksum
from delkalakedb.model.actions import action_to_dict
from delkalakedb.model.paths import checksum_path
from tests.support.actions import add, commit, create, metadata, remove

ICT = {"delta.enableInCommitTimestamps": "true"}


def test_checksum_has_the_totals_of_its_version(catalog: Catalog) -> None:
    file = add("a", size=7)
    create(catalog, "t", file, add("b", size=5))
    commit(catalog, remove(file))
    for version, (files, size) in enumerate([(2, 12), (1, 5)]):
        head = catalog.log("t").head(version)
        assert json.loads(version_checksum(head, "id")) == {
            "txnId": "id",
            "tableSizeBytes": size,
            "numFiles": files,
            "numMetadata": 1,
            "numProtocol": 1,
            "metadata": action_to_dict(head.metadata)["metaData"],
            "protocol": action_to_dict(head.protocol)["protocol"],
        }


def test_timestamp_is_there_exactly_with_in_commit_timestamps(catalog: Catalog) -> None:
    meta = metadata(configuration=ICT)
    create(catalog, "t", meta=meta, features=["inCommitTimestamp"])
    create(catalog, "u", features=["inCommitTimestamp"])
    head = catalog.log("t").head()
    stamped = json.loads(version_checksum(head, None))
    assert stamped["inCommitTimestampOpt"] == head.timestamp_ms
    assert "txnId" not in stamped
    plain = version_checksum(catalog.log("u").head(), None)
    assert b"inCommitTimestampOpt" not in plain


def test_equal_versions_have_equal_bytes(catalog: Catalog) -> None:
    sparse = msgspec.structs.replace(metadata(), extra={"new": {"field": [1, None]}})
    create(catalog, "t", add("a"), meta=sparse)
    first, second = (version_checksum(catalog.log("t").head(), "id") for _ in range(2))
    assert first == second
    assert json.loads(first)["metadata"]["new"] == {"field": [1, None]}


def test_checksum_lies_beside_its_commit() -> None:
    assert checksum_path(7) == "_delta_log/00000000000000000007.crc"
