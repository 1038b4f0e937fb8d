"""Settings: sources, their order, and errors that say what to correct."""

import re
import traceback
from pathlib import Path

import pytest
from pydantic import SecretStr
from pydantic_core import PydanticUndefined

import delkalakedb as dk
from delkalakedb.errors import ConfigError
from delkalakedb.settings import keys as models
from delkalakedb.settings.configuration import load_settings
from delkalakedb.settings.keys import (
    CacheSettings,
    MirrorSettings,
    PoolSettings,
    RetrySettings,
    SettingIgnoredWarning,
    Settings,
    SqlSettings,
    describe_keys,
)
from delkalakedb.settings.uri import parse_uri

DOCS = Path(__file__).parents[1] / "docs" / "configuration.md"
SECRET = "hunter2-Zq"
FREE_TEXT = {
    "catalog": "deltasql://sqlite/m.db",
    "data_path": "/x",
    "sql.password": "/x",
}


@pytest.fixture(autouse=True)
def _empty_folder_and_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for key in describe_keys():
        monkeypatch.delenv(env_name(key), raising=False)
    monkeypatch.delenv("DELKALAKEDB_CONFIG", raising=False)


def env_name(key: str) -> str:
    return "DELKALAKEDB_" + key.upper().replace(".", "__")


def refusal(*args: object, **overrides: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(*args, **overrides)
    return str(caught.value)


def test_no_source_gives_the_defaults() -> None:
    settings = load_settings()

    assert settings == Settings()
    assert settings.sql.schema_policy == "create_if_missing"
    assert (settings.pool.size, settings.pool.connect_timeout) == (5, 10.0)
    assert (settings.mirror.mode, settings.mirror.checkpoint_interval) == (
        "inline",
        100,
    )
    assert settings.pool.statement_timeout is None


def test_each_source_beats_the_ones_below(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = parse_uri("deltasql://sqlite/m.db?pool_size=4")
    found = [load_settings().pool.size]
    Path("deltalakedb.toml").write_text("[pool]\nsize = 2\n")
    found.append(load_settings().pool.size)
    monkeypatch.setenv("DELKALAKEDB_POOL__SIZE", "3")
    found.append(load_settings().pool.size)
    found.append(load_settings(uri).pool.size)
    found.append(load_settings(uri, pool={"size": 1}).pool.size)

    assert found == [5, 2, 3, 4, 1]


def test_sources_fill_in_each_other_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("deltalakedb.toml").write_text("[pool]\nsize = 2\nlock_timeout = 3\n")
    monkeypatch.setenv("DELKALAKEDB_POOL__CONNECT_TIMEOUT", "4")
    pool = load_settings(**{"pool.size": 9}).pool

    assert (pool.size, pool.lock_timeout, pool.connect_timeout) == (9, 3.0, 4.0)


def test_uri_parameters_become_settings() -> None:
    text = "deltasql://sqlite/m.db?pool_size=7&connect_timeout=2.5&data_path=/lake"
    settings = load_settings(text)

    assert (settings.pool.size, settings.pool.connect_timeout) == (7, 2.5)
    assert settings.data_path == "/lake"


@pytest.mark.parametrize("key", sorted(describe_keys().keys() - FREE_TEXT))
def test_every_key_can_come_from_the_environment(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = describe_keys()[key].default
    monkeypatch.setenv(env_name(key), "none" if default is None else str(default))
    assert load_settings() == Settings()

    monkeypatch.setenv(env_name(key), "-1")
    assert refusal().startswith(f"{key}, from environment variable {env_name(key)}")


def test_free_text_can_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for key, text in FREE_TEXT.items():
        monkeypatch.setenv(env_name(key), text)
    settings = load_settings()

    assert (settings.data_path, settings.sql.password) == ("/x", SecretStr("/x"))
    assert settings.catalog == SecretStr(FREE_TEXT["catalog"])


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        ("catalog", "nonsense", "a deltasql:// URI: the scheme must be deltasql"),
        ("catalog", "", "a deltasql:// URI: the scheme must be deltasql"),
        ("catalog", f"postgres://u:{SECRET}@h/db", "a deltasql:// URI"),
        ("catalog", f"deltasql://mysql/u:{SECRET}@h/db", "a deltasql:// URI: unknown"),
        ("data_path", "foo://bar", "a folder or an object store's URL (file://, s3://"),
        ("data_path", f"foo://key:{SECRET}@bucket", "a folder or an object store's"),
        ("data_path", "file://host/lake", "a folder or an object store's URL"),
    ],
)
def test_refused_text_is_named_with_its_source_and_no_secret(
    key: str, text: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(env_name(key), text)
    with pytest.raises(ConfigError) as caught:
        load_settings()

    start = f"{key}, from environment variable {env_name(key)}, must be {allowed}"
    assert str(caught.value).startswith(start)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_variables_of_a_catalog_are_needed_only_where_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELKALAKEDB_CATALOG", "deltasql://sqlite/${GONE}")

    assert load_settings().catalog is not None


@pytest.mark.parametrize(
    "place", ["lake", "/lake", "a:b", "file:/lake", "file://localhost/lake", "S3://b"]
)
def test_place_of_a_known_kind_is_taken(place: str) -> None:
    assert load_settings(data_path=place).data_path == place


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_named_file_is_read(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("deltalakedb.toml").write_text("[pool]\nsize = 2\n")
    Path("other.yml").write_text("pool: {size: 6}\nsql: {schema: error}\n")
    if how == "environment":
        monkeypatch.setenv("DELKALAKEDB_CONFIG", "other.yml")
    settings = load_settings(file="other.yml" if how == "argument" else None)

    assert settings.pool.size == 6
    assert settings.sql.schema_policy == "error"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"mirror": {"mode": "fast"}},
            "mirror.mode, from an argument, must be inline, background or external",
        ),
        ({"pool.size": 0}, "pool.size, from an argument, must be a whole number"),
        (
            {"pool": {"lock_timeout": float("nan")}},
            "pool.lock_timeout, from an argument",
        ),
        (
            {"pool": {"lock_timeout": float("inf")}},
            "pool.lock_timeout, from an argument",
        ),
        ({"cache.snapshots": -1}, "cache.snapshots, from an argument"),
        ({"data_path": ""}, "data_path, from an argument, must be a folder"),
        ({"pool": 3}, "pool, from an argument, is a section: allowed: pool.connect_"),
        ({"pol": {"size": 3}}, "argument; did you mean pool?; allowed: cache."),
        (
            {"mirror.retry.bakoff": 3},
            "unknown key mirror.retry.bakoff, from an argument",
        ),
        ({"pool.size.x": 3}, "unknown key pool.size.x, from an argument"),
    ],
)
def test_refused_argument_is_named_with_what_is_allowed(
    overrides: dict[str, object], message: str
) -> None:
    assert message in refusal(**overrides)


def test_several_problems_are_reported_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "fast")
    message = refusal(**{"pool.size": "many"})

    assert "pool.size, from an argument" in message
    assert "mirror.mode, from environment variable DELKALAKEDB_MIRROR__MODE" in message


def test_contradicting_keys_are_refused_with_both_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELKALAKEDB_MIRROR__RETRY__BACKOFF_MAX", "2")
    message = refusal(**{"mirror.retry.backoff_initial": 3})

    assert "mirror.retry: backoff_max must not be below backoff_initial" in message
    assert "DELKALAKEDB_MIRROR__RETRY__BACKOFF_MAX" in message


def test_alert_before_warning_is_refused() -> None:
    assert "lag_alert must not be below lag_warn" in refusal(mirror={"lag_alert": 1})


@pytest.mark.parametrize(
    "name", ["DELKALAKEDB_POOL__SISE", "DELKALAKEDB_POL__SIZE", "DELKALAKEDB_POOL"]
)
def test_mistyped_environment_variable_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "3")

    assert f"environment variable {name}" in refusal()


def test_variables_of_the_test_suite_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELKALAKEDB_TEST_ANYTHING", "x")

    assert load_settings() == Settings()


def test_refused_file_value_is_named_with_its_file() -> None:
    Path("c.toml").write_text("[mirror]\nmode = 'fast'\n")

    assert "mirror.mode, from file c.toml, must be inline" in refusal(None, "c.toml")


def test_unknown_key_in_a_file_is_named_with_its_file() -> None:
    Path("c.yaml").write_text("mirror: {mod: inline}\n")

    assert "unknown key mirror.mod, from file c.yaml" in refusal(None, "c.yaml")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.toml", "pool = [", "file c.toml isn't valid TOML"),
        ("c.toml", "\udcff", "file c.toml isn't valid TOML"),
        ("c.yaml", "a: [", "file c.yaml isn't valid YAML near line 1"),
        ("c.yaml", "- 1\n", "file c.yaml must hold keys and values"),
        ("c.yaml", "1: 2\n", "unknown key 1, from file c.yaml"),
        ("c.ini", "", "file c.ini must end in one of .toml, .yaml, .yml"),
    ],
)
def test_unreadable_file_is_refused(name: str, content: str, message: str) -> None:
    Path(name).write_bytes(content.encode(errors="surrogateescape"))

    assert message in refusal(None, name)


def test_missing_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "configuration file gone.toml" in refusal(None, "gone.toml")
    monkeypatch.setenv("DELKALAKEDB_CONFIG", "away.toml")
    assert "configuration file away.toml" in refusal()


def test_empty_yaml_file_changes_nothing() -> None:
    Path("c.yaml").write_text("# nothing\n")

    assert load_settings(file="c.yaml") == Settings()


def test_password_is_kept_but_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELKALAKEDB_SQL__PASSWORD", SECRET)
    settings = load_settings()

    assert settings.sql.password == SecretStr(SECRET)
    assert SECRET not in f"{settings!r} {settings} {settings.model_dump_json()}"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.toml", f"[sql]\npassword = ['{SECRET}']"),
        ("c.toml", f"[sql]\npassword = {SECRET}"),
        ("c.toml", f"[sql]\npassword = '{SECRET}'\nbogus = 1"),
        ("c.toml", f"[sql]\npassword = '{SECRET}'\n[pool]\nsize = 0"),
        ("c.yaml", f"sql: {{password: '{SECRET}', ]"),
        ("c.yaml", f"sql: {SECRET}"),
    ],
)
def test_error_never_shows_a_secret_of_the_file(name: str, content: str) -> None:
    Path(name).write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_settings(file=name)

    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_settings_are_values() -> None:
    settings = load_settings(**{"sql.password": "x"})

    assert hash(settings) == hash(load_settings(**{"sql.password": "x"}))
    with pytest.raises(ValueError, match="frozen"):
        settings.data_path = "/x"


# ---- the documentation


def rows() -> dict[str, list[str]]:
    cells = (line.split("|")[1:-1] for line in DOCS.read_text().splitlines())
    table = [[c.strip() for c in row] for row in cells if len(row) == 4]
    return {row[0].strip("`"): row for row in table if row[0].startswith("`")}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), re.DOTALL)


def test_documented_keys_are_the_keys_that_exist() -> None:
    assert set(rows()) == set(describe_keys())


@pytest.mark.parametrize("key", sorted(describe_keys()))
def test_key_is_documented_with_default_and_variable(key: str) -> None:
    default = describe_keys()[key].default
    assert default is not PydanticUndefined
    _, shown, allowed, variable = rows()[key]

    word = str(default).lower() if default in (None, False) else default
    assert shown == f"`{word}`"
    assert allowed
    assert variable == f"`{env_name(key)}`"
    assert DOCS.read_text().count(f"`{key}`") >= 2, "in the table and explained below"


def test_documented_files_load_alike() -> None:
    (toml,), (yaml,) = blocks("toml"), blocks("yaml")
    Path("c.toml").write_text(toml)
    Path("c.yaml").write_text(yaml)

    assert load_settings(file="c.toml") == load_settings(file="c.yaml") != Settings()


def test_documented_example_runs() -> None:
    for code in blocks("python"):
        exec(code, {})


def test_documented_error_is_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "fast")

    assert blocks("text") == [refusal() + "\n"]


@pytest.mark.parametrize(
    "key", ["pool.size", "pool.connect_timeout", "cache.max_bytes"]
)
def test_boolean_is_no_number(key: str) -> None:
    section, _, name = key.partition(".")
    Path("deltalakedb.toml").write_text(f"[{section}]\n{name} = true\n")

    assert f"{key}, from" in refusal()


def test_data_path_can_be_none_by_that_word(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("deltalakedb.toml").write_text('data_path = "/lake"\n')
    monkeypatch.setenv("DELKALAKEDB_DATA_PATH", "none")

    assert load_settings().data_path is None


def test_password_of_a_data_path_is_not_shown() -> None:
    settings = load_settings(data_path=f"s3://key:{SECRET}@bucket/lake")

    assert SECRET not in repr(settings)


# ---- settings as objects


def test_settings_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELKALAKEDB_POOL__SIZE", "3")
    monkeypatch.setenv("DELKALAKEDB_POOL__STATEMENT_TIMEOUT", "none")
    monkeypatch.setenv("DELKALAKEDB_SQL__SCHEMA", "error")
    monkeypatch.setenv("DELKALAKEDB_MIRROR__RETRY__BACKOFF_MAX", "60")

    settings = Settings()
    assert settings == load_settings()
    assert (settings.pool.size, settings.sql.schema_policy) == (3, "error")
    assert settings.mirror.retry.backoff_max == 60
    given = Settings(pool=PoolSettings(connect_timeout=2), mirror={"wait": 1})
    assert (given.pool.size, given.pool.connect_timeout) == (3, 2)
    assert given.mirror.retry.backoff_max == 60


def test_objects_count_as_dictionaries_of_what_was_set_in_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELKALAKEDB_POOL__CONNECT_TIMEOUT", "4")
    uri = "deltasql://sqlite/m.db?pool_size=7"
    retry = RetrySettings(backoff_max=60)
    as_objects = load_settings(
        uri,
        settings=Settings(sql=SqlSettings(schema="error", password=SECRET)),
        pool=PoolSettings(lock_timeout=3),
        mirror=MirrorSettings(mode="external", retry=retry),
    )
    as_dicts = load_settings(
        uri,
        settings={"sql": {"schema": "error", "password": SECRET}},
        pool={"lock_timeout": 3},
        mirror={"mode": "external", "retry": {"backoff_max": 60}},
    )

    assert as_objects == as_dicts
    pool = as_objects.pool
    assert (pool.size, pool.lock_timeout, pool.connect_timeout) == (7, 3, 4)
    assert SECRET not in repr(as_objects)


def test_keywords_come_before_settings() -> None:
    settings = Settings(pool=PoolSettings(size=2, lock_timeout=9))
    pool = load_settings(settings=settings, pool={"size": 3}).pool

    assert (pool.size, pool.lock_timeout) == (3, 9)


def test_settings_of_another_kind_are_refused() -> None:
    assert "must be a Settings or a dictionary" in refusal(settings=3)
    assert "must be a Settings or a dictionary" in refusal(settings=PoolSettings())
    for given in (MirrorSettings(), MirrorSettings(mode="external"), Settings()):
        assert refusal(pool=given) == (
            "pool, from an argument, must be a PoolSettings or a dictionary, not a "
            f"{type(given).__name__}"
        )
    message = refusal(mirror={"retry": PoolSettings()})
    assert "mirror.retry, from an argument, must be a RetrySettings or" in message


def test_uri_comes_before_the_environment_that_settings_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELKALAKEDB_POOL__SIZE", "7")
    monkeypatch.setenv("DELKALAKEDB_MIRROR__RETRY__BACKOFF_MAX", "60")
    uri = "deltasql://sqlite/m.db?pool_size=9"
    retry = {"retry": RetrySettings(backoff_initial=2)}
    given = Settings(pool=PoolSettings(connect_timeout=3), mirror=retry)
    settings = load_settings(uri, settings=given)

    assert (given.pool.size, given.mirror.retry.backoff_max) == (7, 60)
    assert (settings.pool.size, settings.pool.connect_timeout) == (9, 3)
    assert load_settings(uri, settings=Settings()).pool.size == 9
    assert load_settings(settings=given) == given


def test_refused_argument_of_settings_is_named_with_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match=r"unknown key pol, from an arg.*pool\.size"):
        Settings(pol=1)
    with pytest.raises(ConfigError, match=r"unknown key pool\.sise, .*pool.size"):
        Settings(pool={"sise": 1})
    with pytest.raises(ConfigError, match=r"pool, from an argument, must be a PoolSet"):
        Settings(pool=MirrorSettings())
    with pytest.raises(
        ConfigError, match=r"pool\.size, from an argument, must be a wh"
    ):
        Settings(pool={"size": 0})
    monkeypatch.setenv("DELKALAKEDB_POOL__SIZE", "many")
    with pytest.raises(
        ConfigError, match=r"environment variable DELKALAKEDB_POOL__SIZE"
    ):
        Settings()


def test_keywords_of_connect_are_the_keys() -> None:
    def keys(kind: str, prefix: str = "") -> set[str]:
        found = set()
        for name, hint in getattr(models, f"{kind}Dict").__annotations__.items():
            nested = re.search(r"(\w+)Dict", str(hint))
            inner = f"{prefix}{name}."
            found |= keys(nested[1], inner) if nested else {f"{prefix}{name}"}
        return found

    assert keys("Settings") == set(describe_keys())


def test_connect_takes_objects_and_catalogs_have_their_settings(
    catalog_uri: str,
) -> None:
    settings = Settings(mirror=MirrorSettings(mode="external"))
    with dk.connect(catalog_uri, settings=settings, pool=PoolSettings(size=2)) as one:
        assert (one.settings.mirror.mode, one.settings.pool.size) == ("external", 2)


def test_setting_of_an_open_pool_that_has_no_effect_warns(
    catalog_uri: str, recwarn: pytest.WarningsRecorder
) -> None:
    with dk.connect(catalog_uri, pool=PoolSettings(size=2)) as first:
        dk.connect(catalog_uri).close()
        dk.connect(catalog_uri, pool={"size": 2}, mirror={"wait": 1.0}).close()
        assert [str(warning.message) for warning in recwarn] == []

        asked = {"pool": {"size": 9, "lock_timeout": 1.0}}
        with pytest.warns(SettingIgnoredWarning) as caught:
            dk.connect(catalog_uri, settings=asked, cache=CacheSettings(snapshots=0))
        (warning,) = caught
        told = str(warning.message)
        for words in ("pool.size = 9 (it is 2)", "pool.lock_timeout = 1.0", "cache."):
            assert words in told
        assert str(first.uri) in told
        assert warning.filename == __file__
    dk.close()
    with dk.connect(catalog_uri, pool={"size": 9}):
        pass
    assert [w for w in recwarn if w.category is SettingIgnoredWarning] == []
