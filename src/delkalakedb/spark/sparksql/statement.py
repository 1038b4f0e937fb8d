"""The text of one SQL statement: its tokens, its parts, and its parameters.

Parts of the text, such as conditions, are handed to Spark as they were written. The
only change is that values replace parameter markers.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar, NoReturn

from sqlglot import TokenType
from sqlglot.dialects import Spark
from sqlglot.errors import SqlglotError

from delkalakedb.errors import QueryError
from delkalakedb.settings import is_deltasql, parse_uri, redact

FORMATS = ("delta", "deltasql")
Args = dict[str, Any] | list[Any]
Place = tuple[int, int]
_KINDS = {
    TokenType.STRING: "string",
    TokenType.RAW_STRING: "string",
    TokenType.IDENTIFIER: "quoted",
    TokenType.NUMBER: "number",
    TokenType.PLACEHOLDER: "marker",
}
_WORD = re.compile(r"\w+")
_WORDS = re.compile(r"[\w\s]+")
# without quotes, escapes, and variables that Spark would substitute
_PLAIN_TEXT = re.compile(r"[^'\\$]*")
_INT, _BIGINT = range(-(2**31) + 1, 2**31), range(-(2**63) + 1, 2**63)


class _Dialect(Spark):  # type: ignore[misc]
    class Tokenizer(Spark.Tokenizer):  # type: ignore[misc]
        # otherwise the rest of a command such as OPTIMIZE is one token
        COMMANDS: ClassVar[set[TokenType]] = set()


@dataclass(frozen=True)
class Token:
    """A token, by its place in the statement.

    Args:
        kind: word, quoted, string, number, marker or symbol.
        text: the text as it was written.
        start: the place of the first character.
        end: the place after the last character.
    """

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The token in upper case, or an empty text for what can't be a keyword."""
        return self.text.upper() if self.kind in ("word", "symbol") else ""


@dataclass(frozen=True)
class Name:
    """A name of one or several parts, such as a table's."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return redact(self.dotted)

    @property
    def dotted(self) -> str:
        """The parts with dots between them."""
        return ".".join(self.parts)

    @property
    def place(self) -> str | None:
        """The location or the URI in delta.`...` or deltasql.`...`, if it is that."""
        is_place = len(self.parts) == 2 and self.parts[0].lower() in FORMATS
        return self.parts[1] if is_place else None

    @property
    def alias(self) -> str:
        """The name by which expressions refer to a table without an alias."""
        if self.place is None:
            return self.parts[-1]
        # not the URI, which Spark would show in its plans
        table = parse_uri(self.place).table if is_deltasql(self.place) else None
        return table or "__dk_table"


class Statement:
    """One SQL statement.

    Args:
        text: the statement; a semicolon may end it.
        args: the values of parameters, by name or in order.
    """

    def __init__(self, text: str, args: Args | None = None) -> None:
        self.text = text
        self.args = args

    @cached_property
    def tokens(self) -> list[Token]:
        """The tokens, without a semicolon at the end."""
        try:
            found = list(_tokens(self.text))
        except SqlglotError:
            # without sqlglot's text, which may show a part of a password
            raise QueryError(
                "can't parse the statement; look for a quote that isn't closed"
            ) from None
        while found and found[-1].text == ";":
            found.pop()
        if any(token.text == ";" for token in found):
            raise QueryError("give one statement; call sql() once for each")
        return found

    @cached_property
    def markers(self) -> dict[int, str | int]:
        """The parameters, by the number of their first token: a name or a position."""
        found: dict[int, str | int] = {}
        position = 0
        for i, token in enumerate(self.tokens):
            if token.kind == "marker":
                found[i] = position
                position += 1
            elif token.text == ":" and self._is_marker(i):
                found[i] = self.tokens[i + 1].text
        return found

    def _is_marker(self, i: int) -> bool:
        if i + 1 >= len(self.tokens) or self.tokens[i + 1].kind != "word":
            return False
        colon, name = self.tokens[i : i + 2]
        # a field's type or a path follows its name without a space: `a:b`
        glued = i > 0 and self.tokens[i - 1].end == colon.start
        follows = glued and self.tokens[i - 1].kind in ("word", "quoted")
        return name.start == colon.end and not follows

    @property
    def whole(self) -> "Part":
        """The whole statement."""
        return Part(self, 0, len(self.tokens))

    def argument(self, marker: str | int) -> str:
        """Return the value of a parameter as a SQL literal."""
        args = () if self.args is None else self.args
        if isinstance(marker, str):
            if isinstance(args, Mapping) and marker in args:
                return literal(args[marker])
            raise QueryError(f":{marker} has no value; give it in args")
        if isinstance(args, Mapping) or marker >= len(args):
            raise QueryError(
                f"parameter {marker + 1} has no value; give a list as args"
            )
        return literal(args[marker])


@dataclass(frozen=True)
class Part:
    """A range of a statement's tokens."""

    statement: Statement
    first: int
    stop: int

    def __bool__(self) -> bool:
        return self.first < self.stop

    @property
    def tokens(self) -> list[Token]:
        """The tokens of the part."""
        return self.statement.tokens[self.first : self.stop]

    @property
    def start(self) -> int:
        """The place of the first character."""
        return self.tokens[0].start

    @property
    def end(self) -> int:
        """The place after the last character."""
        return self.tokens[-1].end

    @property
    def raw(self) -> str:
        """The text as it was written."""
        return self.statement.text[self.start : self.end] if self else ""

    @property
    def text(self) -> str:
        """The text, with values in place of parameter markers."""
        markers = self._markers
        texts = [self.statement.argument(marker) for marker in markers.values()]
        return "".join(_interleaved(self.between(markers), texts))

    @property
    def _markers(self) -> dict[Place, str | int]:
        """The parameters in the part, by the places of their markers."""
        found = {}
        for i, marker in self.statement.markers.items():
            if self.first <= i < self.stop:
                last = i + isinstance(marker, str)
                tokens = self.statement.tokens
                found[tokens[i].start, tokens[last].end] = marker
        return found

    def between(self, places: Collection[Place]) -> list[str]:
        """Return what is before, between and after some places, in order."""
        ends = [self.start, *(end for _, end in places)]
        starts = [*(start for start, _ in places), self.end]
        return [self.statement.text[a:b] for a, b in zip(ends, starts, strict=True)]

    def args(self, without: Sequence[Place] = ()) -> Args | None:
        """Return the values of the parameters for `spark.sql`.

        Args:
            without: places whose markers don't count.
        """
        given = self.statement.args
        if given is None or isinstance(given, Mapping):
            return given
        wanted = [
            marker
            for (start, _), marker in self._markers.items()
            if not any(a <= start < b for a, b in without)
        ]
        return [given[i] for i in wanted if isinstance(i, int) and i < len(given)]

    def split(self, *, types: bool = False) -> list["Part"]:
        """Return the parts between commas outside of brackets.

        With `types`, `<` and `>` are brackets, as in the types of columns.
        """
        tokens = self.statement.tokens
        ends = [i for i in _outside(self, types=types) if tokens[i].text == ","]
        firsts = [self.first, *(i + 1 for i in ends)]
        parts = zip(firsts, [*ends, self.stop], strict=True)
        return [Part(self.statement, a, b) for a, b in parts]


class Cursor:
    """A place in a statement, which moves as tokens are taken."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self.first = self.at = part.first

    @property
    def statement(self) -> Statement:
        """The statement."""
        return self._part.statement

    @property
    def done(self) -> bool:
        """Whether all tokens are taken."""
        return self.at >= self._part.stop

    @property
    def token(self) -> Token:
        """The next token."""
        if self.done:
            raise QueryError(f"the statement ends too early: {self._shown()}")
        return self.statement.tokens[self.at]

    def sees(self, words: str) -> bool:
        """Return whether the next tokens are these keywords or symbols."""
        wanted = words.split()
        tokens = self.statement.tokens[self.at : self._part.stop]
        return [token.word for token in tokens[: len(wanted)]] == wanted

    def take(self, *choices: str) -> str | None:
        """Take the first of several sequences of keywords that comes next, if any."""
        for words in choices:
            if self.sees(words):
                self.at += len(words.split())
                return words
        return None

    def need(self, *choices: str) -> str:
        """Take one of several sequences of keywords."""
        return self.take(*choices) or self.refuse(" or ".join(choices))

    def refuse(self, wanted: str) -> NoReturn:
        """Raise `QueryError`, because the statement should continue with `wanted`."""
        if self.done:
            raise QueryError(f"{wanted} is missing at the end of: {self._shown()}")
        raise QueryError(f"{wanted} is expected at: {self._shown(self.token.start)}")

    def _shown(self, start: int = 0) -> str:
        shown = redact(" ".join(self.statement.text[start:].split()))
        return shown if len(shown) <= 60 else f"{shown[:57]}..."

    def finish(self) -> None:
        """Raise `QueryError` unless all tokens are taken."""
        if not self.done:
            self.refuse("the end of the statement")

    def identifier(self) -> str:
        """Take one name."""
        token = self.token
        if token.kind == "quoted":
            self.at += 1
            return token.text[1:-1].replace("``", "`")
        if token.kind != "word" or not _WORD.fullmatch(token.text):
            self.refuse("a name")
        self.at += 1
        return token.text

    def name(self) -> Name:
        """Take a name of several parts."""
        parts = [self.identifier()]
        while self.take("."):
            parts.append(self.identifier())
        return Name(tuple(parts))

    def alias(self, *before: str) -> str | None:
        """Take an alias, unless one of the keywords `before` comes next."""
        if not self.take("AS") and (self.done or self.token.word in before):
            return None
        return self.identifier()

    def number(self) -> float:
        """Take a number."""
        negative = self.take("-")
        token = self.token
        if token.kind != "number":
            self.refuse("a number")
        self.at += 1
        value = float(token.text.rstrip("LlDdFfSsYyBb"))
        return -value if negative else value

    def string(self) -> Part:
        """Take a text in quotes."""
        first = self.at
        while not self.done and self.token.kind == "string":
            self.at += 1
        if self.at == first:
            self.refuse("a text in quotes")
        return Part(self.statement, first, self.at)

    def brackets(self) -> Part:
        """Take a pair of parentheses, and return what is inside."""
        self.need("(")
        inside = self.until(")")
        self.need(")")
        return inside

    def names(self) -> list[Name]:
        """Take names in parentheses."""
        return [whole_name(part) for part in self.brackets().split()]

    def until(self, *words: str, types: bool = False) -> Part:
        """Take everything before the first of some keywords outside of brackets.

        With `types`, `<` and `>` are brackets.
        """
        first = self.at
        part = Part(self.statement, first, self._part.stop)
        for i in _outside(part, types=types):
            self.at = i
            if any(map(self.sees, words)):
                return Part(self.statement, first, i)
        self.at = self._part.stop
        return Part(self.statement, first, self.at)

    def rest(self) -> Part:
        """Take everything that is left."""
        part = Part(self.statement, self.at, self._part.stop)
        self.at = self._part.stop
        return part


def whole_name(part: Part) -> Name:
    """Return the name that is all of `part`."""
    cursor = Cursor(part)
    name = cursor.name()
    cursor.finish()
    return name


def prefixed(text: str, part: Part) -> Part:
    """Return a statement of its own: `text`, which has no parameters, and `part`."""
    return Statement(f"{text} {part.raw}", part.args()).whole


def joined(one: Part, other: Part) -> Part:
    """Return a statement of its own that has the text of two parts."""
    args, more = one.args(), other.args()
    both = [*args, *more] if isinstance(args, list) and more else args
    return Statement(f"{one.raw}\n{other.raw}", both).whole


def column_path(name: Name) -> str:
    """Return a column's name in backticks."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in name.parts)


def literal(value: Any) -> str:
    """Return a Python value as a SQL literal.

    Raises:
        QueryError: There is no literal for values of this type.
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        if _PLAIN_TEXT.fullmatch(value):
            return f"'{value}'"
        # independent of how the session's parser reads escapes
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    if isinstance(value, bytes | bytearray):
        return f"X'{value.hex()}'"
    if isinstance(value, int):
        suffix = "" if value in _INT else "L" if value in _BIGINT else "BD"
        return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, Decimal) and value.is_finite():
        return f"({value:f}BD)"
    if isinstance(value, datetime):
        # as pyspark has it: without a zone, in the zone of this process
        return f"TIMESTAMP'{value.astimezone(UTC).isoformat(' ')}'"
    if isinstance(value, date):
        return f"DATE'{value.isoformat()}'"
    if isinstance(value, list | tuple):
        return f"array({', '.join(map(literal, value))})"
    raise QueryError(
        f"a parameter can't be a {type(value).__name__}; give a text, a number, a "
        "time, a list or None"
    )


def _interleaved(pieces: Sequence[str], texts: Sequence[str]) -> Iterator[str]:
    yield pieces[0]
    for text, piece in zip(texts, pieces[1:], strict=True):
        yield text
        yield piece


def _tokens(text: str) -> Iterator[Token]:
    end = 0
    for token in _Dialect().tokenize(text):
        # 1L gives three tokens at one place, and ORDER BY one token
        if token.start < end:
            continue
        end = token.end + 1
        written = text[token.start : end]
        kind = _KINDS.get(token.token_type)
        if kind is None and _WORDS.fullmatch(written):
            for word in _WORD.finditer(written):
                start = token.start + word.start()
                yield Token("word", word[0], start, start + len(word[0]))
        else:
            yield Token(kind or "symbol", written, token.start, end)


def _outside(part: Part, *, types: bool = False) -> Iterator[int]:
    """Yield the tokens outside of brackets and of CASE ... END."""
    opening, closing = ("([<", ")]>") if types else ("([", ")]")
    depth = cases = 0
    before = ""
    for i in range(part.first, part.stop):
        token = part.statement.tokens[i]
        # a symbol such as <= is no bracket, and a field may be called `case`
        symbol = token.text if token.kind == "symbol" and len(token.text) == 1 else ""
        word = token.word if before != "." and not depth else ""
        before = token.text
        if symbol and symbol in closing and depth:
            depth -= 1
        elif word == "END" and cases:
            cases -= 1
        else:
            if not depth and not cases:
                yield i
            depth += bool(symbol) and symbol in opening
            cases += word == "CASE"
