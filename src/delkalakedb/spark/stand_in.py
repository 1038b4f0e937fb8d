"""The stand-in for the package `delta`, for code that was written for delta-spark."""

import inspect
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from delkalakedb.spark import exceptions, face

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGES = "spark.jars.packages"
# the delta-spark whose API this package has
_VERSION = "4.4.0"
_TABLES = (
    "DeltaMergeBuilder",
    "DeltaOptimizeBuilder",
    "DeltaTable",
    "DeltaTableBuilder",
    "IdentityGenerator",
)


class _StandIn(ModuleType):
    """A module that takes the place of one of delta-spark's."""


def install() -> None:
    """Let `from delta.tables import DeltaTable` import this package's `DeltaTable`.

    Code that was written for delta-spark then runs on sessions with a catalog. The
    modules `delta`, `delta.tables`, `delta.exceptions`, `delta.pip_utils` and
    `delta.version` exist in this process only.

    Raises:
        ImportError: The package `delta` is installed.

    Examples:
        >>> dks.install()
        >>> from delta.tables import DeltaTable
        >>> DeltaTable is dks.DeltaTable
        True
    """
    if isinstance(sys.modules.get("delta"), _StandIn):
        return
    found = find_spec("delta")
    if found is not None:
        raise ImportError(
            f"a package `delta` is installed ({found.origin or 'a namespace'}), which "
            "install() would hide: uninstall delta-spark, or import DeltaTable from "
            "delkalakedb.spark"
        )
    errors = {
        name: value
        for name, value in vars(exceptions).items()
        if inspect.isclass(value) and value.__module__ == exceptions.__name__
    }
    classes = {name: getattr(face, name) for name in _TABLES}
    tables = _module("delta.tables", classes)
    pip = {"configure_spark_with_delta_pip": _configured}
    said = {
        "tables": tables,
        "exceptions": _module("delta.exceptions", errors),
        "pip_utils": _module("delta.pip_utils", pip),
        "version": _module("delta.version", {"__version__": _VERSION}),
        "DeltaTable": face.DeltaTable,
        "__version__": _VERSION,
        **pip,
    }
    _module("delta", said)


def _configured(
    spark_session_builder: "SparkSession.Builder",
    extra_packages: Iterable[str] | None = None,
) -> "SparkSession.Builder":
    """Return the builder with the extra packages, because no JAR of Delta is needed."""
    extra = list(extra_packages or ())
    return spark_session_builder.config(
        map={_PACKAGES: ",".join(extra)} if extra else {}
    )


def _module(name: str, values: Mapping[str, object]) -> ModuleType:
    module = _StandIn(name, f"The stand-in of delkalakedb for `{name}` of delta-spark.")
    module.__spec__ = ModuleSpec(name, None, is_package="." not in name)
    module.__dict__.update(values, __all__=sorted(values))
    if "." not in name:
        module.__path__ = []
    sys.modules[name] = module
    return module
