"""JSON in the canonical form that Delta's checksum of `_last_checkpoint` is over."""

import json
from collections.abc import Iterator, Mapping
from hashlib import md5
from typing import Any
from urllib.parse import quote

__all__ = ["canonical_form", "checksum"]


def canonical_form(document: Mapping[str, Any]) -> str:
    """Each leaf as `path=value`, in order of path; `checksum` itself is left out."""
    kept = {name: value for name, value in document.items() if name != "checksum"}
    # Paths are ASCII by now: their order is that of their bytes.
    return ",".join(f"{path}={leaf}" for path, leaf in sorted(_leaves(kept)))


def checksum(document: Mapping[str, Any]) -> str:
    """The MD5 of the canonical form, in hexadecimal."""
    form = canonical_form(document).encode()
    return md5(form, usedforsecurity=False).hexdigest()


def _leaves(value: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict | list):
        yield "", _scalar(value)
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, child in items:
        for path, leaf in _leaves(child):
            yield f"{_scalar(name)}+{path}" if path else _scalar(name), leaf


def _scalar(value: Any) -> str:
    # `quote` leaves alone exactly what the protocol calls not reserved.
    return f'"{quote(value, safe="")}"' if isinstance(value, str) else json.dumps(value)
