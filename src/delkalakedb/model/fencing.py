"""Fenced tables: those that nobody can commit to but through their catalog.

The feature `catalogManaged` makes any client that doesn't ask the catalog refuse the
table. It needs in-commit timestamps, since a published file's own time says little, and
by Delta's documentation `vacuumProtocolCheck`, so that no old vacuum looks away.
"""

from collections.abc import Iterable

import msgspec

from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import Metadata, Protocol, known
from delkalakedb.model.protocol import (
    FENCE_FEATURES,
    supported_features,
    supporting,
)

__all__ = ["FENCE_PROPERTY", "asks_for_fence", "fenced", "is_fenced", "unfenced"]

FENCE_PROPERTY = "delta.feature.catalogManaged"
"""The property that asks for the fence, as Delta asks for features; it isn't kept."""

_TIMESTAMPS = "delta.enableInCommitTimestamps"
_ENABLEMENT = "delta.inCommitTimestampEnablement"


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
        supporting(protocol, FENCE_FEATURES),
        msgspec.structs.replace(metadata, configuration=configuration),
    )


def unfenced(protocol: Protocol, metadata: Metadata) -> tuple[Protocol, Metadata]:
    """The protocol and metadata of the same table without what the fence needs."""
    configuration = {
        name: value
        for name, value in (known(metadata.configuration) or {}).items()
        if name != _TIMESTAMPS and not name.startswith(_ENABLEMENT)
    }
    return (
        msgspec.structs.replace(
            protocol,
            reader_features=_without_fence(known(protocol.reader_features)),
            writer_features=_without_fence(known(protocol.writer_features)),
        ),
        msgspec.structs.replace(metadata, configuration=configuration),
    )


def _without_fence(features: Iterable[str] | None) -> list[str]:
    return [name for name in features or () if name not in FENCE_FEATURES]
