"""What is said of a URI whose scheme neither deltalake nor the catalog knows."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import TableNotFoundError

from delkalakedb.errors import UriError

__all__ = ["naming_schemes"]

_UNKNOWN = re.compile(r"Unknown scheme: (.*?)\. Known schemes: (.*)")
# Other names of stores that have a name of their own.
_ALIAS = "opendal+"
_EXAMPLE = "deltasql://sqlite/file.db?table=name"


@contextmanager
def naming_schemes() -> Iterator[None]:
    """Turn deltalake's error about an unknown scheme into one that names `deltasql`.

    deltalake raises `TableNotFoundError`, which its own writer takes for "create it".
    """
    try:
        yield
    except TableNotFoundError as error:
        found = _UNKNOWN.match(str(error))
        if found is None:
            raise
        theirs = (name for name in found[2].split(",") if not name.startswith(_ALIAS))
        raise UriError(
            f"unsupported scheme {found[1]!r} or no '://' after it; give a path or a "
            f"URI such as {_EXAMPLE} with one of the schemes "
            f"{', '.join(sorted({'deltasql', *theirs}))}"
        ) from error
