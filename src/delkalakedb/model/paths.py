"""Where a new file goes, by its partition values, and what the log says of that."""

import hashlib
from urllib.parse import quote

__all__ = ["Values", "file_path", "log_path"]

Values = dict[str, str | None]
"""Partition values by physical names, as the log has them."""

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_MAX_NAME_BYTES = 255


def file_path(name: str, values: Values) -> str:
    """A file's path below the table's location."""
    return "/".join((*(_folder(*item) for item in values.items()), name))


def log_path(path: str) -> str:
    """A file's path below the location, as the log has it: encoded as a URL's."""
    # What deltalake, too, leaves as it is.
    return quote(path, safe="/!$&'()*+,;=:@~")


def _folder(name: str, value: str | None) -> str:
    text = _NULL_FOLDER if value is None else quote(value, safe="")
    folder = f"{quote(name, safe='')}={text}"
    if len(folder) <= _MAX_NAME_BYTES:
        return folder
    return hashlib.sha256(folder.encode()).hexdigest()
