"""Redaction: credentials are masked in texts that people will read."""

import re
from collections.abc import Container, Iterable
from urllib.parse import quote, unquote

MASK = "***"
# The name of a secret ends in one of these.
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

# Patterns are texts, which `re` compiles on first use: most processes redact nothing.

# Up to the last `@`, because a password that wasn't encoded may hold `@`, `/` or `?`.
_DELTASQL = r"(?i)(deltasql://(?:[\w+-]*/)?[^\s/?#:]*):\S*@"
# After a colon digits are a port only in http URLs; elsewhere they are a password.
_URL = r"(?:(https?://[^\s/?#:]*):(?!\d+[/?#])|(?<!http)(?<!https)(://[^\s/?#:]*):)\S*@"
_HOSTLESS = (
    r"(?i)(deltasql://(?!sqlite/|duckdb/)(?:[\w+-]*/)?[^\s/?#:]*)"
    r":(?!\d+(?:[/?#]|$)|\*\*\*@)[^?#]*"
)
_NAME = rf"(?:{'|'.join(SECRET_NAMES)})".replace("_", "[_-]")
_VALUE = r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s&,;}]+)"
# Pairs `key=value`, `key:value` and `"key": "value"`. `key: value` isn't one, because
# an error about a table, a column or a file begins with its name and a colon.
_NAMED = (
    rf"(?i)\b(\w*(?:{_NAME}|sig|signature)"
    r"(?:[\"']?\s*=\s*|[\"']?:(?!\s)|[\"']\s*:\s*(?=[\"'])))"
    rf"{_VALUE}"
)
_HEADER = (
    rf"(?i)\b(x-[\w-]*{_NAME}:\s+|authorization:\s+(?:basic|bearer)\s+)[^\s,;\"']+"
)
# The user and password in the example URIs that errors and help show.
_EXAMPLE = (
    r"(?<=deltasql://postgres/)(?:user:password@|\[\[user\[:password\]@\])(?=host\b)"
)
# A secret so short or plain that a text may hold its characters by chance.
_WORD = r"(?is).{0,5}|[a-z]{1,9}|[0-9]{1,9}"
# characters; a secret of this length is masked even within a longer word
_LONG = 16
# A text meant as a URI may lack slashes, or have Postgres's own scheme.
_SCHEME = r"(?i)(?:deltasql|postgres(?:ql)?):/*"
_ANY_PASSWORD = r":\S*(?:@|%40)"
_QUERY_SECRET = r"(?i)(\?.*?password=).*"
_LONGEST = 300  # characters of a URI that an error shows


def uncoloured(text: str) -> str:
    """Return a library's message without the colours that it has for a terminal."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def redact(text: str) -> str:
    """Mask the passwords of URLs, `password=...` pairs and secret headers in a text.

    The example URIs that errors and help show stay as they are.
    """
    pieces, end = [], 0
    for example in re.finditer(_EXAMPLE, text):
        pieces += [_redact(text[end : example.start()]), example[0]]
        end = example.end()
    return "".join([*pieces, _redact(text[end:])])


def redact_secrets(text: str, secrets: Iterable[str]) -> str:
    """Mask the values `secrets` in a text, and all that `redact` masks.

    A secret that may be a word, such as `test`, isn't masked, and a short secret isn't
    masked within a longer word.
    """
    for secret in (s for s in secrets if not re.fullmatch(_WORD, s)):
        for form in {secret, quote(secret, safe="")}:
            found = re.escape(form)
            if len(secret) < _LONG:
                found = rf"(?<![A-Za-z0-9]){found}(?![A-Za-z0-9])"
            text = re.sub(found, MASK, text)
    return redact(text)


def redact_url(text: str) -> str:
    """Mask the password of a URL."""
    return re.sub(_URL, rf"\1\2:{MASK}@", text)


def _redact(text: str) -> str:
    text = re.sub(_DELTASQL, rf"\1:{MASK}@", text)
    text = re.sub(_NAMED, rf"\1{MASK}", redact_url(text))
    return re.sub(_HEADER, rf"\1{MASK}", text)


def redact_uri(text: str, parameters: Container[str]) -> str:
    """Redact a text that is meant to be one `deltasql://` URI, well formed or not.

    The value of a query parameter that isn't in `parameters` is masked, because it
    may be a secret.
    """
    one_word = re.sub(r"\s", "%20", text)
    scheme = found[0] if (found := re.match(_SCHEME, one_word)) else ""
    rest = re.sub(_ANY_PASSWORD, rf":{MASK}@", one_word[len(scheme) :])
    head, mark, query = f"{scheme}{rest}".partition("?")
    pieces = (_redact_parameter(piece, parameters) for piece in query.split("&"))
    query = "&".join(pieces)
    shown = re.sub(_HOSTLESS, rf"\1:{MASK}", redact(f"{head}{mark}{query}"))
    shown = re.sub(_QUERY_SECRET, rf"\1{MASK}", shown)
    return shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "..."


def _redact_parameter(text: str, known: Container[str]) -> str:
    """Return a query parameter, redacted if its decoded value holds a secret."""
    name, _, value = text.partition("=")
    if value and name not in known:
        return f"{name}={MASK}"
    plain = unquote(value)
    hidden = redact(re.sub(_ANY_PASSWORD, rf":{MASK}@", plain))
    return text if hidden == plain else f"{name}={hidden}"
