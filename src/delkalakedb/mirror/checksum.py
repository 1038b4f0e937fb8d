"""`<version>.crc`: a version's totals, for readers to check theirs against."""

from typing import Any

import msgspec

from delkalakedb.catalog.head import Head
from delkalakedb.model.codec import encode_struct
from delkalakedb.model.protocol import active_features

__all__ = ["checksum_path", "version_checksum"]


def checksum_path(version: int) -> str:
    """Where the checksum of a version is."""
    return f"_delta_log/{version:020}.crc"


def version_checksum(head: Head, transaction_id: str | None) -> bytes:
    """The version checksum; the same values give the same bytes."""
    totals: dict[str, Any] = {} if transaction_id is None else {"txnId": transaction_id}
    totals |= {
        "tableSizeBytes": head.size_bytes,
        "numFiles": head.num_files,
        "numMetadata": 1,
        "numProtocol": 1,
    }
    if "inCommitTimestamp" in active_features(head.protocol, head.metadata):
        totals["inCommitTimestampOpt"] = head.timestamp_ms
    totals["metadata"] = msgspec.Raw(encode_struct(head.metadata))
    totals["protocol"] = msgspec.Raw(encode_struct(head.protocol))
    return msgspec.json.encode(totals)
