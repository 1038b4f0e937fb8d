"""Settings from all their sources.

The first source that holds a key decides: arguments, the URI's parameters,
environment variables, a TOML or YAML file, the default. This module merges the
sources itself, not pydantic-settings, because an error must name the source of the
value that it refuses.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from delkalakedb.errors import ConfigError, UriError
from delkalakedb.settings.keys import (
    ENV_NESTED,
    Settings,
    SettingsDict,
    as_given,
    describe_keys,
)
from delkalakedb.settings.uri import DEFAULT_FILE, ENV_PREFIX, Uri, parse_uri

_ENV_CONFIG = f"{ENV_PREFIX}CONFIG"
_NO_SETTINGS = {_ENV_CONFIG, f"{ENV_PREFIX}REGISTER"}
_ENV_TEST = f"{ENV_PREFIX}TEST_"
_FROM_URI = {
    "pool_size": "pool.size",
    "connect_timeout": "pool.connect_timeout",
    "data_path": "data_path",
}
_KEYS = describe_keys()
_SECTIONS = {key.rpartition(".")[0] for key in _KEYS} - {""}


@dataclass(frozen=True, slots=True)
class _Value:
    value: object
    source: str


_Values = dict[str, _Value]


def load_settings(
    uri: Uri | str | None = None,
    file: str | os.PathLike[str] | None = None,
    *,
    settings: Settings | SettingsDict | None = None,
    **overrides: object,
) -> Settings:
    """Return the settings from all sources; the first that holds a key decides.

    Args:
        uri: a `deltasql://` URI; `settings` and `overrides` override its parameters.
        file: a TOML or YAML file.
        settings: settings as arguments; only the keys that were set in it count.
        overrides: sections (`pool={"size": 2}`, `pool=PoolSettings(size=2)`) or dotted
            keys; they override `settings`.
    """
    given = {} if settings is None else as_given(settings)
    if not isinstance(given, Mapping):
        kind = type(settings).__name__
        raise ConfigError(f"settings must be a Settings or a dictionary, not {kind}")
    values: _Values = {
        **_file_values(file),
        **_env_values(os.environ),
        **_uri_values(parse_uri(uri) if isinstance(uri, str) else uri),
        **_flatten(given, "an argument"),
        **_flatten(overrides, "an argument"),
    }
    try:
        return Settings.of(_nest(values))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
    raise ConfigError("; ".join(_explain(problem, values) for problem in problems))


def _file_values(file: str | os.PathLike[str] | None) -> _Values:
    path = _find_file(file)
    if path is None:
        return {}
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise ConfigError(f"file {path} must end in one of {', '.join(_READERS)}")
    content = read(_read_bytes(path), path)
    if not isinstance(content, Mapping):
        raise ConfigError(f"file {path} must hold keys and values at its top level")
    return _flatten(content, f"file {path}")


def _find_file(file: str | os.PathLike[str] | None) -> Path | None:
    named = file or os.environ.get(_ENV_CONFIG)
    if named:
        return Path(named)
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"can't read the configuration file {path} "
            f"(named by an argument or {_ENV_CONFIG}): {reason}"
        ) from error


def _read_toml(data: bytes, path: Path) -> object:
    try:
        return tomllib.loads(data.decode())
    except ValueError as error:
        problem = str(error)
    raise ConfigError(f"file {path} isn't valid TOML: {problem}")


def _read_yaml(data: bytes, path: Path) -> object:
    import yaml

    try:
        content = yaml.safe_load(data)
        return {} if content is None else content
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
    # Without its cause, because YAML's errors quote the file, which may hold a
    # password.
    where = f" near line {mark.line + 1}" if mark else ""
    raise ConfigError(f"file {path} isn't valid YAML{where}")


_READERS = {".toml": _read_toml, ".yaml": _read_yaml, ".yml": _read_yaml}


def _env_values(env: Mapping[str, str]) -> _Values:
    values: _Values = {}
    for name in env:
        upper = name.upper()
        ours = upper.startswith(ENV_PREFIX) and upper not in _NO_SETTINGS
        if ours and not upper.startswith(_ENV_TEST):
            key = upper.removeprefix(ENV_PREFIX).lower().replace(ENV_NESTED, ".")
            values |= _flatten({key: env[name]}, f"environment variable {name}")
    return values


def _uri_values(uri: Uri | None) -> _Values:
    values: _Values = {}
    for name, value in uri.options if uri else ():
        if name in _FROM_URI:
            values[_FROM_URI[name]] = _Value(value, f"URI parameter {name}")
    return values


def _flatten(content: Mapping[str, object], source: str, prefix: str = "") -> _Values:
    """Return the values by dotted key; raise `ConfigError` for an unknown key."""
    values: _Values = {}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if key in _KEYS:
            values[key] = _Value(value, source)
        elif key not in _SECTIONS:
            raise ConfigError(_unknown(key, source))
        elif isinstance(section := as_given(value), Mapping):
            values |= _flatten(section, source, key + ".")
        else:
            raise ConfigError(f"{key}, from {source}, is a section: {_inside(key)}")
    return values


def _unknown(key: str, source: str) -> str:
    section = key.rpartition(".")[0]
    while section and section not in _SECTIONS:
        section = section.rpartition(".")[0]
    return f"unknown key {key}, from {source}; {_inside(section)}"


def _inside(section: str) -> str:
    prefix = f"{section}." if section else ""
    names = (key for key in _KEYS if key.startswith(prefix))
    return f"allowed: {', '.join(sorted(names))}"


def _nest(values: _Values) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, item in values.items():
        *sections, name = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = item.value
    return nested


def _explain(problem: ErrorDetails, values: _Values) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if key in values:
        refused = f"{key}, from {values[key].source}, must be {_KEYS[key].description}"
        cause = problem.get("ctx", {}).get("error")
        return f"{refused}: {cause}" if isinstance(cause, UriError) else refused
    # A rule between several keys, of which some were given and others have defaults.
    given = (k for k in values if k.startswith(f"{key}."))
    sources = ", ".join(f"{k} from {values[k].source}" for k in given)
    return f"{key}: {problem['msg'].removeprefix('Value error, ')} ({sources})"
