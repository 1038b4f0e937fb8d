"""The query parameters of a `deltasql://` URI."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from delkalakedb.errors import UriError

__all__ = [
    "MAX_SECONDS",
    "OPTIONS",
    "PLACE",
    "SCHEMES",
    "Option",
    "OptionValue",
    "check_options",
    "read_place",
    "scheme_of",
    "write_option",
]

OptionValue = str | int | float
MAX_SECONDS = 86_400
SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss", "memory")
PLACE = f"a folder or an object store's URL ({', '.join(s + '://' for s in SCHEMES)})"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file):/")
_FILE_AT_HOST = re.compile(r"(?i:file)://(?!localhost([/?#]|$))[^/?#]")


@dataclass(frozen=True, slots=True)
class Option:
    """A parameter: `read` gives its value, or None for a text that isn't allowed."""

    allowed: str
    read: Callable[[str], OptionValue | None]
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
    """The scheme of a location that is a URL; a path has none."""
    found = _URL.match(location)
    return (found[1] or found[2]).lower() if found else None


def read_place(text: str) -> str | None:
    """A location, or None for one that no store is known for."""
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


def check_options(
    options: Iterable[tuple[str, OptionValue]], *, tls: bool
) -> tuple[tuple[str, OptionValue], ...]:
    """Options sorted and of their proper types; TLS ones only where `tls` says so."""
    checked = {name: _check(name, value, tls) for name, value in options}
    return tuple(sorted(checked.items()))


def _check(name: str, value: OptionValue, tls: bool) -> OptionValue:
    option = OPTIONS.get(name)
    if option is None:
        raise UriError(f"unknown parameter {name!r}; allowed: {_allowed(tls)}")
    if option.tls and not tls:
        raise UriError(f"{name} is for postgres only; allowed here: {_allowed(tls)}")
    read = option.read(write_option(value))
    if read is None:
        # A password may be in a place, too.
        hidden = option.secret or option is _PLACE
        shown = "" if hidden or not value else f", not {value!r}"
        raise UriError(f"{name} must be {option.allowed}{shown}")
    return read


def write_option(value: OptionValue) -> str:
    """An option's value as `check_options` reads it."""
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    return str(value)


def _allowed(tls: bool) -> str:
    names = [name for name, option in OPTIONS.items() if tls or not option.tls]
    return ", ".join(sorted([*names, "table"]))
