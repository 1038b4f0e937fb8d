"""The PySpark API for tables of a SQL catalog.

In the examples of the API reference, `dks` is this package and `spark` a session. The
folder, its catalog and its table `sales` are those of the package `delkalakedb`.
"""

from typing import TYPE_CHECKING

from delkalakedb.doors import door
from delkalakedb.spark.session import check_pyspark, choose_python

if TYPE_CHECKING:
    from delkalakedb.spark.face import (
        DeltaTable as DeltaTable,
        IdentityGenerator as IdentityGenerator,
        foreach_batch as foreach_batch,
        write as write,
    )
    from delkalakedb.spark.reader import read as read
    from delkalakedb.spark.scale import *
    from delkalakedb.spark.session_catalog import use as use
    from delkalakedb.spark.sparksql import sql as sql
    from delkalakedb.spark.stand_in import install as install
    from delkalakedb.spark.stream import *
else:
    _find, __dir__ = door(
        __name__,
        {
            "face": "DeltaTable IdentityGenerator foreach_batch write",
            "reader": "read",
            "scale": "checkpoint import_table verify",
            "session_catalog": "use",
            "sparksql": "sql",
            "stand_in": "install",
            "stream": "StreamReader",
        },
    )

    def __getattr__(name: str) -> object:
        # so that a missing pyspark gives one sentence instead of a traceback
        if name in __all__:
            check_pyspark()
        return _find(name)


choose_python()

__all__ = [
    "DeltaTable",
    "IdentityGenerator",
    "checkpoint",
    "foreach_batch",
    "import_table",
    "install",
    "read",
    "sql",
    "use",
    "verify",
    "write",
]
