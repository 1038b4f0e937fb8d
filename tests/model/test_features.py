"""The table of features is the only place that has their names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from delkalakedb.model.rules.features import FEATURES, LOG_ONLY, Use, features_for

SOURCE = Path(__file__).parents[2] / "src"
TABLE = SOURCE / "delkalakedb" / "model" / "rules" / "features.py"
# What is spelled like a feature and is none: actions, and fields of JSON. This list
# may only become shorter.
NOT_FEATURES = {
    ("mirror/checkpoint/checkpoint_rows.py", "domainMetadata"),
    ("mirror/verify/comparison.py", "domainMetadata"),
    ("mirror/verify/side_files.py", "domainMetadata"),
    ("model/actions.py", "domainMetadata"),
    ("model/rules/clusters.py", "liquid"),
}


def quoted_features() -> Iterator[tuple[str, str]]:
    for path in SOURCE.rglob("*.py"):
        if path == TABLE:
            continue
        where = path.relative_to(SOURCE).as_posix().removeprefix("delkalakedb/")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in FEATURES:
                yield where, str(node.value)


def test_no_other_module_has_the_name_of_a_feature() -> None:
    assert set(quoted_features()) == NOT_FEATURES


def test_features_that_are_only_of_the_log_hinder_no_reader() -> None:
    for use in (Use.DATASET, Use.ARROW, Use.SPARK, Use.SPARK_3):
        assert features_for(use) >= LOG_ONLY


def test_delta_rs_sees_a_feature_or_ratify_fulfils_it() -> None:
    assert features_for(Use.DELTA_RS).isdisjoint(features_for(Use.RATIFY))


def test_whoever_writes_by_arrow_for_spark_can_append_the_same() -> None:
    assert features_for(Use.SMALL_APPEND) <= features_for(Use.SPARK_SINK)


def test_spark_3_reads_no_more_than_spark_4() -> None:
    assert features_for(Use.SPARK_3) < features_for(Use.SPARK)


def test_readers_uses_are_of_features_that_readers_must_know() -> None:
    for use in (Use.DATASET, Use.ARROW, Use.SPARK, Use.SPARK_3):
        assert all(FEATURES[name].reader for name in features_for(use))


@pytest.mark.parametrize("name", sorted(FEATURES))
def test_what_a_feature_needs_is_in_the_table(name: str) -> None:
    assert {*FEATURES[name].needs} <= FEATURES.keys()
