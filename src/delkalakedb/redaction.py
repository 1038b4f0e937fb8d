"""Credentials out of texts that people will read."""

import re
from collections.abc import Container
from urllib.parse import unquote

__all__ = ["MASK", "SECRET_NAMES", "redact", "redact_uri", "redact_url"]

MASK = "***"
# How the names of secrets end.
SECRET_NAMES = (
    "access_key",
    "access_key_id",
    "account_key",
    "api_key",
    "client_secret",
    "credential",
    "customer_key_base64",
    "encryption_key",
    "master_key",
    "passwd",
    "password",
    "pwd",
    "sas_key",
    "secret",
    "secret_key",
    "service_account_key",
    "token",
)

# up to the last `@`: a password that wasn't encoded may hold `@`, `/` or `?` itself
_DELTASQL = re.compile(r"(deltasql://(?:[\w+-]*/)?[^\s/?#:]*):\S*@", re.IGNORECASE)
# only servers have ports: elsewhere digits are a password's
_URL = re.compile(
    r"(?:(https?://[^\s/?#:]*):(?!\d+[/?#])|(?<!http)(?<!https)(://[^\s/?#:]*):)\S*@"
)
_HOSTLESS = re.compile(
    r"(deltasql://(?!sqlite/|duckdb/)(?:[\w+-]*/)?[^\s/?#:]*)"
    r":(?!\d+(?:[/?#]|$)|\*\*\*@)[^?#]*",
    re.IGNORECASE,
)
_NAMED = re.compile(
    rf"\b(\w*(?:{'|'.join(SECRET_NAMES)}|sig|signature)[\"']?\s*[=:]\s*)"
    r"(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s&,;}]+)",
    re.IGNORECASE,
)
# In a text that may not even begin as a URI does.
_SCHEME = re.compile(r"(?:deltasql|postgres(?:ql)?):/*", re.IGNORECASE)
_ANY_PASSWORD = re.compile(r":\S*(?:@|%40)")
_QUERY_SECRET = re.compile(r"(\?.*?password=).*", re.IGNORECASE)
_LONGEST = 300


def redact(text: str) -> str:
    """Mask the passwords in URLs and in `password=...` pairs, wherever they stand."""
    text = _DELTASQL.sub(rf"\1:{MASK}@", text)
    return _NAMED.sub(rf"\1{MASK}", redact_url(text))


def redact_url(text: str) -> str:
    """Mask the password of a URL."""
    return _URL.sub(rf"\1\2:{MASK}@", text)


def redact_uri(text: str, parameters: Container[str]) -> str:
    """Redact a text that is meant to be one `deltasql://` URI, well formed or not.

    Of a parameter that there isn't nothing is known, and its value isn't shown.
    """
    one_word = re.sub(r"\s", "%20", text)
    scheme = found[0] if (found := _SCHEME.match(one_word)) else ""
    rest = _ANY_PASSWORD.sub(rf":{MASK}@", one_word[len(scheme) :])
    head, mark, query = f"{scheme}{rest}".partition("?")
    pieces = (_redact_parameter(piece, parameters) for piece in query.split("&"))
    query = "&".join(pieces)
    shown = _HOSTLESS.sub(rf"\1:{MASK}", redact(f"{head}{mark}{query}"))
    shown = _QUERY_SECRET.sub(rf"\1{MASK}", shown)
    return shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "..."


def _redact_parameter(text: str, known: Container[str]) -> str:
    """A query parameter, as it was unless its value has a secret when decoded."""
    name, _, value = text.partition("=")
    if value and name not in known:
        return f"{name}={MASK}"
    plain = unquote(value)
    hidden = redact(_ANY_PASSWORD.sub(rf":{MASK}@", plain))
    return text if hidden == plain else f"{name}={hidden}"
