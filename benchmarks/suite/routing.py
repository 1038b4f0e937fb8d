"""A pytest plugin that puts tables under the tests' temporary folders into a catalog.

delta-rs's suite loads it with `-p routing`. The tests call deltalake as before. A path
that a test passes to deltalake becomes a `deltasql://` URI with that path as its
location. If a folder has a log that the catalog doesn't know, the test made it by hand
or copied it, and the path is passed on unchanged.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import deltalake.fs._base_handler
import deltalake.query
import deltalake.table
import deltalake.transaction
import deltalake.writer.convert_to
import deltalake.writer.writer
import pytest

import delkalakedb as dk
from delkalakedb.deltalake.registration import register
from delkalakedb.errors import TableNotFoundError

CATALOG = os.environ["SUITE_CATALOG"]
RESULTS = Path(os.environ["SUITE_RESULTS"])
ROUTED = "routed"
# Each global that takes a URI, with the name of the argument.
ENTRIES = (
    (deltalake.table, "RawDeltaTable", "table_uri"),
    (deltalake.table, "_create_deltalake", "table_uri"),
    (deltalake.writer.writer, "write_deltalake_rust", "table_uri"),
    (deltalake.writer.convert_to, "_convert_to_deltalake", "uri"),
    (deltalake.transaction, "_create_table_with_add_actions", "table_uri"),
    (deltalake.fs._base_handler, "DeltaFileSystemHandler", "table_uri"),
)


class Router:
    """A mapping of paths under the temporary folder to URIs of the catalog."""

    def __init__(self, root: Path, catalog_uri: str) -> None:
        self.root = root.resolve()
        self.catalog_uri = catalog_uri
        self.item: pytest.Item | None = None

    def uri(self, table_uri: object) -> object:
        """Return the URI for a path that a test passes, and any other path as it is."""
        path = _local(table_uri)
        if path is None or self.root not in path.parents or _from_inside():
            return table_uri
        name = f"{path.name}_{hashlib.sha1(str(path).encode()).hexdigest()[:12]}"
        if self._foreign(path, name):
            return table_uri
        if self.item is not None and (ROUTED, True) not in self.item.user_properties:
            self.item.user_properties.append((ROUTED, True))
        return (
            f"{self.catalog_uri}?table={quote(name, safe='')}"
            f"&location={quote(str(path), safe='')}"
        )

    def _foreign(self, path: Path, name: str) -> bool:
        if not any((path / "_delta_log").glob("*")):
            return False
        with dk.connect(self.catalog_uri) as catalog:
            try:
                catalog.log(name).latest_version()
            except TableNotFoundError:
                return True
        return False


class Entry:
    """A wrapper of one of deltalake's globals that replaces paths by URIs."""

    def __init__(self, target: Any, argument: str, router: Router) -> None:
        self._target = target
        self._argument = argument
        self._router = router

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._routed(self._target, args, options)

    def is_deltatable(self, *args: Any, **options: Any) -> Any:
        return self._routed(self._target.is_deltatable, args, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def _routed(
        self, call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if args:
            args = (self._router.uri(args[0]), *args[1:])
        else:
            options[self._argument] = self._router.uri(options[self._argument])
        return call(*args, **options)


class Recorder:
    """A record of the outcome of each test."""

    def __init__(self, router: Router | None) -> None:
        self.router = router
        self.results: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if self.router is not None:
            self.router.item = item
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.results[report.nodeid] = {
                "outcome": report.outcome if report.when == "call" else "error",
                "message": _message(report),
            }
        if report.when == "teardown":
            result = self.results.setdefault(report.nodeid, {"outcome": "skipped"})
            result[ROUTED] = (ROUTED, True) in report.user_properties

    def pytest_sessionfinish(self) -> None:
        RESULTS.write_text(json.dumps(self.results, indent=1))


def pytest_configure(config: pytest.Config) -> None:
    router = None
    if CATALOG:
        router = Router(Path(config.getoption("basetemp")), CATALOG)
        register()
        for module, name, argument in ENTRIES:
            setattr(module, name, Entry(getattr(module, name), argument, router))
    config.pluginmanager.register(Recorder(router))


def _local(table_uri: object) -> Path | None:
    text = os.fspath(table_uri) if isinstance(table_uri, str | os.PathLike) else ""
    parts = urlsplit(text)
    if parts.scheme == "file":
        text = unquote(parts.path)
    elif parts.scheme or not text:
        return None
    return Path(text).resolve()


def _from_inside() -> bool:
    """Return whether the package's own code makes the call, with a real path."""
    frame = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("delkalakedb."):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _message(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr or "")
