"""The deltalake face: deltalake's classes and functions for tables of a catalog.

The face stands in for classes and functions that deltalake keeps to itself, and that
change between minor versions. So it refuses other versions of deltalake.
"""

from typing import TYPE_CHECKING

import deltalake

from delkalakedb.doors import door
from delkalakedb.errors import DeltaError

SUPPORTED = ("1.6",)


def check_deltalake() -> None:
    """Raise `DeltaError` unless the installed deltalake is a supported version."""
    version = deltalake.__version__
    if ".".join(version.split(".")[:2]) not in SUPPORTED:
        known = " or ".join(f"{minor}.x" for minor in SUPPORTED)
        raise DeltaError(
            f"deltalake {version} isn't supported; install deltalake {known}"
        )


# Before the face is imported, because on another version even that may fail.
check_deltalake()

if TYPE_CHECKING:
    from delkalakedb.deltalake.create import *
    from delkalakedb.deltalake.dataset import *
    from delkalakedb.deltalake.expressions import *
    from delkalakedb.deltalake.live_rows import *
    from delkalakedb.deltalake.registration import *
    from delkalakedb.deltalake.table import *
    from delkalakedb.deltalake.transactions import *
    from delkalakedb.deltalake.vacuum import *
    from delkalakedb.deltalake.write import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "create": "convert_folder find_parquet read_footer",
            "dataset": "make_dataset odd_files scan_rows",
            "expressions": "predicate_from",
            "live_rows": "row_dataset",
            "registration": "QueryBuilder register unregister",
            "table": "DeltaTable",
            "transactions": "Transaction transaction",
            "vacuum": "Vacuum retention_of",
            "write": "Data convert_to_deltalake create_table_with_add_actions "
            "write_deltalake",
        },
    )
