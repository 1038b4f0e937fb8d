"""`deltasql://` URIs, and the settings of a catalog that only its URI configures."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import quote, unquote_to_bytes

from delkalakedb.errors import UriError, did_you_mean
from delkalakedb.settings.redaction import MASK, redact, redact_uri

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from delkalakedb.settings.keys import Settings

ENV_PREFIX = "DELKALAKEDB_"
DEFAULT_FILE = "deltalakedb.toml"
MAX_SECONDS = 86_400  # a day: the longest timeout
SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss", "memory")
PLACE = f"a folder or an object store's URL ({', '.join(s + '://' for s in SCHEMES)})"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file):/")
_FILE_AT_HOST = re.compile(r"(?i:file)://(?!localhost([/?#]|$))[^/?#]")


_T = TypeVar("_T")
_OptionValue = str | int | float


class Option(NamedTuple):
    """A parameter of a URI.

    Args:
        allowed: completes the sentence "<parameter> must be ...".
        read: parses the parameter's text; None for a text that isn't allowed.
        tls: libpq takes the parameter for TLS, so only Postgres has it.
        secret: the value must not be shown.
    """

    allowed: str
    read: Callable[[str], _OptionValue | None]
    tls: bool = False
    secret: bool = False


def _read_count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"0*[1-9][0-9]{0,8}", text) else None


def _read_seconds(text: str) -> float | None:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return None
    return float(text) if 0 < float(text) <= MAX_SECONDS else None


def _read_text(text: str) -> str | None:
    return text or None


def scheme_of(location: str) -> str | None:
    """Return the scheme of a location, in lower case; None if it is a path."""
    found = _URL.match(location)
    return (found[1] or found[2]).lower() if found else None


def read_place(text: str) -> str | None:
    """Return `text` if it is a location that some store can hold, else None."""
    known = scheme_of(text) in (None, *SCHEMES) and not _FILE_AT_HOST.match(text)
    return text if text and known else None


def _tls_choice(*values: str) -> Option:
    allowed = f"one of {', '.join(values)}"
    return Option(allowed, lambda text: text if text in values else None, tls=True)


_TLS_FILE = Option("a path", _read_text, tls=True)
_TLS_VERSION = _tls_choice("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
_PLACE = Option(PLACE, read_place)

OPTIONS: Mapping[str, Option] = {
    "channel_binding": _tls_choice("disable", "prefer", "require"),
    "connect_timeout": Option(
        f"seconds above 0 and up to {MAX_SECONDS}, such as 2.5", _read_seconds
    ),
    "data_path": _PLACE,
    "location": _PLACE,
    "pool_size": Option("a whole number, at least 1", _read_count),
    "ssl_max_protocol_version": _TLS_VERSION,
    "ssl_min_protocol_version": _TLS_VERSION,
    "sslcert": _TLS_FILE,
    "sslcertmode": _tls_choice("disable", "allow", "require"),
    "sslcompression": _tls_choice("0", "1"),
    "sslcrl": _TLS_FILE,
    "sslcrldir": _TLS_FILE,
    "sslkey": _TLS_FILE,
    "sslmode": _tls_choice(
        "disable", "allow", "prefer", "require", "verify-ca", "verify-full"
    ),
    "sslnegotiation": _tls_choice("postgres", "direct"),
    "sslpassword": Option("a password", _read_text, tls=True, secret=True),
    "sslrootcert": _TLS_FILE,
    "sslsni": _tls_choice("0", "1"),
}


def _check_option(name: str, value: _OptionValue, tls: bool) -> _OptionValue:
    option = OPTIONS.get(name)
    if option is None:
        near = did_you_mean(name, OPTIONS)
        raise UriError(f"unknown parameter {name!r}{near}; allowed: {_allowed(tls)}")
    if option.tls and not tls:
        raise UriError(f"{name} is for postgres only; allowed here: {_allowed(tls)}")
    read = option.read(_write_option(value))
    if read is None:
        # A location may hold a password, too.
        hidden = option.secret or option is _PLACE
        shown = "" if hidden or not value else f", not {value!r}"
        raise UriError(f"{name} must be {option.allowed}{shown}")
    return read


def _write_option(value: _OptionValue) -> str:
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    return str(value)


def _allowed(tls: bool) -> str:
    names = [name for name, option in OPTIONS.items() if tls or not option.tls]
    return ", ".join(sorted([*names, "table"]))


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
    """The name of a catalog, or with `table` of a table in the catalog.

    `str()` and `repr()` hide credentials; `format_uri` writes them.

    Args:
        engine: `postgres`, `sqlite`, `duckdb`, or the name of another backend.
        database: Postgres's database name, or the path of a SQLite or DuckDB file.
        user: the Postgres role.
        password: the role's password.
        host: the server; `localhost` by default.
        port: the server's port; 5432 by default.
        schema: the Postgres schema; `public` by default.
        table: the table.
        options: the URI's other parameters, by name.

    Raises:
        UriError: A part is missing, or isn't allowed for the engine.

    Examples:
        >>> from delkalakedb.settings import Uri
        >>> Uri("postgres", "shop", user="app", table="sales")
        Uri('deltasql://postgres/app@localhost/shop/public/sales')
    """

    engine: str
    database: str
    user: str | None = None
    password: str | None = None
    host: str | None = None
    port: int | None = None
    schema: str | None = None
    table: str | None = None
    options: tuple[tuple[str, _OptionValue], ...] = ()

    def __post_init__(self) -> None:
        _check_engine(self.engine)
        server = self.engine == "postgres"
        changes = _server_defaults(self) if server else _check_no_server(self)
        options = {name: _check_option(name, v, server) for name, v in self.options}
        changes["options"] = tuple(sorted(options.items()))
        for name, value in changes.items():
            object.__setattr__(self, name, value)
        _check_parts(self)

    @property
    def catalog(self) -> "Uri":
        """The URI of the catalog alone, without table and location."""
        kept = tuple(o for o in self.options if o[0] != "location")
        return replace(self, table=None, options=kept)

    def with_table(self, table: str) -> "Uri":
        """Return the URI of another table in this catalog.

        Args:
            table: the table.

        Returns:
            The URI, without the location of the former table.

        Examples:
            >>> from delkalakedb.settings import parse_uri
            >>> str(parse_uri("deltasql://sqlite/meta.db").with_table("sales"))
            'deltasql://sqlite/meta.db?table=sales'
        """
        return _with_table(self, table)

    @property
    def pool_size(self) -> int | None:
        """The number of connections that the pool may hold."""
        return self._option("pool_size", int)

    @property
    def connect_timeout(self) -> float | None:
        """The seconds to wait for a connection."""
        return self._option("connect_timeout", float)

    @property
    def location(self) -> str | None:
        """The storage location of a new table."""
        return self._option("location", str)

    @property
    def data_path(self) -> str | None:
        """The folder for tables that are created without a location."""
        return self._option("data_path", str)

    @property
    def tls(self) -> dict[str, str]:
        """The TLS options, by libpq's names."""
        return {n: str(v) for n, v in self.options if OPTIONS[n].tls}

    def _option(self, name: str, kind: type[_T]) -> _T | None:
        value = dict(self.options).get(name)
        return value if isinstance(value, kind) else None

    def __str__(self) -> str:
        return _format(self, lambda _: MASK, redact)

    def __repr__(self) -> str:
        return f"Uri({str(self)!r})"


@lru_cache(maxsize=1024)
def _with_table(uri: Uri, table: str) -> Uri:
    # Kept, because opening a table by its name would check the whole URI again.
    return replace(uri.catalog, table=table)


def is_deltasql(text: object) -> bool:
    """Return whether `text` is a string with the `deltasql` scheme."""
    return isinstance(text, str) and text[: len(_PREFIX)].lower() == _PREFIX


def entry_points(group: str) -> "EntryPoints":
    """Return the entry points of a group."""
    # Imported here, because few processes ask and importlib.metadata loads email.
    from importlib.metadata import entry_points

    return entry_points(group=group)


def supported_engines() -> tuple[str, ...]:
    """Return the names of the engines that have a backend, here or as entry point."""
    registered = (e.name for e in entry_points(group="delkalakedb.backends"))
    return tuple(sorted({*_BUILT_IN, *registered}))


def require_table(uri: Uri) -> str:
    """Return the name of the table in `uri`; raise `UriError` if it has none."""
    if uri.table is not None:
        return uri.table
    raise UriError(
        f"{uri} names a catalog but no table; add {'&' if uri.options else '?'}"
        f"table=name to the end of the URI, as in {uri.with_table('name')}"
    )


def parse_uri(text: str, env: Mapping[str, str] | None = None) -> Uri:
    """Parse a `deltasql://` URI.

    Args:
        text: the URI; `${VAR}` in it stands for a variable.
        env: the variables; by default those of the process's environment.

    Returns:
        The parsed URI.

    Raises:
        UriError: The URI can't be parsed, or a variable isn't set.

    Examples:
        >>> from delkalakedb.settings import parse_uri
        >>> uri = parse_uri("deltasql://sqlite/${DB}?table=sales", {"DB": "meta.db"})
        >>> uri.engine, uri.database, uri.table
        ('sqlite', 'meta.db', 'sales')
    """
    try:
        if "$" not in text:
            return _parse_plain(text)
        return _parse(text, os.environ if env is None else env)
    except UriError as error:
        problem = str(error)
    raise UriError(f"{problem}; in {redact_uri(text, _PARAMETERS)!r}")


def format_uri(uri: Uri) -> str:
    """Return a URI as text, credentials included; `parse_uri` is the inverse.

    Args:
        uri: the parsed URI.

    Returns:
        The text, which mustn't be shown.

    Examples:
        >>> from delkalakedb.settings import format_uri, parse_uri
        >>> format_uri(parse_uri("deltasql://pg/app@db/shop/public/sales"))
        'deltasql://postgres/app@db/shop/public/sales'
    """
    return _format(uri, lambda secret: quote(secret, safe=""), str)


def _check_engine(engine: str) -> None:
    # First the built-in names, because the entry points are read from disk.
    if engine in _BUILT_IN or engine in supported_engines():
        return
    named = _NAME.fullmatch(engine) is not None
    shown = f" {engine!r}" if named else ""
    near = did_you_mean(engine, supported_engines()) if named else ""
    raise UriError(
        f"unknown engine{shown}{near}; supported: {', '.join(supported_engines())}"
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
            "location needs a table, but no table is named; add &table=name to the end "
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
        raise UriError("'#' isn't allowed; in a name, write %23")
    if _STRAY_PERCENT.search(text):
        raise UriError("'%' must be followed by two hex digits; in a name, write %25")


def _build(engine: str, names: Mapping[str, str], options: Mapping[str, str]) -> Uri:
    port = names.get("port", "")
    if not re.fullmatch(r"[0-9]{0,5}", port):
        raise UriError(_BAD_PORT)
    return Uri(
        engine=engine,
        table=options.get("table", names.get("table")),
        port=int(port) if port else None,
        options=tuple(pair for pair in options.items() if pair[0] != "table"),
        **{part: name for part, name in names.items() if part not in ("table", "port")},
    )


def _split_postgres(path: str, query: str) -> dict[str, str]:
    authority, segments = "", path.split("/")
    if len(segments) == 4 or "@" in segments[0] or ":" in segments[0]:
        authority, *segments = segments
    # This also keeps the rest of an unencoded password out of every later error.
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
    # A lone `?` is allowed, so that `?table=name` can follow any URI without options.
    for piece in filter(None, query.lstrip("?").split("&")):
        name, equals, raw = piece.partition("=")
        if not (equals and _NAME.fullmatch(name)):
            raise UriError("parameters are name=value, joined by '&'")
        if name in parameters:
            raise UriError(f"the parameter {name} is given twice")
        parameters[name] = raw
    return parameters


def _decode(raw: str, part: str, env: Mapping[str, str]) -> str:
    """Return the value of one part; the values of variables aren't percent-decoded."""
    pieces = _VARIABLE.split(raw)
    if any("${" in literal for literal in pieces[::2]):
        raise UriError(f"the {part} holds a '${{' without its '}}'; write %24 for '$'")
    pieces[::2] = map(_unquote, pieces[::2])
    pieces[1::2] = [_variable(name, part, env) for name in pieces[1::2]]
    return "".join(pieces)


def _unquote(text: str) -> str:
    # Bad UTF-8 becomes surrogates, which `_check_text` refuses with the part's name.
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
    parameters: dict[str, str] = {}
    if uri.engine == "postgres":
        path = _postgres_path(uri, write_secret)
    else:
        path = _quote_value(uri.database)
        if uri.table is not None:
            parameters["table"] = _quote_value(uri.table)
    for name, value in uri.options:
        text = _write_option(value)
        secret = OPTIONS[name].secret
        parameters[name] = (
            write_secret(text) if secret else _quote_value(write_place(text))
        )
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"{_PREFIX}{uri.engine}/{path}" + (f"?{query}" if query else "")


def _quote_value(text: str) -> str:
    return quote(text, safe="/:")


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
    # A lone host needs its port, because it would be parsed as a database.
    port = "" if userinfo and uri.port == DEFAULT_PORT else f":{uri.port}"
    return [f"{at}{host}{port}"]


# Variables with the prefix that hold no setting.
_NO_SETTINGS = (f"{ENV_PREFIX}REGISTER", f"{ENV_PREFIX}TEST_")
_POLICIES = ("create_if_missing", "error")


class PlainSettings:
    """The settings that opening a catalog needs, where only its URI holds any.

    Most processes configure nothing, and importing pydantic takes longer than opening
    a table. So these values, which a test compares with the defaults of `Settings`,
    stand in for `Settings` until all settings are asked for.
    """

    cache = SimpleNamespace(
        model_fields_set=frozenset(), snapshots=64, max_bytes=256 * 1024 * 1024
    )

    def __init__(self, uri: Uri, schema_policy: str) -> None:
        given = {"size": uri.pool_size, "connect_timeout": uri.connect_timeout}
        self._pool = {name: value for name, value in given.items() if value is not None}
        self._data_path = uri.data_path
        self.sql = SimpleNamespace(password=None, schema_policy=schema_policy)
        self.pool = SimpleNamespace(size=5, connect_timeout=10.0)
        self.pool.lock_timeout, self.pool.statement_timeout = 30.0, None
        vars(self.pool).update(self._pool, model_fields_set=set(self._pool))

    def full(self) -> "Settings":
        """Return these settings together with the defaults of all others."""
        from delkalakedb.settings.keys import PoolSettings, Settings, SqlSettings

        place = self._data_path
        # Not `load_settings`, because its sources may have changed meanwhile.
        return Settings.model_construct(
            sql=SqlSettings.model_validate({"schema": self.sql.schema_policy}),
            pool=PoolSettings.model_validate(self._pool),
            data_path=None if (place or "none").lower() == "none" else place,
        )


def plain_settings(uri: Uri, given: Mapping[str, object]) -> PlainSettings | None:
    """Return a catalog's settings, or None if a file or the environment has settings.

    Args:
        uri: the catalog's.
        given: the arguments of `connect`. The result is None, too, if they hold
            anything but `sql.schema`.
    """
    policies = [p for p in _POLICIES if given in ({}, {"sql": {"schema": p}})]
    if not policies or os.path.exists(DEFAULT_FILE):
        return None
    names = (name.upper() for name in os.environ)
    if any(n.startswith(ENV_PREFIX) and not n.startswith(_NO_SETTINGS) for n in names):
        return None
    return PlainSettings(uri, policies[0])
