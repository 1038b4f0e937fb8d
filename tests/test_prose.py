"""Rules of prose that a test can hold; ruff's D401 holds the imperative mood."""

import ast
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
TESTS = Path(__file__).parent
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_DOCUMENTED = ast.Module | ast.ClassDef | _FUNCTION

# Words that begin a noun phrase or a clause, never an imperative sentence.
_NOT_IMPERATIVE = re.compile(
    "(A|After|All|An|And|Any|As|At|Before|Both|By|Each|Either|Every|Everything|For|From"
    "|How|If|In|It|Its|Like|Neither|No|Nobody|None|Nothing|Of|On|One|Only|Or|Others?"
    "|Some|Somebody|Someone|Such|That|The|Their|Then|There|These|They|This|Those|Two|We"
    r"|What|Whatever|When|Where|Whether|Which|While|Who|Whoever|Why|With|Without)\b"
)
# Instead, name the process, the writer, the version or the outcome.
_FORBIDDEN = (
    "someone",
    "somebody",
    "whoever",
    "nobody else",
    "there is no telling",
    "no telling",
    "let go",
    "lets go",
    "last one out",
    "can be had",
    "can't be had",
    "is away",
    "is told",
    "are told",
    "comes of",
    "on us to",
    "for us to",
    "round the catalog",
    "by now",
    "how it stands",
    "may stand or not",
    "the commit stands",
    "commits stand",
    "belongs to table",
)
_PHRASES = re.compile(rf"\b(?:{'|'.join(map(re.escape, _FORBIDDEN))})\b", re.IGNORECASE)


@cache
def _nodes() -> list[tuple[str, ast.AST]]:
    return [
        (str(path.relative_to(SOURCE)), node)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
    ]


def _docstrings() -> Iterator[tuple[str, str]]:
    for path, node in _nodes():
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield f"{path}: {getattr(node, 'name', 'module')}", text


def _functions() -> Iterator[tuple[str, str]]:
    """The docstrings of functions; a property's may be a noun phrase."""
    for path, node in _nodes():
        if not isinstance(node, _FUNCTION) or _is_property(node):
            continue
        if text := ast.get_docstring(node):
            yield f"{path}: {node.name}", text


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(name.endswith(("property", ".setter")) for name in names)


def _texts() -> Iterator[tuple[str, str]]:
    """Docstrings, and the parts of all other strings, such as messages."""
    for path, node in _nodes():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f"{path}:{node.lineno}", " ".join(node.value.split())


def _comments() -> Iterator[tuple[str, str]]:
    """The comments of the package and of its tests."""
    for folder in (SOURCE, TESTS):
        for path in sorted(folder.rglob("*.py")):
            with tokenize.open(path) as file:
                for token in tokenize.generate_tokens(file.readline):
                    if token.type == tokenize.COMMENT:
                        yield f"{path.name}:{token.start[0]}", token.string


def _test_docstrings() -> Iterator[tuple[str, str]]:
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
                where = f"{path.name}: {getattr(node, 'name', 'module')}"
                yield where, " ".join(text.split())


def _leans_on_its_neighbour(text: str) -> bool:
    """Whether a docstring can't be understood without the one before it."""
    return text.startswith(("The same", "Same ", "Like the one", "As above", "Ditto"))


def _is_imperative(text: str) -> bool:
    """Whether a docstring may be a command, by its first word."""
    return _NOT_IMPERATIVE.match(text) is None


def test_docstrings_stand_alone() -> None:
    assert [name for name, text in _docstrings() if _leans_on_its_neighbour(text)] == []


@pytest.mark.parametrize("text", ["The same for an open catalog.", "Same as `f`."])
def test_docstring_that_leans_on_another_is_found(text: str) -> None:
    assert _leans_on_its_neighbour(text)


def test_docstrings_of_functions_are_imperative() -> None:
    assert [name for name, text in _functions() if not _is_imperative(text)] == []


@pytest.mark.parametrize(
    "text", ["Whether it is ours.", "One table.", "Nothing goes there.", "As Spark."]
)
def test_docstring_that_is_no_command_is_found(text: str) -> None:
    assert not _is_imperative(text)
    assert _is_imperative("Return whether the table is fenced.")


def test_texts_name_who_acts() -> None:
    texts = chain(_texts(), _comments(), _test_docstrings())
    found = [(name, m[0]) for name, text in texts if (m := _PHRASES.search(text))]
    assert found == []


@pytest.mark.parametrize(
    "text", ["Somebody else publishes.", "It can be had later.", "it is\nlet go now"]
)
def test_forbidden_phrase_is_found(text: str) -> None:
    assert _PHRASES.search(" ".join(text.split()))
    assert not _PHRASES.search("another process is publishing the version")
