"""SQL over a catalog's tables with DuckDB; data files appended and exported."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.query.append import *
    from delkalakedb.query.attachment import *
    from delkalakedb.query.diff import *
    from delkalakedb.query.duck import *
    from delkalakedb.query.export import *
    from delkalakedb.query.formats import *
    from delkalakedb.query.metatables import *
    from delkalakedb.query.relation import *
    from delkalakedb.query.selection import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "append": "Appended append_files",
            "attachment": "Attachment",
            "diff": "changed_rows compare_versions",
            "duck": "quoted",
            "export": "export_rows rows_of",
            "formats": "kind_of_file sample_schema",
            "metatables": "METATABLES",
            "relation": "Relation sql",
            "selection": "Selected select",
        },
    )
