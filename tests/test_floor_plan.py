"""The floor plan of `docs/architecture.md`: doors, order, seams, names."""

import ast
import inspect
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from walk import walk

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.commit import Committed, Conflicted
from delkalakedb.mirror.publisher import Published, publish_table
from delkalakedb.model.rules import features
from delkalakedb.settings import format_uri, parse_uri
from delkalakedb.write import Engine, Operation, Staging, commit
from delkalakedb.write.engines import ArrowAppend, InPlace, Vectors
from delkalakedb.write.engines.deltars import DeltaRs

PACKAGE = "delkalakedb"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE
PUBLIC = "the package's own namespace"

# Packages from the bottom to the top: each imports only those before it.
PACKAGES = (
    ("errors", "doors", "forks", "clock"),
    ("waits",),
    ("settings",),
    ("telemetry",),
    ("model",),
    ("progress",),
    ("storage",),
    ("catalog",),
    ("mirror",),
    ("migrate",),
    ("write",),
    ("deltalake",),
    ("query",),
    ("spark",),
    (PUBLIC, "auto", "connection", "doctor"),
    ("aio",),
    ("cli",),
)
# Rooms, and modules beside them, of one package, in the same order.
ROOMS = {
    "model": "actions times display markup schema stats predicate vectors paths log "
    "records changes rules new_actions",
    "storage": "base location local remote store log",
    "catalog": "engine read commit cards snapshot pending_snapshot file_list catalog "
    "load admin",
    "mirror": "checkpoint foreign publisher fences verify",
    "write": "files operation engines unions committer restore properties",
    "deltalake": "expressions dataset live_rows scan feed vacuum raw optimizer create "
    "table write transactions registration",
    "query": "duck parquet sources filters metatables attachment formats selection "
    "relation append diff export",
    "aio": "work handles transaction_block",
    "spark": "exceptions pyspark_api session session_catalog schemas reader writer "
    "dml face sparksql stand_in stream scale",
    "cli": "columns output app options prompt shell commands",
}
# Each library has one place that imports it.
SEAMS = {
    "adbc_driver_manager": ("catalog/engine/postgres_bulk.py",),
    "adbc_driver_postgresql": ("catalog/engine/postgres_bulk.py",),
    "deltalake": ("errors.py", "deltalake/", "write/engines/deltars/"),
    "duckdb": ("catalog/engine/duckdb.py", "query/duck.py"),
    "greenlet": ("waits.py",),
    "obstore": ("storage/",),
    "opentelemetry": ("telemetry/",),
    "prometheus_client": ("telemetry/metrics_server.py",),
    "prompt_toolkit": ("cli/prompt.py",),
    "psycopg": ("catalog/engine/postgres.py",),
    "pydantic": ("settings/",),
    "pydantic_core": ("settings/",),
    "pydantic_settings": ("settings/",),
    "pyroaring": ("model/", "write/", "spark/dml/", "spark/reader/"),
    "pyspark": ("spark/",),
    # Commands and Python calls draw one bar.
    "rich": ("cli/", "progress.py"),
    "sqlglot": ("model/", "spark/sparksql/"),
    "sqlite3": ("catalog/engine/sqlite.py",),
    "yaml": ("settings/configuration.py",),
}
# Names of the deltalake face, besides the table itself, that commands use, and why.
# This list may only shrink.
FACE_IMPORTS = {
    "cli/commands/maintain.py: Vacuum": "plans a vacuum, to show it",
    "cli/commands/maintain.py: retention_of": "a table's retention, to show it",
    "cli/commands/migrate.py: convert_folder": "deltalake's `convert_to_deltalake`",
    "spark/dml/conversion.py: find_parquet": "lists a folder that is converted",
    "spark/dml/conversion.py: read_footer": "reads a file that is converted",
}
# The methods of a session whose rows have no type.
UNTYPED = {"query", "query_sql", "query_many"}
# Names that stand for one thing seen from several layers.
SHARED_NAMES = {
    "admin": "administration, and its commands",
    "checkpoint": "checkpoints, read and written",
    "log": "Delta's log, as an interface and in a store",
    "merge": "merges, by delta-rs and by Spark",
    "migrate": "the package, and its commands",
    "mirror": "the package, and its commands",
    "properties": "table properties, their types and their commits",
    "table": "`DeltaTable`, of deltalake's face and of Spark's",
    "vectors": "deletion vectors: their layout, and the engine that writes them",
    "write": "the write path, and `write_deltalake` on it",
}
# Public classes of one name. This list may only shrink.
TWINS = {
    "Catalog": "the public class is that of `catalog/`, with operations on files",
    "DeltaTable": "deltalake's, and delta-spark's",
    "Files": "files of a snapshot, and in Spark with their scan",
    "Output": "of a command, and of an operation of Spark",
    "Session": "of a database, and of Spark",
    "Target": "of an operation, and in Spark with its session",
    "Transaction": "deltalake's, and the one in SQL that commits it",
}
_LEVELS = {unit: level for level, units in enumerate(PACKAGES) for unit in units}


def test_package_keeps_to_its_floor_plan() -> None:
    assert violations(SOURCE) == []


def test_faces_use_the_deltalake_face_only_to_hand_a_table_over() -> None:
    found = {
        f"{path.relative_to(SOURCE).as_posix()}: {alias.name}"
        for face in ("cli", "spark")
        for path in (SOURCE / face).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(f"{PACKAGE}.deltalake")
        for alias in node.names
        if alias.name not in ("DeltaTable", "Transaction")
    }

    assert found == {*FACE_IMPORTS}


def violations(root: Path) -> list[str]:
    """Return the imports of the package at `root` that break a rule."""
    return [
        f"{path.relative_to(root).as_posix()}: {problem}"
        for path in sorted(root.rglob("*.py"))
        for problem in _check_file(path, root)
    ]


def _check_file(path: Path, root: Path) -> Iterator[str]:
    where = path.relative_to(root)
    home = where.parent.parts
    is_door = where.name == "__init__.py"
    for target in sorted(_imported_modules(path, root)):
        top, *rest = target.split(".")
        if top in SEAMS and not where.as_posix().startswith(SEAMS[top]):
            yield f"imports {top}, which only {' and '.join(SEAMS[top])} may"
        if top != PACKAGE or where.as_posix() == "__init__.py":
            continue
        yield from _check_order(where, rest, is_door)
        if rest and rest[0] != "model":
            yield from _check_door(home, tuple(rest), root)


def _check_order(where: Path, target: list[str], is_door: bool) -> Iterator[str]:
    source, unit = _unit_of(where), target[0] if target else PUBLIC
    for name in (source, unit):
        if name not in _LEVELS:
            yield f"{name} has no level"
            return
    if source != unit:
        if _LEVELS[unit] >= _LEVELS[source]:
            yield f"{source} imports {unit}, which isn't below it"
        return
    if is_door or source not in ROOMS or len(where.parts) == 1 or len(target) == 1:
        return
    rooms = ROOMS[source].split()
    own, other = where.parts[1].removesuffix(".py"), target[1]
    if own not in rooms or other not in rooms:
        yield f"{own if own not in rooms else other} has no place in {source}"
    elif rooms.index(other) > rooms.index(own):
        yield f"{source}/{own} imports {source}/{other}, which isn't below it"


def _check_door(
    home: tuple[str, ...], target: tuple[str, ...], root: Path
) -> Iterator[str]:
    if root.joinpath(*target).is_dir():
        return
    room = target[:-1]
    if room and home[: len(room)] != room:
        yield f"imports {'.'.join(target)} past the door of {'.'.join(room)}"


def _unit_of(where: Path) -> str:
    return where.parts[0].removesuffix(".py")


def _imported_modules(path: Path, root: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= _resolve(node, path, root)
    return found


def _resolve(node: ast.ImportFrom, path: Path, root: Path) -> set[str]:
    base = node.module or ""
    if node.level:
        folder = path.parents[node.level - 1].relative_to(root.parent)
        base = ".".join([*folder.parts, *filter(None, [node.module])])
    top, *rest = base.split(".")
    if top != PACKAGE:
        return {base}
    # `from package import x`: a module of ours, or a name of the package's door
    folder = root.joinpath(*rest)
    return {
        f"{base}.{a.name}" if _exists(folder / a.name) else base for a in node.names
    }


def _exists(module: Path) -> bool:
    return module.is_dir() or module.with_suffix(".py").is_file()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / PACKAGE
    for room in ("catalog/engine", "catalog/read", "storage/log", "write/engines"):
        (root / room).mkdir(parents=True)
    for unit in ("model/stats", "mirror", "deltalake", "spark", "cli"):
        (root / unit).mkdir(parents=True)
    for module in ("errors", "connection", "catalog/engine/sqlite", "storage/local"):
        (root / module).with_suffix(".py").touch()
    return root


@pytest.mark.parametrize(
    ("file", "code", "problem"),
    [
        ("model/x.py", "import delkalakedb.catalog", "model imports catalog"),
        ("model/x.py", "from delkalakedb.cli import main", "model imports cli"),
        ("model/x.py", "from delkalakedb import mirror", "model imports mirror"),
        ("model/x.py", "from ..storage import base", "model imports storage"),
        ("model/x.py", "from .. import deltalake", "model imports deltalake"),
        ("model/x.py", "def f():\n    import delkalakedb.cli", "model imports cli"),
        ("model/x.py", "from delkalakedb import DeltaTable", f"model imports {PUBLIC}"),
        ("storage/base.py", "import delkalakedb.catalog", "storage imports catalog"),
        ("deltalake/x.py", "from delkalakedb.spark import a", "deltalake imports sp"),
        ("write/files.py", "import delkalakedb.deltalake", "write imports deltalake"),
        ("errors.py", "import delkalakedb.settings", "errors imports settings"),
        ("model/x.py", "import delkalakedb.novel", "novel has no level"),
        ("catalog/engine/x.py", "import delkalakedb.catalog.read", "catalog/engine im"),
        (
            "mirror/x.py",
            "from delkalakedb.catalog.engine.sqlite import a",
            "imports ca",
        ),
        (
            "mirror/x.py",
            "from delkalakedb.catalog.engine import sqlite",
            "imports cata",
        ),
        ("mirror/x.py", "from delkalakedb.storage import local", "imports storage.loc"),
        ("catalog/read/x.py", "import delkalakedb.catalog.engine.sqlite", "imports ca"),
        ("catalog/engine/x.py", "import psycopg.rows", "imports psycopg"),
        ("catalog/engine/postgres.py", "import sqlite3", "imports sqlite3"),
        ("catalog/engine/sqlite.py", "from duckdb import connect", "imports duckdb"),
        ("catalog/engine/x.py", "import obstore as o", "imports obstore"),
        ("deltalake/x.py", "from pyspark.sql import Row", "imports pyspark"),
        ("mirror/x.py", "import deltalake", "imports deltalake"),
        ("write/engines/arrow.py", "import deltalake", "imports deltalake"),
        ("deltalake/table.py", "import rich", "imports rich"),
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
        ("model/log.py", "from . import actions\nfrom .actions import a\nimport json"),
        ("mirror/x.py", "import delkalakedb.catalog, delkalakedb.storage"),
        ("mirror/x.py", "from delkalakedb.catalog.engine import Backend"),
        ("mirror/x.py", "import delkalakedb.model.stats.stats"),
        ("storage/log/x.py", "from delkalakedb.storage.local import LocalStore"),
        ("catalog/read/x.py", "from delkalakedb.catalog.engine import Backend"),
        ("catalog/engine/x.py", "import delkalakedb.catalog.engine.sqlite"),
        ("deltalake/x.py", "import delkalakedb.write\nimport deltalake"),
        ("cli/output.py", "import rich.table\nfrom delkalakedb import DeltaTable"),
        ("catalog/engine/postgres.py", "import psycopg\nfrom ...model import actions"),
        ("__init__.py", "from delkalakedb.cli import main\nfrom .table import a"),
    ],
)
def test_allowed_import_is_not_reported(package: Path, file: str, code: str) -> None:
    (package / file).write_text(code)

    assert violations(package) == []


def _doors() -> list[Path]:
    return [p for p in SOURCE.rglob("__init__.py") if "door(" in p.read_text()]


def _imported(
    node: ast.ImportFrom, exported: dict[str, tuple[str, str]]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """What checkers see of an import: of a whole module, all that it defines."""
    module = str(node.module)
    if node.names[0].name != "*":
        for alias in node.names:
            yield alias.asname or alias.name, (module, alias.name)
        return
    for name, (home, _) in exported.items():
        if home == module and hasattr(import_module(module), name):
            yield name, (module, name)


@pytest.mark.parametrize("path", _doors(), ids=lambda p: p.parent.name)
def test_door_tells_checkers_what_it_exports(path: Path) -> None:
    tree = ast.parse(path.read_text())
    (block,) = (n for n in tree.body if isinstance(n, ast.If) and n.orelse)
    package = ".".join((PACKAGE, *path.parent.relative_to(SOURCE).parts))
    calls = [n for n in ast.walk(block) if isinstance(n, ast.Call)]
    (call,) = (n for n in calls if ast.unparse(n.func).endswith("door"))
    homes = ast.literal_eval(call.args[1])
    exported = {}
    for module, names in homes.items():
        for name, _, other in (text.partition(":") for text in names.split()):
            if name != ".":
                exported[other or name] = (f"{package}.{module}", name)
    checked = {
        name: home
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != PACKAGE
        for name, home in _imported(node, exported)
    }

    assert checked == exported
    # A module would take the place of a name once it is loaded.
    inside = {p.stem for p in path.parent.iterdir() if p.suffix == ".py" or p.is_dir()}
    assert not inside & set(exported)


def test_doors_load_nothing_by_themselves() -> None:
    doors = [".".join(p.parent.relative_to(SOURCE.parent).parts) for p in _doors()]
    code = (
        f"import sys, json\nfor door in {doors!r}: __import__(door)\n"
        "print(json.dumps(sorted(m for m in sys.modules if m.startswith('delk'))))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )

    packages = {
        ".".join(p.parent.relative_to(SOURCE.parent).parts)
        for p in SOURCE.rglob("__init__.py")
    }
    loaded = set(json.loads(done.stdout)) - packages
    assert loaded <= {
        f"{PACKAGE}.{name}" for name in ("doors", "errors", "spark.session")
    }


def test_map_names_what_is_there() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([\w/]+\.py)`\s+`([\w.]+)`", page)
    functions = re.findall(r"`([\w/]+\.py)`", page)

    assert len(named) > 20
    assert [path for path in functions if not (SOURCE / path).is_file()] == []
    assert [n for n in named if n[1] not in _definitions(SOURCE / n[0])] == []
    rooms = (p.parent.relative_to(SOURCE) for p in SOURCE.rglob("__init__.py"))
    there = (room.as_posix() for room in rooms if len(room.parts) > 1)
    tree = page.partition("## The tree")[2].partition("## Terms")[0]
    assert [r for r in there if f"`{r.partition('/')[2]}/`" not in tree] == []


def _definitions(path: Path) -> set[str]:
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (n for n in node.body if isinstance(n, ast.FunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_modules_are_named_by_nouns() -> None:
    odd = {"again", "opened", "real", "incoming", "outgoing", "fresh", "small"}
    odd |= {"prepared", "typed", "unpublished"}
    names = {path.stem for path in SOURCE.rglob("*.py")}

    assert not {name for name in names if name.endswith("ing")}
    assert not names & odd


def test_name_stands_for_one_thing() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in SOURCE.rglob("*"):
        if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py"))):
            places[path.stem].append(path.relative_to(SOURCE).as_posix())
    twice = {
        name
        for name, paths in places.items()
        if len(paths) > 1 and not _is_room_of_itself(paths)
    }

    assert twice - {"__init__"} == {*SHARED_NAMES}


def test_public_class_has_a_name_of_its_own() -> None:
    places: defaultdict[str, list[Path]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)

    assert {name for name, paths in places.items() if len(paths) > 1} == {*TWINS}


def _is_room_of_itself(paths: list[str]) -> bool:
    """Whether a room has one module of its own name, such as `catalog/catalog.py`."""
    room, module = sorted(paths, key=len)[:2]
    return len(paths) == 2 and module == f"{room}/{Path(room).name}.py"


def test_ratify_is_a_word_of_the_catalogs_commits() -> None:
    found = {
        f"{path.relative_to(SOURCE).as_posix()}: {node.name}"
        for path in SOURCE.rglob("*.py")
        if not path.is_relative_to(SOURCE / "catalog" / "commit")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and "ratif" in node.name.lower()
    }

    assert found == set()


# What commits besides the write path itself. This list may only shrink.
COMMITTERS = {
    # Its own wrapper.
    "catalog/catalog.py: self._try_commit",
    # A layer below the write path.
    "mirror/fences.py: catalog.commit",
}


def test_commits_go_through_the_write_path() -> None:
    found = {
        f"{path.relative_to(SOURCE).as_posix()}: {ast.unparse(node.func)}"
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "write" / "committer.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and re.fullmatch(
            r"commit|(\w+\.)*(_try_commit|catalog\.commit)", ast.unparse(node.func)
        )
    }

    assert found == COMMITTERS


def test_engines_differ_by_capabilities() -> None:
    found = {
        f"{path.relative_to(SOURCE).as_posix()}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if _asks_otherwise(node)
    }

    assert found == set()


def _asks_otherwise(node: ast.AST) -> bool:
    """Return whether `node` finds out what an engine can do, but not by capability."""
    match node:
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[where]):
            return _ends(where, "statements") or _is_engine(node.left)
        case ast.Compare(left=left):
            return _is_engine(left)
        case ast.Call(func=ast.Name(id="isinstance" | "hasattr"), args=[one, _]):
            return _ends(one, "backend", "session", "shared")
        case ast.Call(func=ast.Name(id="getattr"), args=[one, _, _]):
            return _ends(one, "backend", "session", "shared")
        case ast.Call(func=ast.Attribute(value=one, attr="get")):
            return _ends(one, "statements")
        case ast.Raise(exc=error):
            return error is not None and "NotImplementedError" in ast.unparse(error)
    return False


def _is_engine(node: ast.AST) -> bool:
    """Return whether `node` is the name of a backend's engine."""
    return _ends(node, "engine") and _ends(getattr(node, "value", node), "backend")


def _ends(node: ast.AST, *names: str) -> bool:
    """Return whether `node` is one of `names`, or an attribute of that name."""
    return ast.unparse(node).rpartition(".")[2].lstrip("_") in names


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(session, DuckDBSession)",
        "isinstance(catalog._backend, SqliteBackend)",
        "hasattr(self._backend, 'heads')",
        "getattr(session, 'made', None)",
        "'lock_table' in backend.statements",
        "'lock_table' not in self._session.statements",
        "backend.statements.get('lock_table')",
        "catalog._backend.engine == 'duckdb'",
        "self._backend.engine in ('duckdb', 'sqlite')",
        "raise NotImplementedError('no such engine')",
    ],
)
def test_engine_told_otherwise_than_by_capability_is_reported(code: str) -> None:
    assert any(map(_asks_otherwise, ast.walk(ast.parse(code))))


@pytest.mark.parametrize(
    "code",
    [
        "backend.capabilities.keeps_heads",
        "backend.statements['load_head']",
        "isinstance(write, Insert)",
        "hasattr(os, 'geteuid')",
        "self.engine == 'postgres'",
        "engine in files",
        "getattr(self.shared, name)",
    ],
)
def test_other_questions_than_about_engines_are_fine(code: str) -> None:
    assert not any(map(_asks_otherwise, ast.walk(ast.parse(code))))


def test_only_the_table_of_features_lists_features() -> None:
    found = {
        f"{path.relative_to(SOURCE).as_posix()}: {listed}"
        for path in SOURCE.rglob("*.py")
        for listed in _feature_lists(ast.parse(path.read_text()))
    }

    assert found == set()


def _feature_lists(tree: ast.Module) -> Iterator[str]:
    """Yield the collections, outside the table itself, that name several features."""
    for node in tree.body:
        table = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_ALL"
        for part in () if table else ast.walk(node):
            if isinstance(part, ast.Set | ast.List | ast.Tuple | ast.Dict):
                named = {n for each in ast.walk(part) if (n := _feature(each))}
                if len(named) > 1:
                    yield ast.unparse(part)


def _feature(node: ast.AST) -> str | None:
    """Return the feature that a constant of the table, or a string, names."""
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        value = getattr(features, name, None) if name.isupper() else None
    else:
        value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) and value in features.FEATURES else None


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("A = {ROW_TRACKING, 'catalogManaged'}", 1),
        ("def f(): return [features.ROW_TRACKING, CATALOG_MANAGED]", 1),
        ("A = {'x': ('true', ROW_TRACKING), 'y': ('true', CATALOG_MANAGED)}", 1),
        ("_ALL = (ROW_TRACKING, CATALOG_MANAGED)", 0),
        ("A = {ROW_TRACKING}; B = CATALOG_MANAGED", 0),
        ("A = (ROW_TRACKING, 'rowTracking', 1)", 0),
    ],
)
def test_list_of_features_is_found(code: str, count: int) -> None:
    assert len(list(_feature_lists(ast.parse(code)))) == count


# ---- values flow forward


def test_an_operation_becomes_the_value_that_the_next_step_takes() -> None:
    for step, made in (
        (Engine.stage, "Staging[_T]"),
        (Operation.stage, "Staging[_T]"),
        (Catalog._try_commit, "tuple[Committed | Skipped, ...] | Conflicted"),
        (commit, "tuple[Committed, ...] | Conflicted"),
        (publish_table, "Published"),
    ):
        said = inspect.signature(step).return_annotation
        said = getattr(said, "__name__", str(said))
        assert re.sub(r"\b(?:\w+\.)+(?=\w)|~", "", said) == made
    for value in (Operation, Staging, Committed, Conflicted, Published):
        assert value.__dataclass_params__.frozen


@pytest.mark.parametrize("engine", [DeltaRs, Vectors, ArrowAppend, InPlace])
def test_engine_stages_as_the_contract_says(engine: type) -> None:
    ours, contract = (inspect.signature(e.stage).parameters for e in (engine, Engine))
    assert [*ours] == [*contract]


def _filled(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The parameters that a function is handed to be filled."""
    given = function.args
    names = {
        arg.arg
        for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)
        if arg.annotation and ast.unparse(arg.annotation).startswith(FILLABLE)
    }
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)):
                if name in names and attr in FILLS:
                    yield name
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                if name in names:
                    yield name
            case ast.AugAssign(target=ast.Name(id=name)):
                if name in names:
                    yield name


FILLABLE = ("list[", "dict[", "set[", "defaultdict[", "Counter[", "Mutable")
FILLS = {
    *("append", "extend", "insert", "add", "update", "setdefault"),
    *("pop", "popitem", "clear", "remove", "discard"),
}
FILLED = {
    # A tree that is built branch by branch.
    "model/stats/footer.py: _put(values)",
}


def test_no_function_fills_what_it_is_handed() -> None:
    found = {
        f"{path.relative_to(SOURCE).as_posix()}: {node.name}({name})"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for name in _filled(node)
    }
    assert found == FILLED


def test_filled_parameter_is_found() -> None:
    tree = ast.parse(
        "def f(a: list[int], b: dict[str, int], c: list[int]):\n"
        "    a.append(1); b['x'] = 1; return c"
    )
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    assert [*_filled(function)] == ["a", "b"]


def test_rows_have_types() -> None:
    assert list(_untyped_readers(SOURCE)) == []


def _untyped_readers(root: Path) -> Iterator[str]:
    """Yield the modules that don't just test or drop rows without a type."""
    for path in sorted(root.rglob("*.py")):
        if any(map(_reads_rows, _outside_untyped(ast.parse(path.read_text())))):
            yield path.relative_to(root).as_posix()


def _outside_untyped(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below `node` that aren't part of an untyped method itself."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.FunctionDef) and child.name in UNTYPED):
            yield from _outside_untyped(child)


def _reads_rows(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr | ast.If | ast.UnaryOp):
        return False
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "bool":
        return False
    return any(map(_is_untyped, ast.iter_child_nodes(node)))


def _is_untyped(node: ast.AST) -> bool:
    """Return whether `node` calls an untyped method of another object than `self`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in UNTYPED
        and ast.unparse(node.func.value) != "self"
    )


@pytest.mark.parametrize(
    "code",
    [
        "((a, b),) = session.query('x', {})",
        "rows = session.query_sql(sql, {})",
        "for a, b in session.query('x', {}): pass",
        "names = [a for (a,) in self._session.query('x', {})]",
        "def f(): return session.query_many([])[0]",
        "pairs = dict(session.query('x', {}))",
        "if rows := session.query('x', {}): pass",
    ],
)
def test_rows_without_types_are_reported(package: Path, code: str) -> None:
    (package / "mirror" / "x.py").write_text(code)

    assert list(_untyped_readers(package)) == ["mirror/x.py"]


@pytest.mark.parametrize(
    "code",
    [
        "rows = session.rows(Row, 'x', {})",
        "(value,) = session.values('x', {})",
        "session.query_many(locks)",
        "if not session.query('x', {}): pass",
        "if session.query('x', {}): pass",
        "def f(): return bool(session.query('x', {}))",
    ],
)
def test_rows_that_are_typed_or_only_counted_are_fine(package: Path, code: str) -> None:
    (package / "mirror" / "x.py").write_text(code)

    assert list(_untyped_readers(package)) == []


def test_append_stays_a_short_walk(
    new_catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `walk` sets it.
    monkeypatch.setenv("DELKALAKEDB_MIRROR__LEASE", "60")
    uri = parse_uri(new_catalog_uri).with_table("t")
    traced = walk(format_uri(uri))

    assert len(traced.modules) <= 36
    assert traced.depth <= 18
