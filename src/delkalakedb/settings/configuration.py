"""Settings from all their sources.

The first source that holds a key decides: arguments, the URI's parameters,
environment variables, a TOML or YAML file, the default. This module merges the
sources itself, not pydantic-settings, because an error must name the source of the
value that it refuses.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from delkalakedb.errors import ConfigError
from delkalakedb.settings.keys import (
    ARGUMENT,
    ENV_CONFIG,
    Settings,
    SettingsDict,
    Value,
    Values,
    as_given,
    env_values,
    explain,
    flatten,
    nest,
)
from delkalakedb.settings.uri import DEFAULT_FILE, Uri, parse_uri

_FROM_URI = {
    "pool_size": "pool.size",
    "connect_timeout": "pool.connect_timeout",
    "data_path": "data_path",
}


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

    Returns:
        The settings.

    Raises:
        ConfigError: A setting is unknown or has a value that isn't allowed, or a file
            can't be read.
        UriError: The URI can't be parsed.

    Examples:
        >>> from delkalakedb.settings import load_settings
        >>> load_settings("deltasql://sqlite/meta.db?pool_size=2").pool.size
        2
    """
    if not isinstance(settings, Settings | Mapping | None):
        kind = type(settings).__name__
        raise ConfigError(f"settings must be a Settings or a dictionary, not {kind}")
    values: Values = {
        **_file_values(file),
        **env_values(os.environ),
        **_uri_values(parse_uri(uri) if isinstance(uri, str) else uri),
        **flatten(as_given(settings or {}), ARGUMENT),
        **flatten(overrides, ARGUMENT),
    }
    try:
        return Settings._of(nest(values))
    except ValidationError as error:
        problem = explain(error, values)
    raise ConfigError(problem)


def _file_values(file: str | os.PathLike[str] | None) -> Values:
    path = _find_file(file)
    if path is None:
        return {}
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise ConfigError(f"file {path} must end in one of {', '.join(_READERS)}")
    content = read(_read_bytes(path), path)
    if not isinstance(content, Mapping):
        raise ConfigError(f"file {path} must hold keys and values at its top level")
    return flatten(content, f"file {path}")


def _find_file(file: str | os.PathLike[str] | None) -> Path | None:
    named = file or os.environ.get(ENV_CONFIG)
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
            f"(named by an argument or {ENV_CONFIG}): {reason}"
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


def _uri_values(uri: Uri | None) -> Values:
    values: Values = {}
    for name, value in uri.options if uri else ():
        if name in _FROM_URI:
            values[_FROM_URI[name]] = Value(value, f"URI parameter {name}")
    return values
