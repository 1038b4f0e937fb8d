"""The PySpark data pipeline over SQL-backed tables."""

from importlib import import_module
from typing import TYPE_CHECKING

from delkalakedb.spark.session import check_pyspark

if TYPE_CHECKING:
    from delkalakedb.spark.reading import read
    from delkalakedb.spark.scale import checkpoint, import_table, verify
    from delkalakedb.spark.streaming import foreach_batch
    from delkalakedb.spark.table import DeltaTable
    from delkalakedb.spark.writing import write

__all__ = [
    "DeltaTable",
    "checkpoint",
    "foreach_batch",
    "import_table",
    "read",
    "verify",
    "write",
]

# Loaded on first use: what goes wrong without pyspark is said in one sentence.
_HOMES = {
    "DeltaTable": "table",
    "checkpoint": "scale",
    "foreach_batch": "streaming",
    "import_table": "scale",
    "read": "reading",
    "verify": "scale",
    "write": "writing",
}

if not TYPE_CHECKING:  # a checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        check_pyspark()
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
