-- Statements that are different in Postgres.

-- name: now_ms
-- The time of leases, by the server's clock because publishers are on several machines.
CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)

-- name: check_schema_version
-- Fail in a catalog of a newer schema version, by the root of a negative number.
SELECT sqrt(:schema_version - max(version)) FROM dl_schema_versions

-- name: find_schema
-- One row if the schema exists.
SELECT 1 FROM pg_namespace WHERE nspname = :schema

-- name: lock_catalog
-- Lock the creation of tables.
SELECT pg_advisory_xact_lock(hashtextextended('dl_tables ' || {schema}, 0))

-- name: lock_table
-- Lock a table; a waiter wakes once, but would take two locks to wait for a row.
SELECT pg_advisory_xact_lock(
    hashtextextended('dl_table ' || {schema} || ' ' || :name, 0)
)

-- name: load_files_at_paths
-- The files of all tables with given path hashes, live or removed after a version.
SELECT
    f.file_id, f.path, f.dv_id, f.size_bytes, f.removed_version,
    f.base_row_id, f.default_row_commit_version
FROM unnest(CAST(translate(:hashes, '[]', '{}') AS BIGINT[])) h (path_hash)
CROSS JOIN LATERAL (SELECT * FROM dl_files WHERE path_hash = h.path_hash OFFSET 0) f
WHERE COALESCE(f.removed_version, :after + 1) > :after
    AND (f.removed_version IS NULL OR f.remove_data_change IS NOT NULL)

-- name: begin_following
-- Have commits to a table notify this session; the key is also in the channel's name.
SELECT key, pg_advisory_lock_shared(key)
FROM (SELECT hashtextextended('dl_commits ' || {schema} || ' ' || :table_id, 0) AS key) k

-- name: end_following
-- Undo `begin_following`.
SELECT pg_advisory_unlock_shared(:key)

-- name: move_head
-- Make a version the newest; notify if a follower has the lock, as it slows COMMIT down.
UPDATE dl_tables
SET
    current_version = :version, next_file = :next_file, timestamp_ms = :timestamp_ms,
    num_files = :num_files, size_bytes = :size_bytes
WHERE table_id = :table_id AND current_version = :version - 1
RETURNING (
    SELECT count(pg_notify('dl_' || key, CAST(current_version AS TEXT)))
    FROM (
        SELECT hashtextextended('dl_commits ' || {schema} || ' ' || table_id, 0) AS key
    ) k
    WHERE NOT pg_try_advisory_xact_lock(key)
)

-- name: remove_files
-- Mark files as removed.
UPDATE dl_files
SET
    removed_version = :version,
    deletion_timestamp_ms = CAST(r.value ->> 1 AS BIGINT),
    remove_data_change = CAST(r.value ->> 2 AS BOOLEAN),
    remove_fields = r.value ->> 3
FROM json_array_elements(CAST(:removes AS JSON)) r (value)
WHERE file_id = CAST(r.value ->> 0 AS BIGINT)

-- name: remove_number_stats
-- Mark the bounds of removed files; a join might read the whole table.
UPDATE dl_number_stats SET removed_version = :version
WHERE file_id = ANY (ARRAY(
    SELECT file_id FROM dl_files
    WHERE table_id = :table_id AND removed_version = :version
))

-- name: remove_text_stats
-- Mark the bounds of removed files; a join might read the whole table.
UPDATE dl_text_stats SET removed_version = :version
WHERE file_id = ANY (ARRAY(
    SELECT file_id FROM dl_files
    WHERE table_id = :table_id AND removed_version = :version
))

-- name: end_files
-- Mark files as removed, each by its own version.
UPDATE dl_files
SET
    removed_version = CAST(r.value ->> 1 AS BIGINT),
    deletion_timestamp_ms = CAST(r.value ->> 2 AS BIGINT),
    remove_data_change = CAST(r.value ->> 3 AS BOOLEAN),
    remove_fields = r.value ->> 4
FROM json_array_elements(CAST(:removes AS JSON)) r (value)
WHERE file_id = CAST(r.value ->> 0 AS BIGINT)

-- name: find_catalog
-- One row if the schema has a catalog.
SELECT 1 FROM pg_catalog.pg_tables
WHERE schemaname = :schema AND tablename = 'dl_schema_versions'

-- name: lock_migrations
-- Lock the creation and the upgrade of the catalog of a schema.
SELECT pg_advisory_xact_lock(hashtextextended('dl_schema ' || :schema, 0))

-- name: wait_for_migration
-- Wait for the end of an upgrade, and make later ones wait for this transaction.
SELECT pg_advisory_xact_lock_shared(hashtextextended('dl_schema ' || {schema}, 0))

-- name: load_user
-- The name of the role that is connected.
SELECT CAST(current_user AS TEXT)

-- name: load_column_types
-- The types of a table's columns, which binary COPY needs.
SELECT column_name, data_type FROM information_schema.columns
WHERE table_schema = {schema} AND table_name = :table

-- name: plan_nulls
-- Files that may hold a null in a column.
SELECT s.file_id FROM {table} s
WHERE s.column_id = {column} AND s.has_null AND {alive}

-- name: load_recovery
-- Whether the server is a replica of another server.
SELECT pg_is_in_recovery()

-- name: load_server_version
-- The version of the database engine.
SELECT current_setting('server_version')

-- name: load_now_ms
-- The time in ms by the database's clock.
SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)

-- name: insert_event
-- Note what was done, and by whom, with the address of a client that isn't local.
INSERT INTO dl_events (
    occurred_at_ms, event, table_name, version, detail,
    db_user, os_user, host, client, client_address
) VALUES (
    :now_ms, :event, :table_name, :version, :detail,
    session_user, :os_user, :host, :client, host(inet_client_addr())
)
