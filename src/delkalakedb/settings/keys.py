"""The keys of the settings, with their types and defaults."""

import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypedDict, TypeGuard, Unpack

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from delkalakedb.errors import ConfigError, UriError, did_you_mean
from delkalakedb.settings.uri import (
    ENV_PREFIX,
    MAX_SECONDS,
    PLACE,
    parse_uri,
    read_place,
)

ARGUMENT = "an argument"
ENV_NESTED = "__"
ENV_CONFIG = f"{ENV_PREFIX}CONFIG"
_NO_SETTINGS = {ENV_CONFIG, f"{ENV_PREFIX}REGISTER"}
_ENV_TEST = f"{ENV_PREFIX}TEST_"


def _none_word(value: object) -> object:
    return None if isinstance(value, str) and value.lower() == "none" else value


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a boolean isn't a number")
    return value


def _place(value: str | None) -> str | None:
    if value is not None and read_place(value) is None:
        raise ValueError("no place for files")
    return value


def _catalog(value: SecretStr | None) -> SecretStr | None:
    # Not a URI with variables, which need to be set only where the URI is used.
    if value is not None and "$" not in (uri := value.get_secret_value()):
        parse_uri(uri)
    return value


# Descriptions complete the sentence "<key> must be ...".
_NUMBER = BeforeValidator(_no_boolean)
Count = Annotated[int, Field(ge=0, description="a whole number, at least 0"), _NUMBER]
Size = Annotated[int, Field(ge=1, description="a whole number, at least 1"), _NUMBER]
MaybeSize = Annotated[
    int | None,
    Field(ge=1, description="a whole number, at least 1, or none"),
    BeforeValidator(_none_word),
    _NUMBER,
]
_SECONDS = f"seconds above 0, up to {MAX_SECONDS}"
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS, description=_SECONDS), _NUMBER]
MaybeSeconds = Annotated[
    float | None,
    Field(gt=0, le=MAX_SECONDS, description=f"{_SECONDS}, or none"),
    BeforeValidator(_none_word),
    _NUMBER,
]
SchemaPolicy = Annotated[
    Literal["create_if_missing", "error"],
    Field(description="create_if_missing or error"),
]
MirrorMode = Annotated[
    Literal["inline", "background", "external"],
    Field(description="inline, background or external"),
]
Place = Annotated[
    str | None,
    # Not shown, because a location may hold a password.
    Field(description=PLACE, repr=False),
    BeforeValidator(_none_word),
    AfterValidator(_place),
]
CatalogUri = Annotated[
    # Secret, because the URI may hold a password.
    SecretStr | None,
    Field(description="a deltasql:// URI"),
    AfterValidator(_catalog),
]


class SettingIgnoredWarning(UserWarning):
    """A setting has no effect, because the process has already opened the database."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class _Backoff(_Section):
    backoff_initial: Seconds
    backoff_max: Seconds

    @model_validator(mode="after")
    def _growing(self) -> Self:
        if self.backoff_max < self.backoff_initial:
            raise ValueError("backoff_max must not be below backoff_initial")
        return self


class SqlSettings(_Section):
    """The catalog's database.

    Args:
        schema: what a write does if the catalog is absent: `create_if_missing`, or
            `error`, with which opening an absent catalog is an error, too.
        password: the Postgres password, if the URI has none; never shown.

    Examples:
        >>> from delkalakedb.settings import SqlSettings
        >>> SqlSettings(schema="error").schema_policy
        'error'
    """

    # Not named `schema`, because pydantic's models have a method of this name.
    schema_policy: SchemaPolicy = Field(default="create_if_missing", alias="schema")
    password: Annotated[SecretStr | None, Field(description="a text")] = None


class PoolSettings(_Section):
    """Connections to the catalog's database.

    Args:
        size: the most connections of a process to one database.
        connect_timeout: the seconds to wait for a connection.
        lock_timeout: the seconds to wait for another commit that holds the table's
            lock.
        statement_timeout: the seconds that one statement may run; None for no limit.

    Examples:
        >>> from delkalakedb.settings import PoolSettings
        >>> dk.connect("deltasql://sqlite/meta.db", pool=PoolSettings(size=2)).closed
        False
    """

    size: Size = 5
    connect_timeout: Seconds = 10.0
    lock_timeout: Seconds = 30.0
    statement_timeout: MaybeSeconds = None


class ConcurrencySettings(_Backoff):
    """Retries of a commit that lost against another one.

    Args:
        backoff_initial: the first pause, in seconds.
        backoff_max: the longest pause, in seconds.
        retries: how often an operation runs again after a conflict.

    Examples:
        >>> from delkalakedb.settings import ConcurrencySettings
        >>> ConcurrencySettings(retries=3).backoff_max
        1.0
    """

    retries: Count = 15
    backoff_initial: Seconds = 0.01
    backoff_max: Seconds = 1.0


class RetrySettings(_Backoff):
    """The pauses between attempts to publish a table.

    Args:
        backoff_initial: the first pause, in seconds.
        backoff_max: the longest pause, in seconds.

    Examples:
        >>> from delkalakedb.settings import MirrorSettings, RetrySettings
        >>> MirrorSettings(retry=RetrySettings(backoff_max=60)).retry.backoff_initial
        1.0
    """

    backoff_initial: Seconds = 1.0
    backoff_max: Seconds = 300.0


class MirrorSettings(_Section):
    """Publishing to `_delta_log`.

    Args:
        mode: who publishes: the writer before its call returns (`inline`), a thread of
            the writer (`background`), or another process (`external`).
        checkpoint_interval: commits between checkpoints.
        lag_warn: the age in seconds of the oldest unpublished commit that is a warning.
        lag_alert: the age in seconds of the oldest unpublished commit that is an alert.
        max_unpublished: refuse commits to a table with this many unpublished versions;
            None for no limit.
        wait: the seconds that a writer waits while another process publishes the table.
        lease: the seconds for which a dead publisher keeps other machines from
            publishing.
        poll: the seconds between two queries of the reconciler.
        workers: the tables that a reconciler publishes in parallel.
        inline_checkpoint_files: the most files of a table whose writer itself makes a
            checkpoint.
        retry: the pauses between attempts.

    Examples:
        >>> from delkalakedb.settings import MirrorSettings
        >>> external = MirrorSettings(mode="external")
        >>> with dk.connect("deltasql://sqlite/meta.db", mirror=external) as catalog:
        ...     catalog.settings.mirror.mode
        'external'
    """

    mode: MirrorMode = "inline"
    checkpoint_interval: Size = 100
    lag_warn: Seconds = 5.0
    lag_alert: Seconds = 60.0
    max_unpublished: MaybeSize = None
    wait: Seconds = 5.0
    lease: Seconds = 1.0
    poll: Seconds = 0.2
    workers: Size = 8
    inline_checkpoint_files: Count = 10_000
    retry: RetrySettings = RetrySettings()

    @model_validator(mode="after")
    def _warn_first(self) -> Self:
        if self.lag_alert < self.lag_warn:
            raise ValueError("lag_alert must not be below lag_warn")
        return self


class CacheSettings(_Section):
    """The snapshots that the process keeps in memory.

    Args:
        snapshots: the most file lists; 0 keeps none.
        max_bytes: the most memory of all file lists; 0 keeps none.

    Examples:
        >>> from delkalakedb.settings import CacheSettings
        >>> CacheSettings(snapshots=0).max_bytes
        268435456
    """

    snapshots: Count = 64
    max_bytes: Count = 256 * 1024 * 1024


class StatsSettings(_Section):
    """Column statistics that the catalog indexes.

    Args:
        indexed_columns: how many leading columns are in the index, in addition to the
            partition columns.

    Examples:
        >>> from delkalakedb.settings import StatsSettings
        >>> StatsSettings(indexed_columns=8).indexed_columns
        8
    """

    indexed_columns: Count = 4


VectorMode = Annotated[
    Literal["auto", "always", "never"], Field(description="auto, always or never")
]
Share = Annotated[
    float, Field(gt=0, le=1, description="a number above 0, up to 1"), _NUMBER
]
Switch = Annotated[bool, Field(description="true or false")]


class VectorSettings(_Section):
    """Deletion vectors, on tables that have `delta.enableDeletionVectors`.

    Args:
        mode: when an operation writes vectors instead of rewriting files: `auto` by the
            rows that change, `always`, or `never`.
        max_share: with `auto`, the largest share of bytes of the rows that change.
        inline_bytes: the largest vector that is kept in the commit itself.
        inline_commit_bytes: the most bytes of vectors in one commit.
        new_tables: whether a new table takes vectors if its properties don't say.

    Examples:
        >>> from delkalakedb.settings import VectorSettings
        >>> VectorSettings(mode="never").new_tables
        False
    """

    mode: VectorMode = "auto"
    max_share: Share = 0.1
    inline_bytes: Count = 4 * 1024
    inline_commit_bytes: Count = 256 * 1024
    new_tables: Switch = False


class Settings(BaseSettings):
    """All settings, from arguments, environment variables and defaults, in this order.

    `load_settings` reads URI parameters and files, too.

    Args:
        sql: the catalog's database.
        pool: connections to the catalog's database.
        concurrency: retries of a commit that lost against another one.
        mirror: publishing to `_delta_log`.
        cache: the snapshots that the process keeps in memory.
        stats: column statistics that the catalog indexes.
        vectors: deletion vectors.
        data_path: the folder of tables that are created without a location.
        catalog: the catalog of the `deltasql` command, unless another one is given.

    Examples:
        >>> from delkalakedb.settings import Settings
        >>> settings = Settings(pool={"size": 2}, mirror={"mode": "external"})
        >>> dk.connect("deltasql://sqlite/meta.db", settings).settings.pool.size
        2
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_NESTED,
    )

    sql: SqlSettings = SqlSettings()
    pool: PoolSettings = PoolSettings()
    concurrency: ConcurrencySettings = ConcurrencySettings()
    mirror: MirrorSettings = MirrorSettings()
    cache: CacheSettings = CacheSettings()
    stats: StatsSettings = StatsSettings()
    vectors: VectorSettings = VectorSettings()
    data_path: Place = None
    catalog: CatalogUri = None

    def __init__(self, **sections: Unpack["SettingsDict"]) -> None:
        """Read the settings that aren't given from environment variables.

        Only the settings that are given are in `model_fields_set`.
        """
        given = flatten(sections, ARGUMENT)
        try:
            super().__init__(**nest(given))
        except ValidationError as error:
            problem = explain(error, {**env_values(os.environ), **given})
        else:
            _keep_set(self, given)
            return
        raise ConfigError(problem)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources: arguments and environment variables, but no files."""
        return (init_settings, env_settings)

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings with these values; the environment isn't read."""
        made = cls.__new__(cls)
        BaseModel.__init__(made, **values)
        return made


# The sections as dictionaries, for type checkers.


class SqlDict(TypedDict, total=False):
    """`SqlSettings` as a dictionary."""

    schema: Literal["create_if_missing", "error"]
    password: str | SecretStr | None


class PoolDict(TypedDict, total=False):
    """`PoolSettings` as a dictionary."""

    size: int
    connect_timeout: float
    lock_timeout: float
    statement_timeout: float | None


class ConcurrencyDict(TypedDict, total=False):
    """`ConcurrencySettings` as a dictionary."""

    retries: int
    backoff_initial: float
    backoff_max: float


class RetryDict(TypedDict, total=False):
    """`RetrySettings` as a dictionary."""

    backoff_initial: float
    backoff_max: float


class MirrorDict(TypedDict, total=False):
    """`MirrorSettings` as a dictionary."""

    mode: Literal["inline", "background", "external"]
    checkpoint_interval: int
    lag_warn: float
    lag_alert: float
    max_unpublished: int | None
    wait: float
    lease: float
    poll: float
    workers: int
    inline_checkpoint_files: int
    retry: RetrySettings | RetryDict


class CacheDict(TypedDict, total=False):
    """`CacheSettings` as a dictionary."""

    snapshots: int
    max_bytes: int


class StatsDict(TypedDict, total=False):
    """`StatsSettings` as a dictionary."""

    indexed_columns: int


class VectorDict(TypedDict, total=False):
    """`VectorSettings` as a dictionary."""

    mode: Literal["auto", "always", "never"]
    max_share: float
    inline_bytes: int
    inline_commit_bytes: int
    new_tables: bool


class SettingsDict(TypedDict, total=False):
    """`Settings` as a dictionary, and the keywords of `connect`."""

    sql: SqlSettings | SqlDict
    pool: PoolSettings | PoolDict
    concurrency: ConcurrencySettings | ConcurrencyDict
    mirror: MirrorSettings | MirrorDict
    cache: CacheSettings | CacheDict
    stats: StatsSettings | StatsDict
    vectors: VectorSettings | VectorDict
    data_path: str | None
    catalog: str | SecretStr | None


def as_given(value: Mapping[str, object] | BaseModel) -> Mapping[str, object]:
    """Return settings or a section as a dictionary of the keys that were set in it."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True, by_alias=True)
    return value


def describe_keys() -> dict[str, FieldInfo]:
    """Return each key's field: its default and, as description, what it must be."""
    fields = _walk(Settings, "")
    return {key: info for key, info in fields if not _is_section(info.annotation)}


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields of a model and of its sections by dotted key."""
    for name, info in model.model_fields.items():
        key, kind = prefix + (info.alias or name), info.annotation
        yield key, info
        if _is_section(kind):
            yield from _walk(kind, key + ".")


def _is_section(kind: object) -> TypeGuard[type[_Section]]:
    return isinstance(kind, type) and issubclass(kind, _Section)


def _keep_set(model: BaseModel, given: Container[str], prefix: str = "") -> None:
    """Remove from the fields that are set those that aren't given."""
    for name, info in type(model).model_fields.items():
        key, value = prefix + (info.alias or name), getattr(model, name)
        kept = key in given
        if isinstance(value, _Section):
            _keep_set(value, given, key + ".")
            kept = bool(value.model_fields_set)
        if not kept:
            model.model_fields_set.discard(name)


_KEYS = describe_keys()
_SECTIONS = {
    key: info.annotation
    for key, info in _walk(Settings, "")
    if _is_section(info.annotation)
}


# ---- values by dotted key


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value, and the name of the source that has it."""

    value: object
    source: str


Values = dict[str, Value]


def env_values(env: Mapping[str, str]) -> Values:
    """Return the settings among the variables of an environment."""
    values: Values = {}
    for name in env:
        upper = name.upper()
        ours = upper.startswith(ENV_PREFIX) and upper not in _NO_SETTINGS
        if ours and not upper.startswith(_ENV_TEST):
            key = upper.removeprefix(ENV_PREFIX).lower().replace(ENV_NESTED, ".")
            values |= flatten({key: env[name]}, f"environment variable {name}")
    return values


def flatten(content: Mapping[str, object], source: str, prefix: str = "") -> Values:
    """Return the values by dotted key; raise `ConfigError` for an unknown key."""
    values: Values = {}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if key in _KEYS:
            values[key] = Value(value, source)
        elif key not in _SECTIONS:
            raise ConfigError(_unknown(key, source))
        elif isinstance(value, _SECTIONS[key] | Mapping):
            values |= flatten(as_given(value), source, key + ".")
        elif isinstance(value, BaseModel):
            raise ConfigError(
                f"{key}, from {source}, must be a {_SECTIONS[key].__name__} or a "
                f"dictionary, not a {type(value).__name__}"
            )
        else:
            raise ConfigError(f"{key}, from {source}, is a section: {_inside(key)}")
    return values


def _unknown(key: str, source: str) -> str:
    section = key.rpartition(".")[0]
    while section and section not in _SECTIONS:
        section = section.rpartition(".")[0]
    near = did_you_mean(key, [*_KEYS, *_SECTIONS])
    return f"unknown key {key}, from {source}{near}; {_inside(section)}"


def _inside(section: str) -> str:
    prefix = f"{section}." if section else ""
    names = (key for key in _KEYS if key.startswith(prefix))
    return f"allowed: {', '.join(sorted(names))}"


def nest(values: Values) -> dict[str, Any]:
    """Return the values by section and name."""
    nested: dict[str, Any] = {}
    for key, item in values.items():
        *sections, name = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = item.value
    return nested


def explain(error: ValidationError, values: Values) -> str:
    """Return what is wrong with which of the values, with their sources."""
    problems = error.errors(include_url=False, include_input=False)
    return "; ".join(_explain(problem, values) for problem in problems)


def _explain(problem: ErrorDetails, values: Values) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if key in values:
        refused = f"{key}, from {values[key].source}, must be {_KEYS[key].description}"
        cause = problem.get("ctx", {}).get("error")
        return f"{refused}: {cause}" if isinstance(cause, UriError) else refused
    # A rule between several keys, of which some were given and others have defaults.
    given = (k for k in values if k.startswith(f"{key}."))
    sources = ", ".join(f"{k} from {values[k].source}" for k in given)
    return f"{key}: {problem['msg'].removeprefix('Value error, ')} ({sources})"
