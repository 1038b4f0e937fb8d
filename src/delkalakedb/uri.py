"""`deltasql://` URIs: which catalog, and which table in it.

    deltasql://postgres/[[user[:password]@]host[:port]/]database[/schema[/table]]
    deltasql://sqlite/relative.db            deltasql://sqlite//absolute/path.db
    deltasql://duckdb/relative.duckdb        deltasql://duckdb/:memory:

`pg` and `postgresql` are other names of `postgres`.

A text is split first, then each part is decoded by itself: percent escapes in what
was written, `${VAR}` from the environment. What a variable holds is never read as
syntax. No error shows a credential.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

from delkalakedb.errors import UriError
from delkalakedb.redaction import MASK, redact, redact_uri
from delkalakedb.uri_options import OPTIONS, OptionValue, check_options, write_option

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "OptionValue",
    "Uri",
    "format_uri",
    "is_deltasql",
    "parse_uri",
    "require_table",
    "supported_engines",
]

DEFAULT_HOST = "localhost"
DEFAULT_PORT = 5432
DEFAULT_SCHEMA = "public"

_PREFIX = "deltasql://"
_BUILT_IN = ("duckdb", "postgres", "sqlite")
_ALIASES = {"pg": "postgres", "postgresql": "postgres"}
_PARAMETERS = frozenset({*OPTIONS, "table"})
_FORMS = (
    "deltasql://postgres/user:password@host:5432/database/schema/table",
    "deltasql://sqlite/file.db?table=name",
    "deltasql://duckdb/file.duckdb?table=name",
)
_BAD_PORT = "the port must be a number from 1 to 65535"
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*")
_HOST_PORT = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([^:\[\]]*))?")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, repr=False)
class Uri:
    """A catalog, or with `table` a table in it. Equal URIs name the same thing.

    `database` is Postgres's database name, or the path of a SQLite or DuckDB file.
    `str()` and `repr()` hide credentials; `format_uri` doesn't.
    """

    engine: str
    database: str
    user: str | None = None
    password: str | None = None
    host: str | None = None
    port: int | None = None
    schema: str | None = None
    table: str | None = None
    options: tuple[tuple[str, OptionValue], ...] = ()

    def __post_init__(self) -> None:
        _check_engine(self.engine)
        server = self.engine == "postgres"
        changes = _server_defaults(self) if server else _check_no_server(self)
        options = check_options(self.options, tls=server)
        for name, value in {**changes, "options": options}.items():
            object.__setattr__(self, name, value)
        _check_parts(self)

    @property
    def catalog(self) -> "Uri":
        """The catalog alone: the same URI without table and location."""
        kept = tuple(o for o in self.options if o[0] != "location")
        return replace(self, table=None, options=kept)

    def with_table(self, table: str) -> "Uri":
        """Another table of the same catalog."""
        return replace(self.catalog, table=table)

    @property
    def pool_size(self) -> int | None:
        """How many connections the pool may hold."""
        value = self._option("pool_size")
        return value if isinstance(value, int) else None

    @property
    def connect_timeout(self) -> float | None:
        """Seconds to wait for a connection."""
        value = self._option("connect_timeout")
        return value if isinstance(value, float) else None

    @property
    def location(self) -> str | None:
        """Where a new table's files go."""
        return self._text_option("location")

    @property
    def data_path(self) -> str | None:
        """The root for tables that are created without a location."""
        return self._text_option("data_path")

    @property
    def tls(self) -> dict[str, str]:
        """libpq's TLS options, by their libpq names."""
        return {n: str(v) for n, v in self.options if OPTIONS[n].tls}

    def _option(self, name: str) -> OptionValue | None:
        return dict(self.options).get(name)

    def _text_option(self, name: str) -> str | None:
        value = self._option(name)
        return value if isinstance(value, str) else None

    def __str__(self) -> str:
        return _format(self, lambda _: MASK, redact)

    def __repr__(self) -> str:
        return f"Uri({str(self)!r})"


def is_deltasql(text: object) -> bool:
    """Return whether `text` is a string with the `deltasql` scheme."""
    return isinstance(text, str) and text[: len(_PREFIX)].lower() == _PREFIX


def entry_points(group: str) -> "EntryPoints":
    """Return the entry points of a group."""
    # Imported here, because few processes ask and it brings the email package in.
    from importlib.metadata import entry_points

    return entry_points(group=group)


def supported_engines() -> tuple[str, ...]:
    """The engines with a backend: ours, and those that other packages register."""
    registered = (e.name for e in entry_points(group="delkalakedb.backends"))
    return tuple(sorted({*_BUILT_IN, *registered}))


def require_table(uri: Uri) -> str:
    """The table's name, or an error that says how to give one."""
    if uri.table is not None:
        return uri.table
    raise UriError(
        f"{uri} names a catalog but no table; add {'&' if uri.options else '?'}"
        f"table=name to the end of the URI, as in {uri.with_table('name')}"
    )


def parse_uri(text: str, env: Mapping[str, str] | None = None) -> Uri:
    """Read a URI; `${VAR}` comes from `env`, by default the process's environment."""
    try:
        if "$" not in text:
            return _parse_plain(text)
        return _parse(text, os.environ if env is None else env)
    except UriError as error:
        problem = str(error)
    raise UriError(f"{problem}; in {redact_uri(text, _PARAMETERS)!r}")


def format_uri(uri: Uri) -> str:
    """Write a URI, credentials included, so that parsing it gives it back."""
    return _format(uri, lambda secret: quote(secret, safe=""), str)


def _check_engine(engine: str) -> None:
    # the registry is read from disk: not for our own
    if engine in _BUILT_IN or engine in supported_engines():
        return
    shown = f" {engine!r}" if _NAME.fullmatch(engine) else ""
    raise UriError(
        f"unknown engine{shown}; supported: {', '.join(supported_engines())}"
    )


def _server_defaults(uri: Uri) -> dict[str, object]:
    return {
        "user": uri.user or None,
        "password": uri.password or None,
        "host": uri.host or DEFAULT_HOST,
        "port": DEFAULT_PORT if uri.port is None else uri.port,
        "schema": DEFAULT_SCHEMA if uri.schema is None else uri.schema,
    }


def _check_no_server(uri: Uri) -> dict[str, object]:
    for part in ("user", "password", "host", "port", "schema"):
        if getattr(uri, part) is not None:
            raise UriError(f"{uri.engine} takes no {part}")
    return {}


def _check_parts(uri: Uri) -> None:
    for part in fields(uri):
        value = getattr(uri, part.name)
        if isinstance(value, str):
            _check_text(value, part.name)
    for name, option in uri.options:
        _check_text(str(option), name)
    if uri.port is not None and not 1 <= uri.port <= 65535:
        raise UriError(_BAD_PORT)
    if uri.location and uri.table is None:
        raise UriError(
            "location is a table's, and no table is named; add &table=name to the end "
            "of the URI"
        )


def _check_text(value: str, part: str) -> None:
    if not value:
        raise UriError(f"the {part} is missing")
    if "\0" in value or _SURROGATE.search(value):
        raise UriError(f"the {part} holds a NUL or isn't valid UTF-8")


def _parse(text: str, env: Mapping[str, str]) -> Uri:
    _check_syntax(text)
    path, _, query = text[len(_PREFIX) :].partition("?")
    engine, _, path = path.partition("/")
    engine = _ALIASES.get(engine.lower(), engine.lower())
    _check_engine(engine)
    parts = {"database": path}
    if engine == "postgres":
        parts = _split_postgres(path, query)
    read = partial(_decode, env=env)
    names = {part: read(raw, part) for part, raw in parts.items()}
    options = {name: read(raw, name) for name, raw in _split_query(query).items()}
    if "table" in names and "table" in options:
        raise UriError("the table is given twice: in the path and as a parameter")
    return _build(engine, names, options)


@lru_cache(maxsize=256)
def _parse_plain(text: str) -> Uri:
    return _parse(text, {})


def _check_syntax(text: str) -> None:
    if not is_deltasql(text):
        raise UriError(f"the scheme must be deltasql, as in {' or '.join(_FORMS)}")
    if _UNPRINTABLE.search(text) or _SURROGATE.search(text):
        raise UriError("control characters and broken UTF-8 aren't allowed")
    if "#" in text:
        raise UriError("'#' has no meaning here; where it is part of a name, write %23")
    if _STRAY_PERCENT.search(text):
        raise UriError("'%' must be followed by two hex digits; for itself, write %25")


def _build(engine: str, names: dict[str, str], options: dict[str, str]) -> Uri:
    table = names.pop("table", None)
    if "table" in options:
        table = options.pop("table")
    port = names.pop("port", "")
    return Uri(
        engine=engine,
        table=table,
        port=_read_port(port) if port else None,
        options=tuple(options.items()),
        **names,
    )


def _read_port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise UriError(_BAD_PORT)
    return int(text)


def _split_postgres(path: str, query: str) -> dict[str, str]:
    authority, segments = "", path.split("/")
    if len(segments) == 4 or "@" in segments[0] or ":" in segments[0]:
        authority, *segments = segments
    # also keeps the rest of an unencoded password out of every later error
    if any("@" in text for text in (*segments, query)):
        raise UriError(
            "an '@' after the host's segment: in a name or a parameter write %40, "
            "and in a password write %2F for '/' and %3F for '?'"
        )
    if len(segments) > 3:
        raise UriError(f"too many segments; the form is {_FORMS[0]}")
    names = dict(zip(("database", "schema", "table"), segments, strict=False))
    return {"database": "", **names, **_split_authority(authority)}


def _split_authority(authority: str) -> dict[str, str]:
    userinfo, _, host_port = authority.rpartition("@")
    user, _, password = userinfo.partition(":")
    match = _HOST_PORT.fullmatch(host_port)
    if match is None:
        raise UriError("the host is host[:port], an IPv6 address in [brackets]")
    host, port = match.group(1).removeprefix("[").removesuffix("]"), match.group(2)
    return {"user": user, "password": password, "host": host, "port": port or ""}


def _split_query(query: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    # `?` alone means nothing, so that `?table=name` can follow any URI without options
    for piece in filter(None, query.lstrip("?").split("&")):
        name, equals, raw = piece.partition("=")
        if not (equals and _NAME.fullmatch(name)):
            raise UriError("parameters are name=value, joined by '&'")
        if name in parameters:
            raise UriError(f"the parameter {name} is given twice")
        parameters[name] = raw
    return parameters


def _decode(raw: str, part: str, env: Mapping[str, str]) -> str:
    """One part's value; `${VAR}` gives its value untouched by any decoding."""
    pieces = _VARIABLE.split(raw)
    if any("${" in literal for literal in pieces[::2]):
        raise UriError(f"the {part} holds a '${{' without its '}}'; write %24 for '$'")
    pieces[::2] = map(_unquote, pieces[::2])
    pieces[1::2] = [_variable(name, part, env) for name in pieces[1::2]]
    return "".join(pieces)


def _unquote(text: str) -> str:
    # bad UTF-8 turns into surrogates, which are refused with the part's name
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")


def _variable(name: str, part: str, env: Mapping[str, str]) -> str:
    if not _VARIABLE_NAME.fullmatch(name):
        raise UriError(f"the {part} holds a variable that isn't ${{NAME}}")
    value = env.get(name)
    if value is None:
        raise UriError(f"the environment variable {name} isn't set")
    return value


def _format(
    uri: Uri, write_secret: Callable[[str], str], write_place: Callable[[str], str]
) -> str:
    if uri.engine == "postgres":
        path, parameters = _postgres_path(uri, write_secret), {}
    else:
        path, parameters = quote(uri.database, safe="/:"), _table_parameter(uri)
    for name, value in uri.options:
        text = write_option(value)
        secret = OPTIONS[name].secret
        parameters[name] = (
            write_secret(text) if secret else _quote_value(write_place(text))
        )
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"{_PREFIX}{uri.engine}/{path}" + (f"?{query}" if query else "")


def _quote_value(text: str) -> str:
    return quote(text, safe="/:")


def _table_parameter(uri: Uri) -> dict[str, str]:
    return {} if uri.table is None else {"table": _quote_value(uri.table)}


def _postgres_path(uri: Uri, write_secret: Callable[[str], str]) -> str:
    names = (uri.database, uri.schema, uri.table)
    segments = [quote(name, safe="") for name in names if name is not None]
    return "/".join([*_authority(uri, write_secret), *segments])


def _authority(uri: Uri, write_secret: Callable[[str], str]) -> list[str]:
    userinfo = quote(uri.user or "", safe="")
    if uri.password is not None:
        userinfo += ":" + write_secret(uri.password)
    server = (uri.host, uri.port)
    if not userinfo and server == (DEFAULT_HOST, DEFAULT_PORT):
        return []
    host = quote(uri.host or DEFAULT_HOST, safe="")
    if uri.host and ":" in uri.host:
        host = f"[{quote(uri.host, safe=':')}]"
    at = f"{userinfo}@" if userinfo else ""
    # a lone host needs its port, or it would read as a database
    port = "" if userinfo and uri.port == DEFAULT_PORT else f":{uri.port}"
    return [f"{at}{host}{port}"]
