"""Commits: the SQL transaction that makes versions, and the outbox of publishing."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.catalog.commit.commit_rows import *
    from delkalakedb.catalog.commit.outbox import *
    from delkalakedb.catalog.commit.outcome import *
    from delkalakedb.catalog.commit.ratify import *
    from delkalakedb.catalog.commit.reconcilers import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "commit_rows": (
                "ByKind INFO_COLUMNS LiveFile NewFiles advanced commit_writes "
                "empty_head index_rows info_values state_writes"
            ),
            "outbox": (
                "Heartbeat Lease Mirror MirrorState Outbox PATIENCE_S end find_mirror "
                "releasing_lost"
            ),
            "outcome": "Committed Conflicted Skipped Unread",
            "ratify": "LostError SqlTxnLogWriter Transaction lock_queries",
            "reconcilers": "Presence Seen load_reconcilers",
        },
    )
