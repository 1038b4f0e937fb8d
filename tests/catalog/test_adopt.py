"""Adopted commits: versions with every field that their writer wrote."""

import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from delkalakedb import Catalog, connect
from delkalakedb.catalog.commit.outbox import Outbox
from delkalakedb.catalog.commit.outcome import Committed, Conflicted
from delkalakedb.catalog.load.adoption import Entry, adopt_entry, hold_mirror
from delkalakedb.errors import MirrorError, ProtocolError, TableNotFoundError
from delkalakedb.model.actions import (
    KINDS,
    Action,
    Add,
    CommitInfo,
    Protocol,
    Remove,
    action_from_dict,
    action_to_dict,
    dv_id,
)
from delkalakedb.model.log import Replay
from tests.model.test_codec import bodies, file_paths, text, values
from tests.support.actions import (
    DV,
    add,
    attempt,
    commit,
    create,
    creation,
    domain,
    live,
    metadata,
    paths,
    protocol,
    remove,
    schema,
    stats,
    txn,
    vector,
)
from tests.support.examples import examples
from tests.support.integrity import check_integrity

FEATURES = ("deletionVectors", "domainMetadata", "appendOnly", "invariants")
META = metadata(
    schema(x="long", p="string"), partitions=["p"], configuration={DV: "true"}
)
ICT = "delta.enableInCommitTimestamps"
ICT_FEATURE = "inCommitTimestamp"
SHA = "ab" * 32
many = settings(
    max_examples=examples(20),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
AUDITED = dict.fromkeys(("readVersion", "isBlindAppend", "operation", "txnId"), values)
sizes = st.integers(0, 2**40)
named = text.map(lambda name: name.replace("\0", "0"))


def publish_all(catalog: Catalog, name: str = "t") -> None:
    """Say that all is published; what the log holds is of no matter here."""
    latest = catalog.table(name).version
    with hold_mirror(catalog, name) as lease:
        waiting = range(lease.mirror.published_version + 1, latest + 1)
        if waiting:
            hashes = dict.fromkeys(waiting, SHA)
            outbox = Outbox(catalog._backend)
            assert outbox.mark_published(lease, hashes, release=False)


def adopt(
    catalog: Catalog,
    *actions: Action,
    name: str = "t",
    version: int | None = None,
    modified_ms: int = 0,
) -> None:
    """Adopt a commit, by default as the next version."""
    version = catalog.table(name).version + 1 if version is None else version
    with hold_mirror(catalog, name) as lease:
        adopt_entry(catalog, lease, Entry(version, actions, modified_ms, SHA))


def table(catalog: Catalog, *actions: Action, **options: Any) -> None:
    """A table `t` whose first version is published."""
    create(catalog, "t", *actions, **options)
    publish_all(catalog)


def lines(actions: Iterable[Action]) -> list[str]:
    """What is written, in whatever order."""
    return sorted(repr(_ordered(action_to_dict(action))) for action in actions)


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((key, _ordered(inner)) for key, inner in value.items())
    return list(map(_ordered, value)) if isinstance(value, list) else value


def keyed(actions: Iterable[Any]) -> dict[tuple[str, str], Action]:
    found = list(actions)
    by_key = {(action.path, dv_id(action)): action for action in found}
    assert len(by_key) == len(found)
    return by_key


# ---- what comes back


@st.composite
def foreign_add(draw: st.DrawFn, path: str) -> Add:
    body = draw(bodies["add"]) | {"path": path, "modificationTime": 1}
    body |= {"partitionValues": {"p": draw(st.none() | text)}, "size": draw(sizes)}
    body |= {"deletionVector": None, "clusteringProvider": draw(st.none() | named)}
    return action_from_dict({"add": body})  # type: ignore[return-value]


@st.composite
def foreign_remove(draw: st.DrawFn, path: str) -> Remove:
    body = draw(bodies["remove"]) | {"path": path}
    if isinstance(body.get("deletionVector"), dict):
        body["deletionVector"] |= {"storageType": "u", "pathOrInlineDv": draw(named)}
    return action_from_dict({"remove": body})  # type: ignore[return-value]


@st.composite
def foreign_commit(draw: st.DrawFn) -> list[Action]:
    """Any commit that a writer could make on top of files a, b and c."""
    actions: list[Action] = []
    for path in draw(st.sets(st.sampled_from("abcdef"))):
        kinds = st.sampled_from([foreign_add, foreign_remove])
        actions.append(draw(draw(kinds)(path)))
    small = {
        "txn": {"appId": draw(named)},
        "domainMetadata": {"domain": f"my.{draw(named)}"},
        "cdc": {"path": draw(file_paths), "dataChange": False},
        "metaData": {
            "schemaString": META.schema_string,
            "partitionColumns": META.partition_columns,
            "format": {"provider": "parquet", "new": draw(values)},
            "configuration": {DV: "true", "k": draw(st.none() | text)},
        },
        "commitInfo": draw(st.fixed_dictionaries({}, optional=AUDITED)),
    }
    for kind in draw(st.sets(st.sampled_from(sorted(small)))):
        body = draw(bodies[kind]) | small[kind]
        actions.append(action_from_dict({kind: body}))
    unknown = draw(text.filter(lambda kind: kind not in {*KINDS, "commitInfo"}))
    if draw(st.booleans()):
        actions.append(action_from_dict({unknown: draw(values)}))
    return draw(st.permutations(actions))


@many
@given(st.lists(foreign_commit(), min_size=1, max_size=2))
def test_any_foreign_commits_keep_their_words_and_replay_to_the_same_table(
    catalog: Catalog, commits: list[list[Action]]
) -> None:
    name = uuid.uuid4().hex
    first = [add(path, partition={"p": "1"}) for path in "abc"]
    catalog.commit(creation(name, *first, meta=META, features=FEATURES))
    publish_all(catalog, name)
    log = catalog.log(name)
    replay = Replay()
    replay.apply(0, log.commit(0))

    for version, actions in enumerate(commits, start=1):
        adopt(catalog, *actions, name=name)

        replay.apply(version, actions)
        assert lines(log.commit(version)) == lines(actions)
        assert keyed(log.adds()) == replay.adds
        assert keyed(log.removes()) == replay.removes
        assert log.txns() == replay.txns
        assert log.domains() == replay.domains
        assert log.state().metadata == replay.metadata
    assert catalog._mirror_state(name)[:2] == (len(commits), len(commits))


def test_commit_without_commit_info_gets_none(catalog: Catalog) -> None:
    table(catalog)

    adopt(catalog, add("a"))

    assert catalog.log("t").commit(1) == (add("a"),)
    newest = catalog.snapshot("t").history()[0]
    assert (newest.version, newest.commit_info, newest.num_added_files) == (1, {}, 1)


def test_commit_info_is_kept_as_it_is_and_feeds_the_history(catalog: Catalog) -> None:
    table(catalog)
    info = {
        "txnId": "theirs",
        "operation": "MERGE",
        "operationParameters": {"predicate": "x = 1"},
        "readVersion": "none",
        "isBlindAppend": 0,
        "engineInfo": "Spark",
    }

    adopt(catalog, CommitInfo(info), add("a"))

    (newest, _) = catalog.snapshot("t").history()
    assert newest.commit_info == info
    assert (newest.operation, newest.transaction_id) == ("MERGE", "theirs")
    assert newest.operation_parameters == {"predicate": "x = 1"}
    assert (newest.engine_info, newest.read_version) == ("Spark", None)
    assert newest.is_blind_append is None


# ---- files


def test_remove_of_a_file_that_was_never_there_is_a_tombstone(catalog: Catalog) -> None:
    table(catalog, add("a"))
    gone = remove(add("z"), size=7, extra={"more": [1]})

    adopt(catalog, gone, remove(add("a")))

    assert catalog.log("t").commit(1) == (remove(add("a")), gone)
    assert keyed(catalog.log("t").removes()).keys() == {("a", ""), ("z", "")}
    assert list(catalog.log("t").removes(0)) == []
    assert catalog.table("t").num_files == 0
    check_integrity(catalog)


def test_file_removed_twice_has_the_newer_tombstone(catalog: Catalog) -> None:
    table(catalog, add("a"))
    adopt(catalog, remove(add("a"), deletion_timestamp=1))
    adopt(catalog, remove(add("a"), deletion_timestamp=2))

    times = [
        [r.deletion_timestamp for r in catalog.log("t").removes(v)] for v in range(3)
    ]
    assert times == [[], [1], [2]]
    adopt(catalog, add("a"))
    assert list(catalog.log("t").removes()) == []
    check_integrity(catalog)


def test_add_of_a_live_file_brings_its_fields_up_to_date(catalog: Catalog) -> None:
    table(catalog, add("a", stats=stats(1, x=(1, 1, 0))), add("b"))
    newer = add("a", size=7, stats=stats(1, x=(9, 9, 0)))

    adopt(catalog, newer)

    assert live(catalog)["a", ""] == newer
    assert list(catalog.log("t").removes()) == []
    assert catalog.table("t").size_bytes == 107
    check_integrity(catalog)


def test_files_with_deletion_vectors_are_told_apart(catalog: Catalog) -> None:
    meta = metadata(configuration={DV: "true"})
    table(catalog, add("a"), meta=meta, features=("deletionVectors",))
    masked = add("a", deletion_vector=vector("v1"))

    adopt(catalog, remove(add("a")), masked)
    adopt(catalog, remove(add("a", deletion_vector=vector("v0"))))

    assert live(catalog) == {("a", "uv1"): masked}
    assert keyed(catalog.log("t").removes()).keys() == {("a", ""), ("a", "uv0")}
    check_integrity(catalog)


def test_adopted_files_are_planned_by_their_statistics(catalog: Catalog) -> None:
    table(catalog)
    wider = metadata(schema(x="long", s="string", y="long"))
    low, high = ((v, v, 0) for v in (1, 9))

    adopt(catalog, wider, add("low", stats=stats(1, y=low)))
    adopt(catalog, add("high", stats=stats(1, y=high)))

    found = catalog.snapshot("t").files("y > 5").read_all()
    assert found["path"].to_pylist() == ["high"]
    check_integrity(catalog)


def test_row_ids_stay_as_they_were_given(catalog: Catalog) -> None:
    meta = metadata(configuration={"delta.enableRowTracking": "true"})
    table(catalog, meta=meta, features=("rowTracking", "domainMetadata"))
    given = add("a", base_row_id=70, default_row_commit_version=1)
    mark = domain("delta.rowTracking", '{"rowIdHighWaterMark":70}')

    adopt(catalog, given, mark)
    commit(catalog, add("b"))

    assert live(catalog)["a", ""] == given
    assert live(catalog)["b", ""].base_row_id == 71


# ---- time


def test_time_is_the_files_own_but_after_the_commit_before(catalog: Catalog) -> None:
    table(catalog)
    then = catalog.table("t").timestamp_ms

    adopt(catalog, modified_ms=then - 5)
    adopt(catalog, modified_ms=then + 1000)

    assert catalog.snapshot("t", 1).table.timestamp_ms == then + 1
    assert catalog.table("t").timestamp_ms == then + 1000


def test_time_is_in_the_commit_where_the_table_wants_it(catalog: Catalog) -> None:
    table(catalog, meta=metadata(configuration={ICT: "true"}), features=[ICT_FEATURE])

    adopt(catalog, CommitInfo({"inCommitTimestamp": 2**42}), modified_ms=1)

    assert catalog.table("t").timestamp_ms == 2**42
    with pytest.raises(ProtocolError, match=r"version 2 .* no in-commit timestamp"):
        adopt(catalog, CommitInfo({"timestamp": 1}))
    assert catalog.table("t").version == 1


# ---- what is refused


@pytest.mark.parametrize("feature", ["adaptiveMetadata-preview", "noSuchFeature"])
def test_feature_that_cannot_be_read_is_refused_by_name(
    catalog: Catalog, feature: str
) -> None:
    table(catalog, add("a"))
    unreadable = Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=[feature],
        writer_features=[feature],
    )

    with pytest.raises(ProtocolError, match=rf"t: version 1 .* {feature}"):
        adopt(catalog, unreadable, remove(add("a")))

    assert paths(catalog) == ["a"]
    assert catalog._mirror_state("t")[:2] == (0, 0)


def test_protocol_may_drop_what_it_promised_before(catalog: Catalog) -> None:
    table(catalog, features=("deletionVectors", "appendOnly"))

    adopt(catalog, protocol("appendOnly"))

    assert catalog.table("t").writer_features == ("appendOnly",)


def test_version_that_is_ratified_already_is_in_the_way(catalog: Catalog) -> None:
    table(catalog)
    commit(catalog, add("ours"))
    commit(catalog, add("ours too"))

    with pytest.raises(MirrorError, match=r"versions 1 to 2 are ratified .* discard"):
        adopt(catalog, add("theirs"), version=1)
    with pytest.raises(MirrorError, match="version 3 of a foreign writer"):
        adopt(catalog, add("theirs"), version=3)
    assert paths(catalog) == ["ours", "ours too"]


def test_version_after_a_gap_is_refused(catalog: Catalog) -> None:
    table(catalog)

    with pytest.raises(MirrorError, match="version 2 can't be adopted after version 0"):
        adopt(catalog, add("a"), version=2)


def test_log_is_held_by_one_at_a_time(catalog_uri: str) -> None:
    catalog = connect(catalog_uri, mirror={"wait": 0.1})
    table(catalog)

    with (
        hold_mirror(catalog, "t"),
        pytest.raises(MirrorError, match="is writing to the log; try again"),
    ):
        adopt(catalog, add("a"))

    adopt(catalog, add("a"))
    assert paths(catalog) == ["a"]
    catalog.close()


def test_lease_that_was_lost_adopts_nothing(catalog: Catalog) -> None:
    table(catalog)
    with hold_mirror(catalog, "t") as old:
        pass

    with (
        hold_mirror(catalog, "t"),
        pytest.raises(MirrorError, match="the lease on the log was lost; adopt again"),
    ):
        adopt_entry(catalog, old, Entry(1, (add("a"),), 0, SHA))

    assert catalog.table("t").version == 0


def test_unknown_table_is_not_found(catalog: Catalog) -> None:
    with pytest.raises(TableNotFoundError, match="nobody"):
        adopt(catalog, name="nobody", version=1)


# ---- beside our own commits


def test_our_commits_go_on_after_an_adopted_one(catalog: Catalog) -> None:
    table(catalog, add("a"))

    adopt(catalog, CommitInfo({"operation": "DELETE"}), remove(add("a")), txn("app", 3))

    append = attempt(catalog, add("b"), version=0)
    assert isinstance(append, Committed)
    assert append.version == 2
    lost = attempt(catalog, remove(add("a")), version=0, paths=frozenset("a"))
    assert isinstance(lost, Conflicted)
    assert (lost.winner_version, lost.winner_operation) == (1, "DELETE")
    assert catalog.snapshot("t").txn_version("app") == 3
    assert catalog._mirror_state("t")[:2] == (1, 2)
    check_integrity(catalog)


def test_adoption_and_append_at_once_never_share_a_version(catalog: Catalog) -> None:
    table(catalog)
    with ThreadPoolExecutor(2) as pool:
        for turn in range(8):
            version = catalog.table("t").version + 1
            theirs = pool.submit(adopt, catalog, add(f"theirs-{turn}"), version=version)
            ours = pool.submit(commit, catalog, add(f"ours-{turn}")).result()
            error = theirs.exception()

            lost = ours.version == version
            assert isinstance(error, MirrorError) if lost else error is None
            files = [a for a in catalog.log("t").commit(version) if isinstance(a, Add)]
            winner = "ours" if lost else "theirs"
            assert [file.path for file in files] == [f"{winner}-{turn}"]
            assert catalog.table("t").version == version + (not lost)
            publish_all(catalog)
    check_integrity(catalog)
