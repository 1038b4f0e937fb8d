"""Which versions of deltalake the face is made for.

It stands in for classes and functions that deltalake keeps to itself, and these change
between minor versions: on another one, refusing is better than half working.
"""

import deltalake

from delkalakedb.errors import DeltaError

__all__ = ["SUPPORTED", "check_deltalake"]

SUPPORTED = ("1.6",)


def check_deltalake() -> None:
    """Refuse a deltalake that isn't one of the supported versions."""
    version = deltalake.__version__
    if ".".join(version.split(".")[:2]) not in SUPPORTED:
        known = " or ".join(f"{minor}.x" for minor in SUPPORTED)
        raise DeltaError(
            f"deltalake {version} isn't supported; install deltalake {known}"
        )


# Before the face is imported: on another version even that may fail, unexplained.
check_deltalake()
