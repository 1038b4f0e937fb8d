"""Clustering: the domain with the columns, and the files that a run rewrites."""

import json
from typing import Any

import pytest

from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.model.actions import Add, DomainMetadata, Metadata
from delkalakedb.model.rules.clusters import (
    CLUSTERING_DOMAIN,
    clustered,
    clustering_columns,
    clustering_domain,
    to_cluster,
)
from tests.support.actions import add, metadata

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "a.b", "type": "string"},
    {"name": "flag", "type": "boolean"},
    {
        "name": "s",
        "type": {"type": "struct", "fields": [{"name": "n", "type": "integer"}]},
    },
]
SCHEMA = json.dumps({"type": "struct", "fields": FIELDS})


def made(**changes: Any) -> Metadata:
    return metadata(SCHEMA, **changes)


def run(name: str, by: str, *sizes: int) -> list[Add]:
    files = [add(f"{name}{i}", size=size) for i, size in enumerate(sizes)]
    return clustered(files, [by], name)


def paths(adds: list[Add]) -> list[str]:
    return [add.path for add in adds]


def test_columns_are_kept_by_their_physical_names() -> None:
    domain = clustering_domain(made(), ["S.N", "`a.b`"])

    assert json.loads(domain.configuration) == {
        "clusteringColumns": [["s", "n"], ["a.b"]],
        "domainName": CLUSTERING_DOMAIN,
    }
    assert clustering_columns({CLUSTERING_DOMAIN: domain}, made()) == ["s.n", "`a.b`"]
    assert clustering_columns({}, made()) == []
    less = metadata(json.dumps({"type": "struct", "fields": FIELDS[:2]}))
    assert clustering_columns({CLUSTERING_DOMAIN: domain}, less) == ["`a.b`"]
    odd = DomainMetadata(domain=CLUSTERING_DOMAIN, configuration="{", removed=False)
    with pytest.raises(ProtocolError, match=CLUSTERING_DOMAIN):
        clustering_columns({CLUSTERING_DOMAIN: odd}, made())


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (["none"], {}, "no column none to cluster by"),
        (["s"], {}, "s is of type struct"),
        (["flag"], {}, "flag is of type boolean"),
        (["id", "ID"], {}, "ID is named twice"),
        (["id"] * 5, {}, "at most 4 columns, not 5"),
        (["id"], {"partitions": ["a.b"]}, "but not both"),
        ([], {"partitions": ["a.b"]}, "but not both"),
        (
            ["a.b"],
            {"configuration": {"delta.dataSkippingNumIndexedCols": "1"}},
            "no statistics",
        ),
    ],
)
def test_columns_that_cannot_be_clustered_by_are_refused(
    names: list[str], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DeltaError, match=message):
        clustering_domain(made(**changes), names)


def test_new_files_and_small_runs_are_clustered() -> None:
    small, more, large = run("s", "id", 1, 2), run("m", "id", 9), run("l", "id", 6, 4)
    other = run("o", "flag", 1)
    new = [add("new", size=5)]

    assert paths(to_cluster([*small, *new, *large], ["id"], 10)) == ["new", "s0", "s1"]
    assert paths(to_cluster([*small, *more, *large], ["id"], 10)) == ["s0", "s1", "m0"]
    assert to_cluster([*small, *large, *other], ["id"], 10) == []
    assert paths(to_cluster([*new, *other], ["id"], 10)) == ["new"]
    assert to_cluster([add("x", clustering_provider="theirs")], ["id"], 10) == []
    (file,) = clustered([add("t", tags={"k": "v"})], ["id"], "r")
    assert file.tags == {"k": "v", "ZCUBE_ID": "r", "ZCUBE_ZORDER_BY": '["id"]'}
    assert file.clustering_provider == "liquid"
