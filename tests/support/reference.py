"""The API reference: the public names, their docstrings and the examples in these.

A docstring has the sections of Google's style: `Args`, `Returns` or `Yields`, `Raises`
and `Examples`. CONTRIBUTING.md describes them.
"""

import ast
import asyncio
import builtins
import doctest
import inspect
import io
import os
import re
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, is_typeddict

import pyarrow as pa

import delkalakedb as dk
from delkalakedb import errors
from delkalakedb.deltalake.optimizer import Optimizer
from delkalakedb.mirror.verify import Report
from delkalakedb.query import Attachment

SOURCE = Path(dk.__file__).parent
SECTIONS = ("Args", "Returns", "Yields", "Raises", "Examples")
# What calls return without exporting it, by the namespace that documents it.
RETURNED: dict[str, list[Any]] = {"delkalakedb": [Attachment, Optimizer, Report]}
# Classes that users get from a call, so that the arguments of their own are internal.
MADE_BY_CALLS = {
    "delkalakedb.Catalog",
    "delkalakedb.Snapshot",
    "delkalakedb.spark.DeltaTable",
}
# What only a library calls.
HOOKS = {"settings_customise_sources"}
# delta-spark documents the methods that this package has in common with it.
DELTA_SPARK = "delkalakedb.spark.face"
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):\n((?:(?: .*)?\n)+)", re.M)
_ENTRY = re.compile(r"^ {4}(\S+): +\S", re.M)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Public:
    """A public function, class, method or property, by its full name."""

    name: str
    value: Any
    is_method: bool = False

    @property
    def docs(self) -> list[str]:
        """The docstring; a class's is followed by the one of its `__init__`."""
        described = [self.value]
        if isinstance(self.value, type):
            described.append(vars(self.value).get("__init__"))
        texts = (getattr(one, "__doc__", None) for one in described)
        return [inspect.cleandoc(text) for text in texts if text]

    @property
    def sections(self) -> dict[str, str]:
        """The texts of the sections by their titles."""
        return {title: text for doc in self.docs for title, text in _sections(doc)}

    @property
    def needs_example(self) -> bool:
        """Whether the reference shows how to call it."""
        if self._is_described_by_a_sentence:
            return False
        return not (self.is_method and self.value.__module__.startswith(DELTA_SPARK))

    @property
    def _is_described_by_a_sentence(self) -> bool:
        value = self.value
        if isinstance(value, type):
            return issubclass(value, BaseException) or is_typeddict(value)
        return isinstance(value, property)

    def problems(self) -> Iterator[str]:
        """Yield what the docstring lacks, and how to add it."""
        if not self.docs:
            yield f"{self.name} has no docstring"
            return
        if self._is_described_by_a_sentence:
            return
        sections = self.sections
        for titles in ([title for title, _ in _sections(doc)] for doc in self.docs):
            if titles != (ordered := sorted(titles, key=SECTIONS.index)):
                yield f"{self.name}: put its sections in the order {ordered}"
        described = _ENTRY.findall(sections.get("Args", ""))
        if described != (parameters := self._parameters()):
            yield (
                f"{self.name}: describe {parameters or 'nothing'} in `Args:`, in this "
                f"order, not {described or 'nothing'}"
            )
        if self._returns() and not {"Returns", "Yields"} & {*sections}:
            yield f"{self.name}: add `Returns:` (or `Yields:`) with what it gives"
        raised = _ENTRY.findall(sections.get("Raises", ""))
        for error in sorted(self._raised() - {*raised}):
            yield f"{self.name}: say in `Raises:` when {error} is raised"
        for error in raised:
            if not (hasattr(errors, error) or hasattr(builtins, error)):
                yield f"{self.name}: `Raises:` names {error}, which isn't an error"
        if self.needs_example and ">>> " not in sections.get("Examples", ""):
            yield f"{self.name}: add `Examples:` with a short `>>> ` example"

    def _parameters(self) -> list[str]:
        value = self.value
        if isinstance(value, type) and not self._is_called:
            return []
        found = [*inspect.signature(value).parameters]
        return [name for name in found if name not in ("self", "cls")]

    @property
    def _is_called(self) -> bool:
        """Whether users call the class with arguments of its own."""
        ours = hasattr(self.value, "model_fields") or _is_ours(self.value.__init__)
        return ours and self.name not in MADE_BY_CALLS

    def _returns(self) -> bool:
        if isinstance(self.value, type):
            return False
        given = inspect.signature(self.value).return_annotation
        return given not in (None, "None", inspect.Signature.empty)

    def _raised(self) -> set[str]:
        """Return the errors that the function itself raises."""
        if isinstance(self.value, type):
            return set()
        tree = ast.parse(textwrap.dedent(inspect.getsource(self.value)))
        return {
            node.exc.func.id
            for node in _own_nodes(tree.body[0])
            if isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and isinstance(node.exc.func, ast.Name)
        }


def _sections(doc: str) -> list[tuple[str, str]]:
    return [(found[1], found[2]) for found in _SECTION.finditer(f"{doc}\n")]


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below `node`, but none of an inner function or class."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            yield child
            yield from _own_nodes(child)


@cache
def reference() -> tuple[Public, ...]:
    """Return everything that the reference describes, each thing once."""
    found: dict[int, Public] = {}
    for namespace in _namespaces():
        module = import_module(namespace)
        values = [getattr(module, name) for name in module.__all__]
        for value in [*values, *RETURNED.get(namespace, [])]:
            if isinstance(value, ModuleType) or not _is_ours(value):
                continue
            for public in _with_members(namespace, value):
                found.setdefault(id(public.value), public)
    return tuple(found.values())


def _namespaces() -> list[str]:
    """Return the modules of the package that have an `__all__`, the shortest first."""
    paths = (p for p in SOURCE.rglob("*.py") if "\n__all__ = " in p.read_text("utf-8"))
    parts = (path.relative_to(SOURCE.parent).with_suffix("").parts for path in paths)
    return sorted(
        (".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts), key=len
    )


def _with_members(namespace: str, value: Any) -> Iterator[Public]:
    name = f"{namespace}.{value.__name__}"
    yield Public(name, value)
    if not isinstance(value, type):
        return
    members = {
        member: inner
        for base in reversed(value.__mro__)
        if _is_ours(base)
        for member, inner in vars(base).items()
    }
    for member, inner in members.items():
        # What `classmethod` and `staticmethod` wrap. A method that wraps another one,
        # as most of `aio` do, is described by the latter.
        inner = inspect.unwrap(getattr(inner, "__func__", inner))
        is_function = inspect.isfunction(inner) and _is_ours(inner)
        described = is_function or isinstance(inner, property)
        if described and not member.startswith("_") and member not in HOOKS:
            yield Public(f"{name}.{member}", inner, is_method=True)


def _is_ours(value: object) -> bool:
    return str(getattr(value, "__module__", "")).startswith(dk.__name__)


def make_shop(folder: Path) -> None:
    """Make the folder that the package's docstring describes, and a copy to keep.

    Args:
        folder: the folder's path, at which its catalog finds its tables.
    """
    folder.mkdir()
    rows = pa.table({"id": [1, 2], "city": ["Oslo", "Rome"], "amount": [10.0, 20.0]})
    more = pa.table({"id": [3], "city": ["Kyiv"], "amount": [30.0]})
    with dk.connect(f"deltasql://sqlite/{folder}/meta.db") as catalog:
        catalog.write("sales", rows)
        catalog.write("sales", more, mode="append")
    dk.close()
    shutil.copytree(folder, folder.with_name("kept"))


@contextmanager
def opened_shop(folder: Path) -> Iterator[None]:
    """Make the folder the working directory, with its first content."""
    before = Path.cwd()
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("kept"), folder)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        dk.unregister()
        dk.close()


def run_examples(public: Public, names: dict[str, Any]) -> int:
    """Run the examples of a docstring, which may await; return their number.

    Raise `AssertionError` with the expected and the actual output of the first example
    whose output differs.
    """
    examples = doctest.DocTestParser().get_examples(public.docs[0], public.name)
    checker = doctest.OutputChecker()
    with asyncio.Runner() as runner:
        for example in examples:
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile(example.source, public.name, "single", flags)
            with redirect_stdout(io.StringIO()) as out:
                if inspect.iscoroutine(waiting := eval(code, names)):
                    runner.run(waiting)
            got = out.getvalue()
            if not checker.check_output(example.want, got, _FLAGS):
                differs = checker.output_difference(example, got, _FLAGS)
                raise AssertionError(f"{public.name}: {example.source}{differs}")
    return len(examples)
