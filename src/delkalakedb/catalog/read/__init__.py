"""Reads: heads, plans, file lists, and the log as SQL keeps it."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.catalog.read.action_rows import *
    from delkalakedb.catalog.read.commit_stream import *
    from delkalakedb.catalog.read.head import *
    from delkalakedb.catalog.read.planner import *
    from delkalakedb.catalog.read.retention import *
    from delkalakedb.catalog.read.sql_log import *
    from delkalakedb.catalog.read.stat_index import *
    from delkalakedb.catalog.read.version_files import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "action_rows": (
                "ADD_COLUMNS FILES_SCHEMA LoggedCommit add_from_row file_columns "
                "hash_path hash_utf8 live_rows load_commits remove_fields "
                "remove_from_row"
            ),
            "commit_stream": "CommitStream",
            "head": (
                "FILES_PER_TABLE FOLLOWING Head Identity StatColumn check_identity "
                "check_name check_place find_head find_kept load_head no_such_table "
                "parse_head"
            ),
            "planner": "plan",
            "retention": "Due Expired check_kept count_due expire_versions",
            "sql_log": ("SqlTxnLogReader commit_from_row load_files load_tombstones"),
            "stat_index": "COLUMNS_PER_TABLE STAT_TABLES leaves_of revise",
            "version_files": "Upkeep list_files load_only_in",
        },
    )
