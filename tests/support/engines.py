"""Which database engines a test runs on.

Tests in tests/catalog run on each engine, always. Above the catalog the engines differ
little, so there a test takes one engine, chosen by its name: each engine has a third of
the tests. A test keeps all of its engines if it names `engine` among its own arguments,
is parametrised or marked for engines, or is a soak test.
"""

import zlib
from pathlib import Path

import pytest

ENGINES = ("sqlite", "duckdb", "postgres")
# For tests of several processes, which DuckDB doesn't serve.
shared = pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
_TESTS = Path(__file__).parents[1]
_ALWAYS_ALL = (_TESTS, _TESTS / "catalog")


def add_option(parser: pytest.Parser) -> None:
    """Add `--engines` to pytest's options."""
    parser.addoption(
        "--engines",
        choices=("one", "all"),
        default="one",
        help="above tests/catalog, run each test on one engine in turn, or on all",
    )


def rotate(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the engines whose turn it isn't."""
    # A test that was named is wanted.
    named = any("::" in argument for argument in config.args)
    if named or config.getoption("engines") == "all":
        return
    left_out = [item for item in items if _takes_turns(item) and not _has_turn(item)]
    if left_out:
        gone = {*left_out}
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=left_out)


def _takes_turns(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    if "engine" not in item.callspec.params or item.path.parent in _ALWAYS_ALL:
        return False
    if "engine" in item._fixtureinfo.argnames:
        return False
    if any(item.get_closest_marker(name) for name in ("every_engine", "soak")):
        return False
    return not any(
        "engine" in _names(mark.args[0]) for mark in item.iter_markers("parametrize")
    )


def _has_turn(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    path = item.path.relative_to(_TESTS).as_posix()
    others = sorted(
        (name, index)
        for name, index in item.callspec.indices.items()
        if name != "engine"
    )
    key = repr((path, item.originalname, others)).encode()
    turn = ENGINES[zlib.crc32(key) % len(ENGINES)]
    return bool(item.callspec.params["engine"] == turn)


def _names(given: str | list[str] | tuple[str, ...]) -> list[str]:
    words = given.split(",") if isinstance(given, str) else given
    return [word.strip() for word in words]
