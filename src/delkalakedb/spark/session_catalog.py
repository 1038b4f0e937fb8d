"""The catalog of a Spark session, in which tables are found by name and by location."""

import re
from typing import TYPE_CHECKING

from delkalakedb.catalog import open_catalog
from delkalakedb.catalog.load import find_table_at
from delkalakedb.errors import (
    CatalogNotFoundError,
    DeltaError,
    TableNotFoundError,
    UriError,
)
from delkalakedb.migrate import name_of
from delkalakedb.model.records import Table
from delkalakedb.settings import Uri, is_deltasql, parse_uri, require_table
from delkalakedb.spark.exceptions import delta_spark_errors
from delkalakedb.spark.session import check_spark, session_id
from delkalakedb.storage import canonical_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "spark.delkalakedb.catalog"
# the id of the session that called `use`; the sessions of its streams have others
_SESSION = "spark.delkalakedb.session"
# by session id
_used: dict[str, Uri] = {}
# `delta.`, or our own format, before a location in backticks
_PATH = re.compile(r"(?:delta|deltasql)\.`(?P<path>[^`]+)`", re.IGNORECASE)
_SCHEMA = re.compile(r"(?:spark_catalog\.)?default\.", re.IGNORECASE)


def use(spark: "SparkSession", uri: str | None) -> None:
    """Make a catalog the session's own, so that its tables can be called by name.

    The URI stays in this process. Unlike the setting `spark.delkalakedb.catalog`, it
    may hold a password.

    Args:
        spark: the Spark session.
        uri: the catalog's `deltasql://` URI; None ends the use of a catalog.

    Raises:
        UriError: The URI can't be parsed, or names a table.

    Examples:
        >>> dks.use(spark, "deltasql://sqlite/meta.db")
        >>> dks.DeltaTable.forName(spark, "sales").toDF().count()
        3
    """
    check_spark(spark)
    if uri is None:
        _used.pop(_key(spark), None)
    else:
        _used[session_id(spark)] = _catalog(parse_uri(uri))
        spark.conf.set(_SESSION, session_id(spark))


def session_of(spark: "SparkSession | None") -> "SparkSession":
    """Return `spark`, or the active session if `spark` is None."""
    from pyspark.sql import SparkSession

    if spark is None and (spark := SparkSession.getActiveSession()) is None:
        raise DeltaError(
            "there is no active Spark session; create one with "
            "SparkSession.builder.getOrCreate()"
        )
    check_spark(spark)
    return spark


def catalog_of(spark: "SparkSession") -> Uri:
    """Return the URI of the session's catalog."""
    if (used := _used.get(_key(spark))) is not None:
        return used
    text = spark.conf.get(CATALOG, "")
    if not text:
        raise DeltaError(
            "the session has no catalog: call delkalakedb.spark.use(spark, "
            f"'deltasql://...'), or set {CATALOG}"
        )
    uri = _catalog(parse_uri(text))
    if uri.password is not None and "${" not in text:
        raise UriError(
            f"{CATALOG}: Spark shows its settings; write the password as ${{VAR}}, or "
            "call delkalakedb.spark.use"
        )
    return uri


def uri_of(spark: "SparkSession", identifier: str) -> Uri:
    """Return the URI of a table, given by URI, by name or as delta.`location`."""
    if is_deltasql(identifier):
        uri = parse_uri(identifier)
        require_table(uri)
        return uri
    if found := _PATH.fullmatch(identifier.strip()):
        return uri_at(spark, found["path"])
    return catalog_of(spark).with_table(_plain_name(identifier))


def uri_at(spark: "SparkSession", path: str) -> Uri:
    """Return the URI of the table whose files are at the location `path`."""
    with delta_spark_errors():
        return _found_at(catalog_of(spark), path)


def new_uri_at(uri: Uri, path: str) -> Uri:
    """Return the URI of the table at a location, or of a new one named by its folder.

    Args:
        uri: the URI of the catalog.
        path: the location.
    """
    try:
        return _found_at(uri, path)
    except TableNotFoundError:
        name = name_of(path)
    if any(table.name == name for table in tables_of(uri)):
        raise DeltaError(
            f"{path}: table {name} is at another location; give the new table a name "
            "with tableName()"
        )
    return uri.with_table(name)


def placed(uri: Uri, identifier: str) -> tuple[Uri, str | None]:
    """Return the URI of a table that may not exist yet, and its location if given.

    Args:
        uri: the URI of the catalog.
        identifier: a name, a `deltasql://` URI, a path, or delta.`path`.
    """
    if is_deltasql(identifier):
        return parse_uri(identifier), None
    found = _PATH.fullmatch(identifier.strip())
    if found or "/" in identifier:
        path = found["path"] if found else identifier
        return new_uri_at(uri, path), path
    return uri.with_table(_plain_name(identifier)), None


def _plain_name(identifier: str) -> str:
    return _SCHEMA.sub("", identifier.strip(), count=1).replace("`", "")


def _found_at(uri: Uri, path: str) -> Uri:
    location = canonical_location(path)
    name = find_table_at(open_catalog(uri), location)
    if name is None:
        raise TableNotFoundError(f"{location}: no table of {uri} is at this location")
    return uri.with_table(name)


def tables_of(uri: Uri) -> list[Table]:
    """Return the tables of a catalog; none if there is no catalog yet."""
    try:
        return open_catalog(uri).tables()
    except CatalogNotFoundError:
        return []


def _key(spark: "SparkSession") -> str:
    return str(spark.conf.get(_SESSION, None) or session_id(spark))


def _catalog(uri: Uri) -> Uri:
    if uri.table is not None:
        raise UriError(f"{uri} names a table; give the URI of its catalog")
    return uri
