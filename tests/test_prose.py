"""Rules of prose that a test can hold; ruff's D401 holds the imperative mood."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _docstrings() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
                name = getattr(node, "name", "module")
                yield f"{path.relative_to(SOURCE)}: {name}", text


def _leans_on_its_neighbour(text: str) -> bool:
    """Whether a docstring can't be understood without the one before it."""
    return text.startswith(("The same", "Same ", "Like the one", "As above", "Ditto"))


def test_docstrings_stand_alone() -> None:
    assert [name for name, text in _docstrings() if _leans_on_its_neighbour(text)] == []


@pytest.mark.parametrize("text", ["The same for an open catalog.", "Same as `f`."])
def test_docstring_that_leans_on_another_is_found(text: str) -> None:
    assert _leans_on_its_neighbour(text)
