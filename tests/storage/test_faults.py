import uuid

import pytest

from delkalakedb.errors import StorageError
from delkalakedb.storage import open_store
from tests.support.faults import FaultStore


@pytest.fixture
def inner():
    return open_store(f"memory:///{uuid.uuid4().hex}")


def outcomes(store, count=200):
    def attempt(number):
        try:
            return store.put_new(f"{number:03}", b"x")
        except StorageError as error:
            return str(error)

    return [attempt(number) for number in range(count)]


def test_refused_request_is_not_done(inner):
    store = FaultStore(inner, 0, refused=1)
    with pytest.raises(StorageError, match="injected"):
        store.put("a", b"x")
    assert not inner.exists("a")


def test_request_whose_answer_is_lost_is_done(inner):
    store = FaultStore(inner, 0, lost=1)
    with pytest.raises(StorageError, match="injected"):
        store.put_new("a", b"x")
    assert inner.get("a") == b"x"


def test_doubled_request_gives_the_second_answer(inner):
    assert not FaultStore(inner, 0, doubled=1).put_new("a", b"x")
    assert inner.get("a") == b"x"


def test_delayed_request_is_done(inner):
    assert FaultStore(inner, 0, delayed=1, delay_s=0.001).put_new("a", b"x")


def test_same_seed_gives_the_same_faults():
    def run(seed):
        inner = open_store(f"memory:///{uuid.uuid4().hex}")
        store = FaultStore(inner, seed, refused=0.2, lost=0.2, doubled=0.2)
        return outcomes(store), store.injected

    assert run(7) == run(7)
    assert run(8) != run(7)


def test_faults_come_about_as_often_as_asked(inner):
    store = FaultStore(inner, 1, refused=0.25, lost=0.25, doubled=0.25)
    outcomes(store)
    assert all(25 <= store.injected[f] <= 75 for f in ("refused", "lost", "doubled"))
    assert store.injected["delayed"] == 0


def test_quiet_store_passes_everything_on(inner):
    store = FaultStore(inner, 0, refused=1)
    store.quiet = True
    assert outcomes(store, 5) == [True] * 5
    assert [meta.path for meta in store.list()] == [f"{n:03}" for n in range(5)]
    store.delete_many(["000", "001"])
    assert not store.exists("000")
    assert store.url == inner.url
