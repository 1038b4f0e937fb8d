"""Fenced tables: those that nobody can commit to but through their catalog.

The feature `catalogManaged` makes any client that doesn't ask the catalog refuse the
table. It needs in-commit timestamps, since a published file's own time says little, and
by Delta's documentation `vacuumProtocolCheck`, so that no old vacuum looks away.
"""

import msgspec

from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import Metadata, Protocol, known
from delkalakedb.model.protocol import supported_features, supporting

__all__ = ["FENCE_PROPERTY", "asks_for_fence", "fenced", "is_fenced"]

FENCE_PROPERTY = "delta.feature.catalogManaged"
"""The property that asks for the fence, as Delta asks for features; it isn't kept."""

_FEATURES = frozenset({"catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck"})
_TIMESTAMPS = "delta.enableInCommitTimestamps"


def is_fenced(protocol: Protocol) -> bool:
    """Whether the table is fenced."""
    return "catalogManaged" in supported_features(protocol)


def asks_for_fence(metadata: Metadata) -> bool:
    """Whether the properties ask for the fence."""
    asked = (known(metadata.configuration) or {}).get(FENCE_PROPERTY)
    if asked not in (None, "supported", "enabled"):
        raise ProtocolError(f"{FENCE_PROPERTY} can be 'supported', not {asked!r}")
    return asked is not None


def fenced(protocol: Protocol, metadata: Metadata) -> tuple[Protocol, Metadata]:
    """The protocol and metadata of the same table, fenced."""
    configuration = {**(known(metadata.configuration) or {}), _TIMESTAMPS: "true"}
    configuration.pop(FENCE_PROPERTY, None)
    return (
        supporting(protocol, _FEATURES),
        msgspec.structs.replace(metadata, configuration=configuration),
    )
