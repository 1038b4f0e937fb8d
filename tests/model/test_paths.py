"""Paths of the log: every spelling leads where readers of Delta take it to lead."""

import posixpath
from urllib.parse import quote

import pytest
from hypothesis import example, given, strategies as st

from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import Add, Cdc, DeletionVector, Remove
from delkalakedb.model.paths import (
    Inside,
    Outside,
    check_inside,
    file_path,
    files_inside,
    log_path,
    resolve_path,
)

LOCATION = "file:///lake/a%20t"
BUCKET = "s3://bucket/lake/t"
UUID_VECTOR = "^-aqEH.-t@S}K{vb[*k^"
VECTOR_FILE = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("b.parquet", "b.parquet"),
        ("p=1/b.parquet", "p=1/b.parquet"),
        ("./b.parquet", "b.parquet"),
        ("s//b.parquet", "s/b.parquet"),
        ("s/../b.parquet", "b.parquet"),
        ("s%2F..%2Fb.parquet", "b.parquet"),
        ("%2E/b.parquet", "b.parquet"),
        ("../a%20t/b.parquet", "b.parquet"),
        ("/lake/a%20t/b.parquet", "b.parquet"),
        ("/lake/x/../a%20t/./b.parquet", "b.parquet"),
        ("//lake/a%20t/b.parquet", "b.parquet"),
        ("%2Flake%2Fa%20t%2Fb.parquet", "b.parquet"),
        ("file:/lake/a%20t/b.parquet", "b.parquet"),
        ("file:///lake/a%20t/b.parquet", "b.parquet"),
        ("FILE:///lake/a%20t/b.parquet", "b.parquet"),
        ("file://localhost/lake/a%20t/b.parquet", "b.parquet"),
        ("p=a%2520b/b.parquet", "p=a%20b/b.parquet"),
        ("%252E%252E/b.parquet", "%2E%2E/b.parquet"),
        ("a:b.parquet", "a:b.parquet"),
        ("t=10:00/b.parquet", "t=10:00/b.parquet"),
        ("...", "..."),
        ("..b/.c", "..b/.c"),
        ("a%zz.parquet", "a%zz.parquet"),
        ("a?b#c.parquet", "a?b#c.parquet"),
        ("a\\..\\b.parquet", "a\\..\\b.parquet"),
        ("%FF.parquet", "\udcff.parquet"),
    ],
)
def test_path_inside_has_one_key_however_it_is_spelt(path: str, key: str) -> None:
    assert resolve_path(path, LOCATION) == Inside(key)


@pytest.mark.parametrize(
    ("path", "url", "absolute"),
    [
        ("../b.parquet", "file:///lake/b.parquet", False),
        ("..%2Fb.parquet", "file:///lake/b.parquet", False),
        ("%2e%2e/b.parquet", "file:///lake/b.parquet", False),
        ("s/../../a%20tt/b", "file:///lake/a%20tt/b", False),
        ("../../../../etc/passwd", "file:///etc/passwd", False),
        ("", "file:///lake/a%20t", False),
        (".", "file:///lake/a%20t", False),
        ("s/..", "file:///lake/a%20t", False),
        ("x%00y", "file:///lake/a%20t/x%00y", False),
        ("/tmp/x", "file:///tmp/x", True),
        ("%2Ftmp%2Fx", "file:///tmp/x", True),
        ("file%3A%2F%2F%2Ftmp%2Fx", "file:///tmp/x", True),
        ("/lake/a%20tt/b", "file:///lake/a%20tt/b", True),
        ("/lake/a%20t", "file:///lake/a%20t", True),
        ("file:/tmp/x", "file:///tmp/x", True),
        ("file://host/lake/a%20t/b", "file://host/lake/a%20t/b", True),
        ("s3://bucket/b", "s3://bucket/b", True),
    ],
)
def test_path_outside_is_told_and_whether_it_is_absolute(
    path: str, url: str, absolute: bool
) -> None:
    assert resolve_path(path, LOCATION) == Outside(url, absolute)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("s3://bucket/lake/t/b", Inside("b")),
        ("s3a://bucket/lake/t/b", Inside("b")),
        ("/lake/t/b", Inside("b")),
        ("s3://other/lake/t/b", Outside("s3://other/lake/t/b", True)),
        ("file:///lake/t/b", Outside("file:///lake/t/b", True)),
        ("../u/b", Outside("s3://bucket/lake/u/b", False)),
    ],
)
def test_bucket_is_part_of_where_a_path_leads(
    path: str, place: Inside | Outside
) -> None:
    assert resolve_path(path, BUCKET) == place


def test_container_of_azure_is_part_of_where_a_path_leads() -> None:
    location = "abfss://c@account.dfs.core.windows.net/t"

    assert resolve_path(f"{location}/b", location) == Inside("b")
    other = resolve_path(f"{location}/b".replace("c@", "d@"), location)
    assert isinstance(other, Outside)


names = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1
).filter(lambda name: name not in (".", ".."))
steps = st.lists(st.sampled_from(["", ".", "..", "x", "y z", "%2E"]), max_size=6)


@given(st.lists(names, min_size=1, max_size=4))
@example(["a:", "b"])
def test_what_is_written_to_the_log_leads_back_to_its_file(parts: list[str]) -> None:
    path = "/".join(parts)
    place = resolve_path(log_path(path), LOCATION)

    # A first folder that ends with a colon would be the scheme of a URL.
    assert place == Inside(path) or parts[0].endswith(":")


@given(steps, st.booleans())
def test_resolved_path_is_that_of_the_operating_system(
    parts: list[str], absolute: bool
) -> None:
    text = "/" * absolute + "/".join(parts)
    place = resolve_path(quote(text), LOCATION)

    wanted = posixpath.normpath(posixpath.join("/lake/a t", text))
    found = (
        f"/lake/a t/{place.path}"
        if isinstance(place, Inside)
        else place.url.removeprefix("file://")
    )
    wanted = wanted.replace("//", "/")
    assert found == (wanted if isinstance(place, Inside) else quote(wanted))
    assert isinstance(place, Inside) == wanted.startswith("/lake/a t/")


def add(path: str, vector: DeletionVector | None = None) -> Add:
    return Add(
        path=path,
        partition_values={},
        size=1,
        modification_time=1,
        data_change=True,
        deletion_vector=vector,
    )


def vector(storage: str, text: str) -> DeletionVector:
    return DeletionVector(
        storage_type=storage, path_or_inline_dv=text, size_in_bytes=1, cardinality=1
    )


@pytest.mark.parametrize(
    ("given_vector", "files"),
    [
        (vector("u", UUID_VECTOR), ["b", VECTOR_FILE]),
        (vector("u", f"ab{UUID_VECTOR}"), ["b", f"ab/{VECTOR_FILE}"]),
        (vector("u", f"../{UUID_VECTOR}"), ["b"]),
        (vector("p", "file:///lake/a%20t/v.bin"), ["b", "v.bin"]),
        (vector("p", "/elsewhere/v.bin"), ["b"]),
        (vector("u", "no uuid"), ["b"]),
        (vector("i", "0123"), ["b"]),
    ],
)
def test_files_of_an_add_are_its_own_and_its_vectors(
    given_vector: DeletionVector, files: list[str]
) -> None:
    assert list(files_inside(add("b", given_vector), LOCATION)) == files


HOSTILE = [
    add("../b"),
    add("/tmp/b"),
    add("b", vector("p", "file:///tmp/v.bin")),
    add("b", vector("u", f"../..{UUID_VECTOR}")),
    Remove(path="..%2Fb", data_change=True),
    Cdc(path="_change_data/../../b", partition_values={}, size=1, data_change=False),
]


@pytest.mark.parametrize("action", HOSTILE)
def test_action_that_leaves_the_location_is_refused(
    action: Add | Remove | Cdc,
) -> None:
    with pytest.raises(ProtocolError, match=r"isn't a file below the table's location"):
        check_inside([action], LOCATION)


@pytest.mark.parametrize("path", ["", ".", "s/..", f"../{LOCATION.rpartition('/')[2]}"])
def test_new_file_at_the_location_itself_is_refused(path: str) -> None:
    change = Cdc(path=path, partition_values={}, size=1, data_change=False)
    for action in (add(path), change):
        with pytest.raises(ProtocolError, match="and not a file below the location"):
            check_inside([action], LOCATION, outside_files=True)
    check_inside([Remove(path=path, data_change=True)], LOCATION)


@pytest.mark.parametrize("path", ["%FF.parquet", "s/a%C3.parquet", "/lake/a%20t/%FF"])
def test_new_file_whose_name_is_not_utf_8_is_refused(path: str) -> None:
    with pytest.raises(ProtocolError, match=r"the file's name isn't valid UTF-8"):
        check_inside([add(path)], "/lake/a t", outside_files=True)
    check_inside([Remove(path=path, data_change=True), add("%C3%BC")], "/lake/a t")


def test_absolute_path_alone_is_taken_when_that_is_asked() -> None:
    taken = [action for action in HOSTILE if _is_taken(action, outside_files=True)]

    assert taken == HOSTILE[1:3]
    assert _is_taken(HOSTILE[1], had={"/tmp/b"})
    assert _is_taken(HOSTILE[2], had={"pfile:///tmp/v.bin"})
    assert not _is_taken(HOSTILE[2], had={"b"})
    assert not _is_taken(HOSTILE[0], had={"../b"})


def _is_taken(action: Add | Remove | Cdc, **options: object) -> bool:
    try:
        check_inside([action], LOCATION, **options)  # type: ignore[arg-type]
    except ProtocolError:
        return False
    return True


def test_refusal_shows_no_credential() -> None:
    with pytest.raises(ProtocolError) as caught:
        check_inside([add("s3://key:geheim@other/b?X-Amz-Signature=geheim")], BUCKET)

    assert "s3://other/b" in str(caught.value)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("p q", "p q=a%20b"),
        ("_p", "_p=a%20b"),
        ("p%q", "p%q=a%20b"),
        ("p/q", "p/q=a%20b"),
        ("../p", "..%2Fp=a%20b"),
        ("/p", "%2Fp=a%20b"),
        ("..", "..=a%20b"),
    ],
)
def test_folder_of_a_partition_stays_below_the_location(name: str, folder: str) -> None:
    path = file_path("f.parquet", {name: "a b"})

    assert path == f"{folder}/f.parquet"
    assert resolve_path(log_path(path), LOCATION) == Inside(path)
