"""Log events, metrics and spans.

An event is one log record: a short message for people, and its values as record
attributes named `delta_<value>`. Texts are redacted before any handler sees them.

Metrics and spans go to OpenTelemetry's API. It takes a tenth of a second to import, so
this package never imports it: a program that wants metrics has imported it, to set its
provider up. Without it, a measurement costs a look at the loaded modules.
"""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

from delkalakedb.settings import redact

# Silent until an application configures the logger.
logging.getLogger("delkalakedb").addHandler(logging.NullHandler())

_PREFIX = "delta_"


def log_event(
    logger: logging.Logger, level: int, message: str, **values: str | float | None
) -> None:
    """Log `message` with `values` as `delta_...` attributes of the record."""
    if logger.isEnabledFor(level):
        extra = {_PREFIX + n: _redact_value(v) for n, v in values.items()}
        logger.log(level, "%s", redact(message), extra=extra)


def log_commit(
    *,
    table: str,
    version: int,
    operation: str,
    adds: int,
    removes: int,
    bytes_added: int,
    bytes_removed: int,
    table_id: int | None,
    db_user: str | None,
    os_user: str | None,
    host: str | None,
    duration_ms: float,
    transaction_id: str,
) -> None:
    """Log a ratified commit on `delkalakedb.commit`."""
    log_event(
        logging.getLogger("delkalakedb.commit"),
        logging.INFO,
        f"{table}: version {version}, {operation}, "
        f"+{adds} -{removes} files in {duration_ms:.0f} ms",
        event="commit",
        table=table,
        version=version,
        operation=operation,
        adds=adds,
        removes=removes,
        bytes_added=bytes_added,
        bytes_removed=bytes_removed,
        table_id=table_id,
        db_user=db_user,
        os_user=os_user,
        host=host,
        duration_ms=duration_ms,
        transaction_id=transaction_id,
    )


class JsonFormatter(logging.Formatter):
    """A formatter that writes each record as one JSON object.

    An event's values have their names without `delta_`.

    Examples:
        >>> import logging
        >>> handler = logging.StreamHandler()
        >>> handler.setFormatter(dk.JsonFormatter())
        >>> record = logging.makeLogRecord({"msg": "ready", "levelname": "INFO"})
        >>> handler.format(record)
        '{"time": "...", "level": "INFO", "logger": null, "message": "ready"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON.

        Args:
            record: the log record.

        Returns:
            The line, in which credentials are masked.

        Examples:
            >>> import logging
            >>> record = logging.makeLogRecord({"msg": "done", "delta_version": 7})
            >>> dk.JsonFormatter().format(record)
            '{..., "message": "done", "version": 7}'
        """
        import json

        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name.startswith(_PREFIX):
                line[name.removeprefix(_PREFIX)] = _redact_value(value)
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


def _redact_value(value: object) -> object:
    return redact(value) if isinstance(value, str) else value


_Value = str | bool | int | float
_NAME = "delkalakedb"
_durations = logging.getLogger(f"{_NAME}.duration")
_statements = logging.getLogger(f"{_NAME}.sql")
_RECORD = {"counter": "add", "histogram": "record", "gauge": "set"}


@dataclass(frozen=True)
class Measure:
    """A metric: its name, kind, unit and meaning, and the names of its attributes."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    unit: str
    meaning: str
    attributes: tuple[str, ...] = ()

    def record(self, value: float, **attributes: _Value) -> None:
        """Record a value, or add it to a counter, if the program has OpenTelemetry."""
        if (api := sys.modules.get("opentelemetry.metrics")) is not None:
            _recorder(api, self)(value, attributes)


@cache
def _recorder(api: Any, measure: Measure) -> Any:
    """Return the function that records values of a measure.

    What is made before the program sets its provider up records with it from then on.
    """
    make = getattr(api.get_meter(_NAME), f"create_{measure.kind}")
    instrument = make(measure.name, unit=measure.unit, description=measure.meaning)
    return getattr(instrument, _RECORD[measure.kind])


@contextmanager
def measured(step: Measure, **known: _Value) -> Iterator[dict[str, _Value]]:
    """Measure a `with` block: its duration, a span, and a log record for debugging.

    A message to the database has no span: spans would double its cost.

    The block may add attributes to what this yields. The `outcome` is `ok`, or the type
    of the error that leaves the block, unless the block says another one.

    Args:
        step: the measure of the duration; the span has its name without `.duration`.
        known: what is known of the step. The metric has the attributes that its measure
            names; the span and the log record have all.
    """
    name = step.name.removesuffix(".duration")
    logger = _statements if step is STATEMENT else _durations
    logs = logger.isEnabledFor(logging.DEBUG)
    if not logs and "opentelemetry" not in sys.modules:
        yield known
        return
    started = time.perf_counter()
    with nullcontext() if step is STATEMENT else _span(name) as span:
        try:
            yield known
        except BaseException as error:
            known["outcome"] = type(error).__name__
            _fail(span, error)
            raise
        finally:
            known.setdefault("outcome", "ok")
            seconds = time.perf_counter() - started
            given = {n: known[n] for n in step.attributes if n in known}
            step.record(seconds, **given)
            if span is not None:
                span.set_attributes(
                    {n if "." in n else f"deltasql.{n}": v for n, v in known.items()}
                )
            if logs:
                text = f"{name}: {known['outcome']} in {seconds * 1000:.1f} ms"
                values = {"event": "duration", "step": name} | known
                values["duration_ms"] = seconds * 1000
                log_event(logger, logging.DEBUG, text, **values)


def _span(name: str) -> AbstractContextManager[Any]:
    """Return a new current span, or None if the program doesn't take spans."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return nullcontext()
    # What an error says is redacted below.
    quiet = {"record_exception": False, "set_status_on_exception": False}
    span: AbstractContextManager[Any] = _tracer(api).start_as_current_span(
        name, **quiet
    )
    return span


@cache
def _tracer(api: Any) -> Any:
    """Return the package's tracer, which costs the SDK as much as a span to make."""
    return api.get_tracer(_NAME)


def _fail(span: Any, error: BaseException) -> None:
    if span is None:
        return
    api = sys.modules["opentelemetry.trace"]
    span.set_status(api.Status(api.StatusCode.ERROR, redact(str(error))))


STATEMENT = Measure(
    "db.client.operation.duration",
    "histogram",
    "s",
    "a message to the catalog's database, with its statements by name",
    ("db.system.name", "db.operation.name", "outcome"),
)
POOL_WAIT = Measure(
    "db.client.connection.wait_time",
    "histogram",
    "s",
    "the wait for a connection to the catalog's database",
)
OPEN = Measure(
    "deltasql.open.duration",
    "histogram",
    "s",
    "loading a table at a version",
    ("engine", "outcome"),
)
PLAN = Measure(
    "deltasql.plan.duration",
    "histogram",
    "s",
    "looking up the files of a filter in the index",
    ("engine", "outcome"),
)
PLANNED_FILES = Measure(
    "deltasql.plan.files",
    "counter",
    "{file}",
    "files of the versions that were planned (considered), and of the plans (kept)",
    ("engine", "state"),
)
STAGE = Measure(
    "deltasql.stage.duration",
    "histogram",
    "s",
    "writing the files of an operation",
    ("operation", "outcome"),
)
COMMIT = Measure(
    "deltasql.commit.duration",
    "histogram",
    "s",
    "the SQL transaction of a commit: committed, skipped or conflict",
    ("engine", "outcome"),
)
VERSIONS = Measure(
    "deltasql.commit.versions",
    "counter",
    "{version}",
    "versions that were committed",
    ("engine",),
)
CONFLICTS = Measure(
    "deltasql.commit.conflicts",
    "counter",
    "{conflict}",
    "commits that lost against another one, by the rule of the conflict",
    ("engine", "rule"),
)
RETRIES = Measure(
    "deltasql.commit.retries",
    "counter",
    "{retry}",
    "operations that were done again after a conflict",
    ("operation",),
)
PUBLISH = Measure(
    "deltasql.publish.duration",
    "histogram",
    "s",
    "writing the waiting commits of one table to its _delta_log",
    ("engine", "outcome"),
)
MAKE_CHECKPOINT = Measure(
    "deltasql.checkpoint.duration",
    "histogram",
    "s",
    "making a checkpoint",
    ("engine", "outcome"),
)
LAG_VERSIONS = Measure(
    "deltasql.mirror.lag.versions",
    "gauge",
    "{version}",
    "versions of a table that wait to be published",
    ("table",),
)
LAG_SECONDS = Measure(
    "deltasql.mirror.lag.seconds",
    "gauge",
    "s",
    "how long a table's oldest unpublished version has been waiting",
    ("table",),
)
FILES = Measure(
    "deltasql.table.files", "gauge", "{file}", "live files of a table", ("table",)
)
CACHE = Measure(
    "deltasql.cache.requests",
    "counter",
    "{request}",
    "lookups of a version's files in the process's cache: hit or miss",
    ("outcome",),
)
# All metrics, for the documents and their tests.
MEASURES = tuple(one for one in globals().values() if isinstance(one, Measure))
