"""Planning through SQL against brute force, over generated tables and histories."""

import json
import random
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from delkalakedb import Catalog
from delkalakedb.model.actions import Add, Metadata, known
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.predicate.matcher import matcher
from delkalakedb.model.predicate.predicate import parse_predicate
from delkalakedb.model.schema.schema import parse_schema
from tests.model import test_prune_property as made
from tests.support.actions import add, create, metadata, remove
from tests.support.examples import examples

Rows = list[dict[str, Any]]
checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@dataclass
class History:
    """A table's files, with their rows, at each version."""

    name: str
    meta: Metadata
    rows: dict[str, Rows]
    versions: list[dict[str, Add]]

    def matching(self, tree: Any, version: int) -> set[str]:
        """The files that hold a row which matches, however an engine reads it."""
        return {
            path
            for path in self.versions[version]
            if any(
                made._holds(tree, row, read) is True
                for row in self.rows[path]
                for read in made.READINGS
            )
        }

    def kept(self, where: Any, version: int) -> set[str]:
        """The files that the rules keep."""
        partitions = self.meta.partition_columns
        schema = parse_schema(self.meta.schema_string)
        keep = matcher(parse_predicate(where, schema, partitions), partitions)
        files = self.versions[version].items()
        return {p for p, f in files if keep(f.partition_values, known(f.stats))}


def _metadata(rng: random.Random, names: list[str]) -> Metadata:
    """A schema of these columns alone, or of every type there is."""
    wanted = list(made.TYPES) if rng.random() < 0.3 else list(dict.fromkeys(names))
    nested = {"type": "struct", "fields": [made._field("x", "long")]}
    fields = [
        made._field("st", nested)
        if name == "x"
        else made._field(name, made.TYPES[name])
        for name in wanted
    ]
    partitions = made.PARTITIONS if rng.random() < 0.6 else ()
    columns = json.dumps({"type": "struct", "fields": fields})
    return metadata(columns, partitions=partitions)


def _file(rng: random.Random, path: str, rows: Rows, meta: Metadata) -> Add:
    partition = {
        name: made._partition_text(rows[0][name]) for name in meta.partition_columns
    }
    text = made._stats(rows, rng.random() < 0.5, rng)
    broken = rng.choice([None, "", "nonsense", text[:-1]])
    return add(path, partition=partition, stats=broken if rng.random() < 0.1 else text)


def _history(
    catalog: Catalog, rng: random.Random, names: list[str], rows: Rows
) -> History:
    """Create a table and commit its files over some versions, removing some again."""
    meta = _metadata(rng, names)
    history = History(uuid.uuid4().hex, meta, {}, [{}])
    features = ("timestampNtz", "appendOnly", "invariants")
    create(catalog, history.name, meta=meta, features=features)
    pending = made._files(rng, rows)
    while pending:
        live = dict(history.versions[-1])
        gone = [file for file in live.values() if rng.random() < 0.2]
        chunk = [pending.pop() for _ in range(min(len(pending), rng.randrange(1, 5)))]
        new = []
        for found in chunk:
            path = f"f{len(history.rows)}"
            history.rows[path] = found
            new.append(_file(rng, path, found, meta))
        actions = [*map(remove, gone), *new]
        read = Reads(version=len(history.versions) - 1)
        catalog.commit(Staged(history.name, actions, read))
        for file in gone:
            del live[file.path]
        history.versions.append(live | {file.path: file for file in new})
    return history


def _tuples(rng: random.Random, names: list[str], rows: Rows) -> tuple[Any, Any]:
    groups = [
        [made._tuple(rng, names, rows) for _ in range(rng.randrange(1, 3))]
        for _ in range(rng.randrange(1, 3))
    ]
    tree = ("or", [("and", [part for _, part in group]) for group in groups])
    return [[item for item, _ in group] for group in groups], tree


def _filter(rng: random.Random, names: list[str], rows: Rows) -> tuple[Any, Any]:
    if rng.random() < 0.3:
        return _tuples(rng, names, rows)
    tree = made._tree(rng, names, rows, 3)
    return made._sql(tree, rng), tree


def check(catalog: Catalog, seed: int) -> None:
    """Plan some filters at random versions of a random table."""
    rng = random.Random(seed)
    names, rows = made._table(rng)
    history = _history(catalog, rng, names, rows)
    for _ in range(8):
        where, tree = _filter(rng, names, rows)
        version = rng.randrange(len(history.versions))
        snapshot = catalog.snapshot(history.name, version)
        planned = snapshot.files(where).read_all()["path"].to_pylist()
        # From memory more and more, where the engine has no index.
        for columns in (None, ["path"], ["path"], ["path"]):
            again = snapshot.files(where, columns=columns).read_all()
            assert again["path"].to_pylist() == planned, where
        assert len(planned) == len(set(planned))
        assert set(planned) == history.kept(where, version), where
        assert set(planned) >= history.matching(tree, version), where


@settings(max_examples=examples(40), suppress_health_check=checks)
@given(st.integers(0, 2**64))
def test_plan_keeps_every_match_and_exactly_what_the_rules_keep(
    catalog: Catalog, seed: int
) -> None:
    check(catalog, seed)


@pytest.mark.soak
@settings(max_examples=1000, suppress_health_check=checks)
@given(st.integers(0, 2**64))
def test_plan_keeps_every_match_over_many_tables(catalog: Catalog, seed: int) -> None:
    check(catalog, seed)
