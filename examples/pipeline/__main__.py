"""The command of the pipeline: `python -m pipeline --help`."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
from pyspark.sql import SparkSession
from rich.console import Console

import delkalakedb as dk
from delkalakedb.errors import DeltalakeDBError, UriError
from delkalakedb.settings.uri import Uri, format_uri, parse_uri
from delkalakedb.spark.session import check_spark

from .display import Display
from .feed import SMALLEST, Feed
from .layers import TABLES, Lake
from .run import SLOW, is_slow_start, run

_CONFIG: dict[str, bool | float | int | str | None] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": 8,
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
}


@click.command()
@click.option(
    "--rows",
    type=click.IntRange(min=SMALLEST),
    default=10_000_000,
    show_default=True,
    help="The number of events to generate.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="An empty folder for the tables' files, and for the catalog unless --catalog "
    "is given; a temporary folder by default.",
)
@click.option(
    "--catalog",
    help="The deltasql:// URI of a SQLite or Postgres catalog; needs --data.",
)
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    help="The number of cores that Spark uses; all by default.",
)
def main(rows: int, data: Path | None, catalog: str | None, cores: int | None) -> None:
    """Fill a bronze, a silver and a gold table with Spark, and check them."""
    if catalog is not None and data is None:
        raise click.UsageError("--catalog needs --data: where do the files go?")
    try:
        check_spark()
        with _folder(data) as folder:
            lake = _lake(folder, catalog)
            with _session(folder, cores) as spark:
                checks = run(spark, lake, Feed(rows), Display(Console()))
    except UriError as error:
        raise click.UsageError(str(error)) from error
    except (DeltalakeDBError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except Exception as error:
        if not is_slow_start(error):
            raise
        raise click.ClickException(SLOW) from error
    sys.exit(0 if all(check.passed for check in checks) else 1)


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="pipeline-") as name:
            yield Path(name)
        return
    given.mkdir(parents=True, exist_ok=True)
    if any(given.iterdir()):
        raise click.UsageError(f"{given} isn't empty")
    yield given.absolute()


def _lake(folder: Path, catalog: str | None) -> Lake:
    uri = Uri("sqlite", str(folder / "catalog.db"))
    if catalog is not None:
        uri = _catalog(catalog)
    if uri.data_path is None:
        files = ("data_path", str(folder / "tables"))
        uri = replace(uri, options=(*uri.options, files))
    with dk.connect(uri) as opened:
        opened.init()
        taken = {table.name for table in opened.tables()} & set(TABLES)
    if taken:
        raise click.UsageError(f"{uri} has {', '.join(sorted(taken))} already")
    return Lake(format_uri(uri), folder)


def _catalog(text: str) -> Uri:
    """Return the URI of the catalog in a form that Spark's processes can open."""
    uri = parse_uri(text)
    if uri.table is not None:
        raise click.UsageError(f"{uri} names a table; give a catalog")
    if uri.engine == "duckdb":
        raise click.UsageError(
            f"{uri}: a DuckDB catalog serves one process, and a stream needs several; "
            "take SQLite or Postgres"
        )
    if uri.engine == "sqlite":
        return replace(uri, database=str(Path(uri.database).absolute()))
    if uri.password is not None:
        # Spark shows a source's URI in its plans, but not environment variables.
        os.environ["DELKALAKEDB_SQL__PASSWORD"] = uri.password
    return replace(uri, password=None)


@contextmanager
def _session(folder: Path, cores: int | None) -> Iterator[SparkSession]:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # A task that fails is tried four times, as on a cluster.
    master = f"local[{cores or '*'},4]"
    builder = SparkSession.builder.appName("pipeline").master(master)
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    spark = builder.config(map=_CONFIG).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
