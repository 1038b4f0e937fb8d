"""Tables on a real S3 server, and proxies in front of it."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.storage import ObjectMeta, open_store
from tests.support.servers.http_proxy import Answer, Proxy, proxy
from tests.support.servers.stores import Place
from tests.support.twins import Twins, rows

DATA = pa.table({"id": [1, 2, 3, 4], "city": ["a b", "a b", "ü/%", None]})
MORE = pa.table({"id": [5, 6], "city": ["d", "c"]})
ANY_AGE: dict[str, Any] = {"retention_hours": 0, "enforce_retention_duration": False}
sqlite = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)


class S3Twins(Twins):
    """Ours is on S3, deltalake's on a disk."""

    def __init__(self, catalog_uri: str, folder: Path, place: Place) -> None:
        super().__init__(catalog_uri, folder)
        self.location, self.options = place.location, place.storage_options
        self.uri = placed(catalog_uri, place)

    @property
    def ours(self) -> dk.DeltaTable:
        return dk.DeltaTable(self.uri, storage_options=self.options)

    @property
    def mirror(self) -> deltalake.DeltaTable:
        """What plain deltalake sees on S3."""
        return deltalake.DeltaTable(self.location, storage_options=self.options)

    def write(self, data: Any, **options: Any) -> None:
        dk.write_deltalake(self.uri, data, storage_options=self.options, **options)
        deltalake.write_deltalake(self.path, data, **options)
        self.check()

    def check(self) -> None:
        ours, mirror, plain = self.ours, self.mirror, self.plain
        assert ours.version() == mirror.version() == plain.version()
        assert ours.schema() == mirror.schema() == plain.schema()
        assert rows(ours) == rows(mirror) == rows(plain)

    def paths(self) -> set[str]:
        """The data files that are on S3, of whatever version."""
        files = open_store(self.location, self.options).list()
        return {f.path for f in files if not f.path.startswith("_delta_log/")}


def everything(reader: Any) -> pa.Table:
    """What a reader gives."""
    return pa.RecordBatchReader.from_stream(reader).read_all()


def texts(table: pa.Table) -> list[str]:
    """The rows in an order that depends on nothing but them."""
    return sorted(map(repr, table.to_pylist()))


def placed(uri: str, place: Place) -> str:
    """The URI of a table `t` at a place."""
    return f"{uri}{'&' if '?' in uri else '?'}table=t&location={place.location}"


def objects(place: Place) -> dict[str, ObjectMeta]:
    """What is at a place, by path."""
    store = open_store(place.location, place.storage_options)
    return {file.path: file for file in store.list()}


@contextmanager
def watched(place: Place, **options: Any) -> Iterator[tuple[dict[str, str], Proxy]]:
    """Options that lead through a proxy, and what passes there."""
    with proxy(place.storage_options["AWS_ENDPOINT_URL"], **options) as passed:
        yield place.storage_options | {"AWS_ENDPOINT_URL": passed.endpoint}, passed


def refusing(*methods: str, after: int) -> Answer:
    """Refuses requests of these methods but for the first few."""
    seen = itertools.count()

    def answer(sent: str, headers: dict[str, str]) -> tuple[int, bytes] | None:
        refused = sent in methods and next(seen) >= after
        return (403, b"<Error><Code>AccessDenied</Code></Error>") if refused else None

    return answer
