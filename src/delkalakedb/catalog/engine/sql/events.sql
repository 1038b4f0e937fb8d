-- Statements of all engines for events and for reconcilers.

-- name: insert_event
-- Note what was done, and by whom; only a server knows the client's address.
INSERT INTO dl_events (
    occurred_at_ms, event, table_name, version, detail,
    db_user, os_user, host, client, client_address
) VALUES (
    :now_ms, :event, :table_name, :version, :detail,
    NULL, :os_user, :host, :client, NULL
)

-- name: load_events
-- The newest events, of one table or of all.
SELECT
    occurred_at_ms, event, table_name, version, detail,
    db_user, os_user, host, client, client_address
FROM dl_events
WHERE (CAST(:name AS TEXT) IS NULL OR table_name = :name)
    AND (CAST(:since_ms AS BIGINT) IS NULL OR occurred_at_ms >= :since_ms)
    AND (CAST(:until_ms AS BIGINT) IS NULL OR occurred_at_ms <= :until_ms)
    AND (CAST(:event AS TEXT) IS NULL OR lower(event) = lower(:event))
    AND (
        CAST(:actor AS TEXT) IS NULL
        OR :actor IN (db_user, os_user, host, client, client_address)
    )
ORDER BY occurred_at_ms DESC
LIMIT :max_rows

-- name: see_reconciler
-- Note that a reconciler runs.
INSERT INTO dl_reconcilers (
    reconciler_id, table_name, os_user, host, process_id, client,
    started_at_ms, seen_at_ms
) VALUES (
    :reconciler_id, :table_name, :os_user, :host, :process_id, :client,
    {now_ms}, {now_ms}
)
ON CONFLICT (reconciler_id) DO UPDATE SET seen_at_ms = excluded.seen_at_ms

-- name: forget_reconciler
-- Forget a reconciler that ends, and those that were killed long ago.
DELETE FROM dl_reconcilers
WHERE reconciler_id = :reconciler_id OR seen_at_ms < {now_ms} - :kept_ms

-- name: load_reconcilers
-- The reconcilers, with how long ago each was last seen.
SELECT
    table_name, os_user, host, process_id, client, started_at_ms, seen_at_ms,
    {now_ms} - seen_at_ms
FROM dl_reconcilers
ORDER BY seen_at_ms DESC
