import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings, strategies as st

from delkalakedb.errors import StorageError
from delkalakedb.storage import ObjectNotFoundError, open_store
from delkalakedb.storage.location import canonical_location

ODD = [
    "a b/x%20y=é.json",
    "p=A%2FA/part#1?.parquet",
    "p=%25/ü/日本.parquet",
    "quote'\"+&,;.bin",
    "a+b c%2B/50% + é=1.json",
]


def memory_location():
    return f"memory:///{uuid.uuid4().hex}"


def opened(kind, request):
    if kind == "local":
        return open_store(str(request.getfixturevalue("tmp_path") / "table"))
    if kind == "memory":
        return open_store(memory_location())
    place = request.getfixturevalue(kind)
    return open_store(place.location, place.storage_options)


@pytest.fixture(params=["local", "memory", "s3", "careless_s3"])
def store(request):
    return opened(request.param, request)


@pytest.fixture(params=["local", "memory", "s3"])
def atomic_store(request):
    """One that never has two winners."""
    return opened(request.param, request)


def test_object_put_is_read_back_whole_and_in_part(store):
    store.put("a/b.bin", b"0123456789")
    assert store.get("a/b.bin") == b"0123456789"
    assert store.get_range("a/b.bin", 2, 3) == b"234"
    assert store.head("a/b.bin").size_bytes == 10
    assert store.exists("a/b.bin")


def test_object_put_again_is_replaced(store):
    store.put("a", b"old and longer")
    store.put("a", b"new")
    assert store.get("a") == b"new"


def test_put_new_on_a_taken_path_keeps_the_first(store):
    assert store.put_new("log/0.json", b"first")
    assert not store.put_new("log/0.json", b"second")
    assert store.get("log/0.json") == b"first"
    assert [meta.path for meta in store.list()] == ["log/0.json"]


def test_racing_put_new_has_one_winner_for_each_path(atomic_store):
    def race(worker):
        return [put_new(f"log/{number}", b"%d" % worker * 1000) for number in range(20)]

    put_new = atomic_store.put_new
    with ThreadPoolExecutor(8) as pool:
        won = [*zip(*pool.map(race, range(8)), strict=True)]
    for number, winners in enumerate(won):
        assert winners.count(True) == 1
        winner = b"%d" % winners.index(True)
        assert atomic_store.get(f"log/{number}") == winner * 1000


def test_parallel_puts_are_all_there_in_order(store):
    paths = [f"log/{number:020}.json" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(store.put_new, paths, map(str.encode, paths)))
        assert [*pool.map(store.get, paths)] == [path.encode() for path in paths]
    assert [meta.path for meta in store.list("log")] == paths


def test_list_starts_after_a_path_that_need_not_exist(store):
    paths = [f"log/{number:020}.json" for number in (1, 2, 9, 10, 11)]
    for path in paths:
        store.put(path, b"")
    between = "log/00000000000000000009.z"
    for start_after in (paths[2], between):
        listed = [meta.path for meta in store.list("log", start_after)]
        assert listed == paths[3:]
    assert [*store.list("log", paths[-1])] == []


def test_range_past_the_end_is_cut_short(store):
    store.put("a", b"0123456789")
    assert store.get_range("a", 0, 10) == b"0123456789"
    assert store.get_range("a", 8, 10) == b"89"
    assert store.get_range("a", 20, 10) == b""


def test_large_file_is_put_whole_and_replaces(store, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 80_000)
    store.put("a/b.bin", b"old")
    store.put_file("a/b.bin", source)
    assert store.head("a/b.bin").size_bytes == 20_480_000
    assert store.get("a/b.bin") == source.read_bytes()
    assert store.get_range("a/b.bin", 20_000_000, 4) == bytes(range(4))
    assert [meta.path for meta in store.list()] == ["a/b.bin"]


def test_small_and_empty_files_are_put(store, tmp_path):
    for content in (b"", b"x"):
        (tmp_path / "source").write_bytes(content)
        store.put_file("a", tmp_path / "source")
        assert store.get("a") == content


def test_file_that_is_missing_leaves_the_object(store, tmp_path):
    store.put("a", b"old")
    with pytest.raises(FileNotFoundError, match="no-source"):
        store.put_file("a", tmp_path / "no-source")
    assert store.get("a") == b"old"


def test_many_are_deleted_at_once_and_absent_ones_do_not_matter(store):
    for number in range(30):
        store.put(f"a/{number:02}", b"")
    store.delete_many(["a/99", *(f"a/{number:02}" for number in range(29)), *ODD])
    assert [meta.path for meta in store.list()] == ["a/29"]
    store.delete_many(iter([]))
    with pytest.raises(StorageError, match="not a path below"):
        store.delete_many(["../out"])


def test_missing_object_is_a_file_not_found_and_a_storage_error(store):
    store.put("a/b", b"")
    for path in ("nothing", "a/b/c"):
        assert store.head(path) is None
        with pytest.raises(FileNotFoundError, match=path) as caught:
            store.get(path)
        assert isinstance(caught.value, StorageError)
        assert isinstance(caught.value, ObjectNotFoundError)
        assert caught.value.__cause__ is not None
        with pytest.raises(ObjectNotFoundError):
            store.get_range(path, 0, 1)


def test_folder_is_not_an_object(store):
    store.put("a/b", b"")
    assert store.head("a") is None
    with pytest.raises(StorageError):
        store.get("a")


def test_deleted_object_is_gone_and_can_be_deleted_again(store):
    store.put("a", b"x")
    store.delete("a")
    store.delete("a")
    assert not store.exists("a")


@pytest.mark.parametrize("path", ODD)
def test_odd_characters_in_a_path_are_taken_literally(store, path):
    assert store.put_new(path, b"x")
    assert store.get(path) == b"x"
    assert [meta.path for meta in store.list()] == [path]
    assert [meta.path for meta in store.list(path.rpartition("/")[0])] == [path]
    store.delete(path)
    assert not store.exists(path)


@pytest.mark.parametrize("path", ODD)
def test_local_object_is_the_file_of_that_name(tmp_path, path):
    open_store(str(tmp_path)).put(path, b"x")
    assert (tmp_path / path).read_bytes() == b"x"


@pytest.mark.parametrize("path", ["../out", "a/../../out", "/etc/x", "a//b", "./a"])
def test_path_that_leaves_the_location_is_refused(store, path):
    with pytest.raises(StorageError, match="not a path below"):
        store.put(path, b"x")


def test_missing_folder_lists_as_empty(store):
    assert list(store.list("nowhere")) == []
    assert list(store.list()) == []


def test_folder_lists_itself_only_and_not_its_namesakes(store):
    for path in ("a/1", "a/b/2", "ab/3", "a.4"):
        store.put(path, b"")
    assert [meta.path for meta in store.list("a")] == ["a/1", "a/b/2"]


def test_folders_are_those_right_below_a_folder(store):
    for path in ("a/b/x", "a/b c/d/x", "a/y", "ab/x", "z"):
        store.put(path, b"1")

    assert store.folders() == ["a", "ab"]
    assert store.folders("a") == ["b", "b c"]
    assert store.folders("a/b") == []


SEGMENTS = st.text("ab-.0é", min_size=1, max_size=2).filter(lambda s: set(s) != {"."})
# The last segment's mark keeps a file from being another one's folder.
PATHS = st.lists(SEGMENTS, max_size=3).map(lambda parts: "/".join([*parts, "a_"]))


@settings(max_examples=60, deadline=None)
@given(st.sets(PATHS, max_size=8), PATHS | st.none())
def test_list_is_in_order_and_starts_after_a_path(paths, start_after):
    with TemporaryDirectory() as folder:
        stores = [open_store(folder), open_store(memory_location())]
        for store in stores:
            for path in paths:
                store.put(path, b"x")
            listed = [m.path for m in store.list(start_after=start_after)]
            assert listed == sorted(p for p in paths if p > (start_after or ""))


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("os.fsync", "put_new('log/0.json', b'half')"),
        ("os.link", "put_new('log/0.json', b'half')"),
        ("pathlib.Path.replace", "put('log/0.json', b'half')"),
        ("os.fsync", "put_file('log/0.json', pathlib.Path(sys.executable))"),
    ],
)
def test_crash_before_the_end_leaves_nothing_visible(tmp_path, step, call):
    (tmp_path / "log").mkdir()
    script = (
        "import os, pathlib, sys\n"
        "from delkalakedb.storage import open_store\n"
        f"{step} = lambda *names: os._exit(9)\n"
        f"open_store(sys.argv[1]).{call}\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert ended.returncode == 9
    assert len(list((tmp_path / "log").iterdir())) == 1
    store = open_store(str(tmp_path))
    assert list(store.list()) == []
    assert not store.exists("log/0.json")
    assert store.put_new("log/0.json", b"whole")
    assert [meta.path for meta in store.list()] == ["log/0.json"]


def test_what_a_crash_left_goes_after_a_day_or_with_everything(tmp_path):
    store = open_store(str(tmp_path / "table"))
    store.put("log/a", b"a")
    old, new, other = (
        tmp_path / "table" / "log" / f"{name}.tmp"
        for name in (f".dk-{'0' * 32}", f".dk-{'1' * 32}", ".theirs")
    )
    for left in (old, new, other):
        left.write_bytes(b"half")
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))

    store.delete_leftovers("log")
    assert not old.exists()
    assert new.exists()
    assert other.exists()
    store.delete_leftovers("no such folder")

    store.delete_many(["log/a", "log/.theirs.tmp"])
    store.delete_remains()
    assert not (tmp_path / "table").exists()


def test_local_times_are_set_to_the_millisecond(tmp_path):
    store = open_store(str(tmp_path))
    store.put("a", b"")
    store.set_modified("a", 1_700_000_000_123)
    assert store.head("a").last_modified_ms == 1_700_000_000_123
    assert next(store.list()).last_modified_ms == 1_700_000_000_123


def test_times_stay_where_a_store_cannot_set_them():
    store = open_store(memory_location())
    store.put("a", b"")
    before = store.head("a")
    store.set_modified("a", 0)
    assert store.head("a") == before


def test_memory_location_is_shared_by_its_name():
    location = memory_location()
    open_store(location).put("a", b"x")
    assert open_store(f"{location}/").get("a") == b"x"
    assert not open_store(memory_location()).exists("a")


def test_relative_absolute_and_file_locations_are_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b%20=é").mkdir()
    forms = [
        "a b%20=é",
        "./a b%20=é/",
        str(tmp_path / "a b%20=é"),
        f"file://{tmp_path}/a%20b%2520=%C3%A9/",
        f"file://localhost{tmp_path}/a b%2520=é",
        f"file:{tmp_path}/a%20b%2520=é",
    ]
    expected = f"file://{tmp_path}/a%20b%2520=%C3%A9"
    assert {canonical_location(form) for form in forms} == {expected}
    for number, form in enumerate(forms):
        open_store(form).put(str(number), b"")
    assert len(list((tmp_path / "a b%20=é").iterdir())) == len(forms)


@pytest.mark.parametrize("name", ["plain", "a b", "50%", "#1?", "x=é", "{a}`<>"])
def test_local_url_is_the_one_deltalake_uses(tmp_path, name):
    location = str(tmp_path / name)
    write_deltalake(location, pa.table({"a": [1]}))
    assert f"{open_store(location).url}/" == DeltaTable(location).table_uri


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3a://bucket/a b", "s3://bucket/a%20b"),
        ("s3://key:secret@bucket/t?token=secret", "s3://bucket/t"),
        ("gs://bucket", "gs://bucket"),
        ("abfss://box@acc.dfs.core.windows.net/t", None),
        ("abfs://box/t", None),
        ("/", "file:///"),
    ],
)
def test_canonical_location_is_stable_and_bare(location, expected):
    canonical = canonical_location(location)
    assert canonical == (expected or location)
    assert canonical_location(canonical) == canonical


def test_error_about_a_host_shows_no_password():
    with pytest.raises(StorageError, match="a file location has no host") as caught:
        canonical_location("file://me:secret@host/t")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("location", ["ftp://host/t", "file://host/t"])
def test_location_of_an_unknown_kind_is_refused(location):
    with pytest.raises(StorageError, match=r"aren't supported|has no host"):
        open_store(location)


def test_unwritable_place_is_a_storage_error_naming_it(tmp_path):
    Path(tmp_path / "file").write_bytes(b"")
    store = open_store(str(tmp_path))
    with pytest.raises(StorageError, match="file/below") as caught:
        store.put_new("file/below", b"x")
    assert isinstance(caught.value.__cause__, OSError)


def test_links_are_listed_and_deleted_as_such(tmp_path):
    others, place = tmp_path / "others", tmp_path / "place"
    (others / "deep").mkdir(parents=True)
    (others / "deep" / "file").write_bytes(b"theirs")
    (place / "sub").mkdir(parents=True)
    (place / "sub" / "own").write_bytes(b"ours")
    (place / "folder").symlink_to(others)
    (place / "sub" / "file").symlink_to(others / "deep" / "file")
    store = open_store(str(place))

    listed = {found.path: found.is_link for found in store.list_own()}
    assert listed == {"folder": True, "sub/file": True, "sub/own": False}
    assert store.delete_own(["folder/deep/file", "sub", "none/x", "sub/own/x"]) == [
        "folder/deep/file"
    ]
    assert store.delete_own(listed) == []
    store.delete_remains()

    assert not place.exists()
    assert (others / "deep" / "file").read_bytes() == b"theirs"


def test_link_that_takes_a_folders_place_is_not_followed(tmp_path):
    others, place = tmp_path / "others", tmp_path / "place"
    for folder in (others, place / "sub"):
        (folder / "empty").mkdir(parents=True)
        (folder / "file").write_bytes(b"x")
    store = open_store(str(place))
    paths = [found.path for found in store.list_own()]
    (place / "sub").rename(tmp_path / "away")
    (place / "sub").symlink_to(others)

    assert store.delete_own(paths) == ["sub/file"]
    store.delete_remains()

    assert (others / "file").exists()
    assert (others / "empty").exists()


def test_location_may_be_a_link_itself(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    (place / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(place)
    store = open_store(str(tmp_path / "link"))

    assert [found.path for found in store.list_own()] == ["file"]
    assert store.delete_own(["file"]) == []
    (place / "sub" / "empty").mkdir(parents=True)
    store.delete_remains()
    assert list(place.iterdir()) == []


def test_list_goes_round_in_no_circle(tmp_path):
    place = tmp_path / "place"
    (place / "sub").mkdir(parents=True)
    (place / "sub" / "file").write_bytes(b"x")
    (tmp_path / "other").write_bytes(b"xyz")
    for name in ("a", "b"):
        (place / name).symlink_to(place)
    (place / "link").symlink_to(tmp_path / "other")
    (place / "loop").symlink_to(place / "loop")
    (place / "nowhere").symlink_to(tmp_path / "none")
    store = open_store(str(place))

    assert [(m.path, m.size_bytes) for m in store.list()] == [
        ("link", 3),
        ("sub/file", 1),
    ]
    assert store.head_linked("a/sub/file") is not None
    assert store.head_linked("loop") is None
