"""Ids of parametrised tests, short enough to be read and typed."""

import hashlib
from collections.abc import Sequence

import pytest

_LONGEST_VALUE = 48
_LONGEST_ID = 120
_KEPT = 32


def shorten(value: object) -> str | None:
    """Return the id of a long text: its beginning and a hash; None for all else."""
    if isinstance(value, bytes):
        value = value.decode("latin1")
    if not isinstance(value, str):
        return None
    text = value.encode("unicode_escape").decode()
    if len(text) <= _LONGEST_VALUE:
        return None
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[:_KEPT]}~{digest[:6]}"


def check_lengths(items: Sequence[pytest.Item]) -> None:
    """Refuse tests whose parameters make ids that nobody can read."""
    for item in items:
        _, _, parameters = item.name.partition("[")
        if len(parameters) > _LONGEST_ID:
            raise pytest.UsageError(
                f"{item.nodeid[:200]}: its parameters have {len(parameters)} "
                f"characters, {_LONGEST_ID} may be; give them ids"
            )
