"""The page that compares delta-spark's API with this one says what the code does."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delkalakedb import spark as dks
from delkalakedb.errors import DeltaError
from delkalakedb.spark import exceptions, face
from tests.support.pages import DOCS

PAGE = (DOCS / "spark-delta.md").read_text()
CHECKOUT = "DELKALAKEDB_TEST_DELTA_CHECKOUT"
OURS = {name: getattr(face, name) for name in dir(face) if name.startswith("Delta")}


def listed() -> dict[str, list[str]]:
    """Return the parameters of delta-spark's methods, as the page has them."""
    rows = re.findall(r"^\| `(\w+\.\w+)\((.*?)\)` \|", PAGE, re.MULTILINE)
    return {name: [p for p in given.split(", ") if p] for name, given in rows}


def parameters(call: Callable[..., Any]) -> list[str]:
    """Return the names of a method's parameters without `self`."""
    found = inspect.signature(call).parameters.values()
    star = inspect.Parameter.VAR_POSITIONAL
    names = [f"*{p.name}" if p.kind is star else p.name for p in found]
    return [name for name in names if name != "self"]


def test_methods_of_the_page_have_its_parameters() -> None:
    methods = listed()
    extra = re.search(r"Only here: (.*?)\.\n", PAGE, re.DOTALL)
    assert extra is not None

    for name, wanted in methods.items():
        kind, _, method = name.partition(".")
        assert parameters(getattr(OURS[kind], method))[: len(wanted)] == wanted, name
    public = {
        f"{kind}.{name}"
        for kind, each in OURS.items()
        for name in vars(each)
        if not name.startswith("_")
    }
    assert public == {*methods, *re.findall(r"`(.*?)`", extra[1])}


def test_arguments_of_the_page_exist() -> None:
    named = re.findall(r"`dks\.(\w+)\((\w+)\)`", PAGE)

    assert named
    for function, argument in named:
        assert argument in inspect.signature(getattr(dks, function)).parameters


def options_of(page: str, kind: str) -> set[str]:
    """Return the options in the first column of a page's table."""
    found = re.search(rf"^\| {kind} \|.*\n\|-.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert found is not None, kind
    cells = re.findall(r"^\| (.*?) \|", found[1], re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([\w.*]+)`", cell)}


@pytest.mark.since_pyspark("4.0")
def test_pages_have_the_options_that_the_data_source_knows() -> None:
    from delkalakedb.spark.reader import READ_OPTIONS, SourceOptions
    from delkalakedb.spark.writer import BatchWriter, StreamWriter

    page = (DOCS / "spark.md").read_text()
    read, streamed, written = (
        options_of(page, f"option of a {kind}") for kind in ("read", "stream", "write")
    )
    sentence = re.search(r"^A stream takes (.*?)\.\s", page, re.MULTILINE | re.DOTALL)
    assert sentence is not None
    sunk = {*re.findall(r"`([\w.*]+)`", sentence[1])}
    refused = options_of(PAGE.partition("aren't supported")[2], r"option of .*?")

    assert read | streamed == {*READ_OPTIONS, "storage.*"}
    assert written == {*BatchWriter.known, "storage.*"}
    assert sunk | {"checkpointLocation"} == {*StreamWriter.known, "storage.*"}
    assert {"excludeRegex", "dataChange", "replaceOn"} <= refused
    for known in (READ_OPTIONS, BatchWriter.known, StreamWriter.known):
        for name in refused:
            with pytest.raises(DeltaError, match=name.lower()):
                SourceOptions({name.lower(): "x"}, known)


@pytest.fixture
def checkout() -> Path:
    """The checkout of delta-io/delta that the environment names."""
    if not (found := os.environ.get(CHECKOUT)):
        pytest.skip(f"{CHECKOUT} doesn't name a checkout of delta-io/delta")
    return Path(found)


@pytest.mark.soak
def test_page_has_all_that_delta_spark_has(checkout: Path) -> None:
    package = checkout / "python" / "delta"
    tables = ast.parse((package / "tables.py").read_text())
    errors = ast.parse((package / "exceptions" / "base.py").read_text())

    theirs = {
        f"{kind.name}.{method.name}": _names(method)
        for kind in _classes(tables)
        for method in kind.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
    }
    assert theirs == listed()
    for error in _classes(errors):
        assert hasattr(exceptions, error.name)


@pytest.mark.soak
def test_page_has_all_options_of_delta_spark(checkout: Path) -> None:
    source = next(checkout.glob("spark/**/sql/delta/DeltaOptions.scala")).read_text()
    body = source.partition("object DeltaOptions")[2].partition("validOptionKeys")[0]
    theirs = {*re.findall(r'val [A-Z_]+ = "([a-z][\w.]+)"', body)}
    page = (DOCS / "spark.md").read_text()
    known = {*re.findall(r"`([\w.]+)`", f"{PAGE}{page}")}

    assert theirs - known == set()


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["classic", "connect"])
def test_delta_sparks_own_tests_pass(checkout: Path, mode: str, tmp_path: Path) -> None:
    outcomes = tmp_path / "outcomes.json"
    script = Path(__file__).parents[2] / "scripts" / "delta_spark_tests.py"
    command = [sys.executable, str(script), str(checkout), "--json", str(outcomes)]

    subprocess.run([*command, *["--connect"] * (mode == "connect")], timeout=1200)

    found = json.loads(outcomes.read_text())
    failed = {name for name, each in found.items() if each["outcome"] == "failed"}
    assert len(found) >= 46
    assert failed == set(re.findall(r"^\| `(test_\w+\.\w+)` \|", PAGE, re.MULTILINE))


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    yield from (node for node in tree.body if isinstance(node, ast.ClassDef))


def _names(method: ast.FunctionDef) -> list[str]:
    star = method.args.vararg
    names = [given.arg for given in method.args.args][1:]
    return names if star is None else [*names, f"*{star.arg}"]
