"""Spark SQL over the tables of a catalog, translated to calls of the table API."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.spark.sparksql.sparksql import *
else:
    __getattr__, __dir__ = door(__name__, {"sparksql": "sql"})
