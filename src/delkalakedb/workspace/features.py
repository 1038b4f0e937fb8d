"""What of a table's protocol delta-rs gets to see, and what it says then.

Features that it refuses, but that ask nothing of the files it writes, are kept from it:
what they demand of a commit is done when it is ratified.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any

import msgspec

from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import Action, Metadata, Protocol, known
from delkalakedb.model.fencing import FENCE_PROPERTY
from delkalakedb.model.protocol import (
    active_features,
    complete_upgrade,
    supported_features,
    supporting,
    with_needed,
)

__all__ = [
    "restored_protocol",
    "split_properties",
    "visible_protocol",
    "with_asked",
]

_AT_RATIFY = frozenset(
    {
        "catalogManaged",
        "clustering",
        "domainMetadata",
        "inCommitTimestamp",
        "rowTracking",
        "vacuumProtocolCheck",
    }
)
_HONOURED = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNanos",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)


# Properties that delta-rs doesn't take, and the features that they turn on.
_ASKED = {
    "delta.enableInCommitTimestamps": "inCommitTimestamp",
    "delta.enableRowTracking": "rowTracking",
}


def visible_protocol(protocol: Protocol, metadata: Metadata) -> Protocol:
    """The protocol without what delta-rs needn't know; refuses what it can't honour."""
    kept = _kept_from_it(protocol)
    if refused := sorted((kept - _AT_RATIFY) & active_features(protocol, metadata)):
        raise ProtocolError(
            f"delta-rs can't write to a table with {', '.join(refused)}; Spark can"
        )

    def others(listed: Any) -> Any:
        return listed and [name for name in listed if name not in kept]

    return msgspec.structs.replace(
        protocol,
        reader_features=others(protocol.reader_features),
        writer_features=others(protocol.writer_features),
    )


def restored_protocol(protocol: Protocol, before: Protocol) -> Protocol:
    """A protocol that delta-rs made, with what it wasn't shown of the one before."""
    kept = _kept_from_it(before)

    def joined(listed: Any, more: Any) -> Any:
        there = known(listed) or []
        missing = [n for n in known(more) or () if n in kept and n not in there]
        return [*there, *missing] if missing else listed

    restored = msgspec.structs.replace(
        protocol,
        reader_features=joined(protocol.reader_features, before.reader_features),
        writer_features=joined(protocol.writer_features, before.writer_features),
    )
    return _not_less(with_needed(complete_upgrade(before, restored)), before)


def _not_less(protocol: Protocol, before: Protocol) -> Protocol:
    """What is replaced by a simpler table keeps the features that it had."""
    if supported_features(before) <= supported_features(protocol):
        return protocol
    more = supported_features(protocol) - supported_features(before)
    return supporting(before, more) if more else before


def split_properties(
    properties: Mapping[str, Any] | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Table properties for delta-rs, and those that it doesn't know."""
    given = dict(properties or {})
    ours = {k: given.pop(k) for k in (FENCE_PROPERTY, *_ASKED) if k in given}
    return given, ours


def with_asked(
    actions: Sequence[Action], properties: Mapping[str, Any], before: Protocol | None
) -> list[Action]:
    """A commit that sets properties, with the features that these turn on."""
    asked = {_ASKED[k] for k, v in properties.items() if k in _ASKED and v == "true"}
    protocol = next((a for a in actions if isinstance(a, Protocol)), before)
    if protocol is None or asked <= supported_features(protocol):
        return list(actions)
    if before is not None and "rowTracking" in asked - supported_features(before):
        raise ProtocolError(
            "row tracking can be turned on only when a table is created: "
            "the files that are there have no row ids"
        )
    others = (action for action in actions if not isinstance(action, Protocol))
    return [supporting(protocol, asked), *others]


def _kept_from_it(protocol: Protocol) -> Set[str]:
    return set(known(protocol.writer_features) or ()) - _HONOURED
