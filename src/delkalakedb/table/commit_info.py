"""What a caller may add to commitInfo by `CommitProperties.custom_metadata`."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from delkalakedb.errors import CommitPropertiesError

__all__ = ["check_custom_metadata", "custom_metadata"]

# The catalog writes these to every commit, whoever staged its actions.
_OF_THE_CATALOG = ("inCommitTimestamp", "isBlindAppend", "participants", "txnId")
# Where delta-rs writes commitInfo, delta-rs refuses or merges these.
_OF_THE_OPERATION = (
    "engineInfo",
    "isolationLevel",
    "operation",
    "operationMetrics",
    "operationParameters",
    "readVersion",
    "timestamp",
)
_RESERVED = (*_OF_THE_CATALOG, *_OF_THE_OPERATION)
_TEXTS = ("userId", "userMetadata", "userName")


def check_custom_metadata(commit_properties: Any) -> None:
    """Refuse keys that the catalog writes; delta-rs checks all else."""
    given = getattr(commit_properties, "custom_metadata", None)
    if isinstance(given, Mapping):
        _refuse(given, _OF_THE_CATALOG)


def custom_metadata(commit_properties: Any) -> dict[str, Any]:
    """Return the custom metadata of a commit whose commitInfo delta-rs doesn't write.

    Refuses reserved keys, and what delta-rs refuses: keys that aren't text, values
    that aren't JSON, and users that aren't text.
    """
    given = getattr(commit_properties, "custom_metadata", None)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise _error("must be a mapping")
    _refuse(given, _RESERVED)
    return {key: _value(key, value) for key, value in given.items()}


def _refuse(given: Mapping[Any, Any], reserved: Iterable[str]) -> None:
    if found := sorted(given.keys() & set(reserved)):
        names = ", ".join(map(repr, found))
        raise _error(
            f"can't set {names}, because the commit itself says that; choose another "
            "name, or userMetadata for a text"
        )


def _value(key: Any, value: Any) -> Any:
    if not isinstance(key, str):
        raise _error("keys must be strings")
    if key in _TEXTS and not isinstance(value, str):
        raise _error(f"value for {key!r} must be a string")
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise _error(f"value for {key!r} must be JSON: {error}") from error


def _error(problem: str) -> CommitPropertiesError:
    return CommitPropertiesError(f"CommitProperties.custom_metadata {problem}")
