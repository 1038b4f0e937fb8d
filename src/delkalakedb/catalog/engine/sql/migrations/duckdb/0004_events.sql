-- What was done to the catalog and its tables besides commits, and commits that were
-- refused: the rest of the audit trail.
CREATE TABLE dl_events (
    occurred_at_ms BIGINT NOT NULL,
    event TEXT NOT NULL,
    table_name TEXT,
    version BIGINT,
    detail TEXT,
    db_user TEXT,
    os_user TEXT,
    host TEXT,
    client TEXT,
    client_address TEXT
);

-- The reconcilers that run, each with the time when it was last seen.
CREATE TABLE dl_reconcilers (
    reconciler_id TEXT PRIMARY KEY,
    table_name TEXT,
    os_user TEXT,
    host TEXT,
    process_id BIGINT NOT NULL,
    client TEXT,
    started_at_ms BIGINT NOT NULL,
    seen_at_ms BIGINT NOT NULL
);
