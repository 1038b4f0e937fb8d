"""The keys of the settings, with their types and defaults."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from delkalakedb.settings.uri import (
    ENV_PREFIX,
    MAX_SECONDS,
    PLACE,
    parse_uri,
    read_place,
)

ENV_NESTED = "__"


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
    """The catalog's database."""

    # Not named `schema`, because pydantic's models have a method of this name.
    schema_policy: SchemaPolicy = Field(default="create_if_missing", alias="schema")
    password: Annotated[SecretStr | None, Field(description="a text")] = None


class PoolSettings(_Section):
    """Connections to the catalog's database."""

    size: Size = 5
    connect_timeout: Seconds = 10.0
    lock_timeout: Seconds = 30.0
    statement_timeout: MaybeSeconds = None


class ConcurrencySettings(_Backoff):
    """Retries of a commit that lost against another one."""

    retries: Count = 15
    backoff_initial: Seconds = 0.01
    backoff_max: Seconds = 1.0


class RetrySettings(_Backoff):
    """The pauses between attempts to publish a table."""

    backoff_initial: Seconds = 1.0
    backoff_max: Seconds = 300.0


class MirrorSettings(_Section):
    """Publishing to `_delta_log`."""

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
    """The snapshots that the process keeps in memory."""

    snapshots: Count = 64
    max_bytes: Count = 256 * 1024 * 1024


class StatsSettings(_Section):
    """Column statistics that the catalog indexes."""

    indexed_columns: Count = 4


class Settings(BaseSettings):
    """All settings, from arguments, environment variables and defaults, in this order.

    `load_settings` reads URI parameters and files, too.
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
    data_path: Place = None
    catalog: CatalogUri = None

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
        # A section given as an object sets only the keys that were set in it.
        given = {name: as_given(v) for name, v in init_settings().items()}
        return (InitSettingsSource(settings_cls, given), env_settings)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
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


class SettingsDict(TypedDict, total=False):
    """`Settings` as a dictionary, and the keywords of `connect`."""

    sql: SqlSettings | SqlDict
    pool: PoolSettings | PoolDict
    concurrency: ConcurrencySettings | ConcurrencyDict
    mirror: MirrorSettings | MirrorDict
    cache: CacheSettings | CacheDict
    stats: StatsSettings | StatsDict
    data_path: str | None
    catalog: str | SecretStr | None


def as_given(value: object) -> object:
    """Return settings or a section as a dictionary of the keys that were set in it.

    Any other value is returned unchanged.
    """
    if not isinstance(value, Settings | _Section):
        return value
    return value.model_dump(exclude_unset=True, by_alias=True)


def describe_keys() -> dict[str, FieldInfo]:
    """Return each key's field: its default and, as description, what it must be."""
    return dict(_walk(Settings, ""))


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        key, kind = prefix + (info.alias or name), info.annotation
        if isinstance(kind, type) and issubclass(kind, _Section):
            yield from _walk(kind, key + ".")
        else:
            yield key, info
