"""Engines: each stages the files and actions of one operation."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.write.engines.arrow import *
    from delkalakedb.write.engines.in_place import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "arrow": "ArrowAppend split_small",
            "in_place": "InPlace Work",
        },
    )
