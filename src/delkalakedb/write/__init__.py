"""The write path: run an operation on an engine, commit its actions, publish them."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.write.committer import *
    from delkalakedb.write.files import *
    from delkalakedb.write.operation import *
    from delkalakedb.write.properties import *
    from delkalakedb.write.restore import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "committer": (
                "Together commit create_table is_certain make_table "
                "new_location perform"
            ),
            "files": ("Spool find_leftovers folder_of private_folder table_files"),
            "operation": "Engine Operation Staging Target suggesting",
            "properties": "set_properties unset_properties",
            "restore": "check_present restored",
        },
    )
