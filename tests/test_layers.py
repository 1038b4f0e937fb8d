"""Imports go one way, downwards, and each driver has one seam."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "delkalakedb"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE
PUBLIC = "the package's own namespace"
LAYERS = (
    ("errors", "redaction"),
    ("uri_options",),
    ("uri",),
    ("settings",),
    ("config", "telemetry"),
    ("model",),
    ("catalog", "storage"),
    ("mirror",),
    ("migrate",),
    ("workspace",),
    ("commits",),
    ("table",),
    ("spark",),
    (PUBLIC, "auto", "connection"),
    ("cli",),
    ("__main__",),
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
SEAMS = {
    "adbc_driver_manager": ("catalog/postgres_bulk.py",),
    "adbc_driver_postgresql": ("catalog/postgres_bulk.py",),
    "deltalake": ("errors.py", "table/", "workspace/"),
    "duckdb": ("catalog/duckdb.py", "table/duck.py"),
    "obstore": ("storage/",),
    "prompt_toolkit": ("cli/prompt.py",),
    "psycopg": ("catalog/postgres.py",),
    "pydantic": ("config.py", "settings.py"),
    "pydantic_core": ("config.py", "settings.py"),
    "pydantic_settings": ("settings.py",),
    "pyspark": ("spark/",),
    "rich": ("cli/",),
    "sqlite3": ("catalog/sqlite.py",),
}


def violations(root: Path) -> list[str]:
    """What breaks the rules in the package at `root`."""
    return [
        f"{path.relative_to(root).as_posix()}: {problem}"
        for path in sorted(root.rglob("*.py"))
        for problem in check_file(path, root)
    ]


def check_file(path: Path, root: Path) -> Iterator[str]:
    where = path.relative_to(root)
    for target in sorted(imported_modules(path, root)):
        top, *rest = target.split(".")
        if top in SEAMS and not where.as_posix().startswith(SEAMS[top]):
            yield f"imports {top}, which only {' and '.join(SEAMS[top])} may"
        if top == PACKAGE and where.as_posix() != "__init__.py":
            yield from check_unit(unit_of(where), rest[0] if rest else PUBLIC)


def check_unit(source: str, target: str) -> Iterator[str]:
    for unit in (source, target):
        if unit not in LEVEL:
            yield f"{unit} has no layer"
            return
    if source != target and LEVEL[target] >= LEVEL[source]:
        yield f"{source} imports {target}, which isn't below it"


def unit_of(where: Path) -> str:
    return where.parts[0].removesuffix(".py")


def imported_modules(path: Path, root: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= resolve(node, path, root)
    return found


def resolve(node: ast.ImportFrom, path: Path, root: Path) -> set[str]:
    base = node.module or ""
    if node.level:
        folder = path.parents[node.level - 1].relative_to(root.parent)
        base = ".".join([*folder.parts, *filter(None, [node.module])])
    if base != PACKAGE:
        return {base}
    # `from delkalakedb import x`: a module of ours, or a name of the public face
    return {f"{base}.{a.name}" if exists(root / a.name) else base for a in node.names}


def exists(module: Path) -> bool:
    return module.is_dir() or module.with_suffix(".py").is_file()


def test_package_keeps_to_its_layers() -> None:
    assert violations(SOURCE) == []


def test_every_module_of_the_package_has_a_layer() -> None:
    units = {unit_of(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")}

    assert units - {"__init__"} <= set(LEVEL)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / PACKAGE
    for unit in ("model", "catalog", "storage", "mirror", "table", "spark", "cli"):
        (root / unit).mkdir(parents=True)
    (root / "errors.py").touch()
    (root / "commits.py").touch()
    return root


@pytest.mark.parametrize(
    ("file", "code", "problem"),
    [
        ("model/x.py", "import delkalakedb.catalog.sqlite", "model imports catalog"),
        ("model/x.py", "from delkalakedb.cli import main", "model imports cli"),
        ("model/x.py", "from delkalakedb import mirror", "model imports mirror"),
        ("model/x.py", "from ..storage import base", "model imports storage"),
        ("model/x.py", "from .. import table", "model imports table"),
        ("model/x.py", "def f():\n    import delkalakedb.cli", "model imports cli"),
        ("model/x.py", "from delkalakedb import DeltaTable", f"model imports {PUBLIC}"),
        ("catalog/x.py", "import delkalakedb.storage", "catalog imports storage"),
        ("storage/x.py", "import delkalakedb.catalog", "storage imports catalog"),
        ("table/x.py", "from delkalakedb.spark import a", "table imports spark"),
        ("commits.py", "import delkalakedb.table.a", "commits imports table"),
        ("errors.py", "import delkalakedb.uri", "errors imports uri"),
        ("model/x.py", "import delkalakedb.novel", "novel has no layer"),
        ("catalog/x.py", "import psycopg.rows", "imports psycopg"),
        ("catalog/postgres.py", "import sqlite3", "imports sqlite3"),
        ("catalog/sqlite.py", "from duckdb import connect", "imports duckdb"),
        ("catalog/x.py", "import obstore as o", "imports obstore"),
        ("table/x.py", "from pyspark.sql import Row", "imports pyspark"),
        ("mirror/x.py", "import deltalake", "imports deltalake"),
        ("table/table.py", "import rich", "imports rich"),
        ("cli/main.py", "import pydantic", "imports pydantic"),
    ],
)
def test_broken_rule_is_reported(
    package: Path, file: str, code: str, problem: str
) -> None:
    (package / file).write_text(code)

    (found,) = violations(package)
    assert found.startswith(f"{file}: {problem}")


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("model/x.py", "from delkalakedb.errors import UriError"),
        ("model/x.py", "from . import codec\nfrom .codec import a\nimport json"),
        ("mirror/x.py", "import delkalakedb.catalog, delkalakedb.storage"),
        ("table/x.py", "import delkalakedb.commits\nimport deltalake"),
        ("cli/output.py", "import rich.table\nfrom delkalakedb import DeltaTable"),
        ("catalog/postgres.py", "import psycopg\nfrom ..model import codec"),
        ("__init__.py", "from delkalakedb.cli import main\nfrom .table import a"),
    ],
)
def test_allowed_import_is_not_reported(package: Path, file: str, code: str) -> None:
    (package / file).write_text(code)

    assert violations(package) == []
