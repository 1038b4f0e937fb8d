-- What Postgres says differently.

-- name: now_ms
-- The clock that leases go by: publishers are on machines of their own.
CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)

-- name: check_schema_version
-- Fails, as the root of a negative number, in a catalog of a newer schema version.
SELECT sqrt(:schema_version - max(version)) FROM dl_schema_versions

-- name: find_schema
-- Whether there is such a schema.
SELECT 1 FROM pg_namespace WHERE nspname = :schema

-- name: lock_catalog
-- Serialise the creation of tables.
SELECT pg_advisory_xact_lock(hashtextextended('dl_tables ' || {schema}, 0))

-- name: lock_table
-- One writer of a table at a time; woken once, where waiting for a row takes two locks.
SELECT pg_advisory_xact_lock(
    hashtextextended('dl_table ' || {schema} || ' ' || :name, 0)
)

-- name: load_files_at_paths
-- The files at given paths, of any table, that are live or were removed since a version.
SELECT
    f.file_id, f.path, f.dv_id, f.size_bytes, f.removed_version,
    f.base_row_id, f.default_row_commit_version
FROM unnest(CAST(translate(:hashes, '[]', '{}') AS BIGINT[])) h (path_hash)
CROSS JOIN LATERAL (SELECT * FROM dl_files WHERE path_hash = h.path_hash OFFSET 0) f
WHERE COALESCE(f.removed_version, :after + 1) > :after
    AND (f.removed_version IS NULL OR f.remove_data_change IS NOT NULL)

-- name: check_seen
-- Divides by zero unless the table is as it was seen, with no hold and no file at a path.
SELECT 1 / count(*)
FROM dl_tables
WHERE name = :name AND table_id = :table_id AND created_at_ms = :created_at_ms
    AND current_version = :version AND timestamp_ms = :timestamp_ms AND hold IS NULL
    AND NOT EXISTS (
        SELECT
        FROM unnest(CAST(translate(:hashes, '[]', '{}') AS BIGINT[])) h (path_hash)
        CROSS JOIN LATERAL (
            SELECT removed_version FROM dl_files WHERE path_hash = h.path_hash OFFSET 0
        ) f
        WHERE f.removed_version IS NULL
    )

-- name: remove_files
-- End the life of named files.
UPDATE dl_files
SET
    removed_version = :version,
    deletion_timestamp_ms = CAST(r.value ->> 1 AS BIGINT),
    remove_data_change = CAST(r.value ->> 2 AS BOOLEAN),
    remove_fields = r.value ->> 3
FROM json_array_elements(CAST(:removes AS JSON)) r (value)
WHERE file_id = CAST(r.value ->> 0 AS BIGINT)

-- name: remove_number_stats
-- Take the bounds of ended files out of the live index; a join might read all of it.
UPDATE dl_number_stats SET removed_version = :version
WHERE file_id = ANY (ARRAY(
    SELECT file_id FROM dl_files
    WHERE table_id = :table_id AND removed_version = :version
))

-- name: remove_text_stats
-- Take the bounds of ended files out of the live index; a join might read all of it.
UPDATE dl_text_stats SET removed_version = :version
WHERE file_id = ANY (ARRAY(
    SELECT file_id FROM dl_files
    WHERE table_id = :table_id AND removed_version = :version
))

-- name: end_files
-- End the life of files, each with a version of its own.
UPDATE dl_files
SET
    removed_version = CAST(r.value ->> 1 AS BIGINT),
    deletion_timestamp_ms = CAST(r.value ->> 2 AS BIGINT),
    remove_data_change = CAST(r.value ->> 3 AS BOOLEAN),
    remove_fields = r.value ->> 4
FROM json_array_elements(CAST(:removes AS JSON)) r (value)
WHERE file_id = CAST(r.value ->> 0 AS BIGINT)

-- name: find_catalog
-- Whether the schema holds a catalog.
SELECT 1 FROM pg_catalog.pg_tables
WHERE schemaname = :schema AND tablename = 'dl_schema_versions'

-- name: lock_migrations
-- Let one process at a time create or upgrade the catalog of a schema.
SELECT pg_advisory_xact_lock(hashtextextended('dl_schema ' || :schema, 0))

-- name: load_user
-- Who the database takes us for.
SELECT CAST(current_user AS TEXT)

-- name: load_column_types
-- The types that binary COPY must write.
SELECT column_name, data_type FROM information_schema.columns
WHERE table_schema = {schema} AND table_name = :table

-- name: plan_nulls
-- Files that may hold a null.
SELECT s.file_id FROM {table} s
WHERE s.column_id = {column} AND s.has_null AND {alive}

-- name: load_recovery
-- Whether the server is a replica, which replays another server's writes.
SELECT pg_is_in_recovery()

-- name: load_server_version
-- The version of the database's own software.
SELECT current_setting('server_version')

-- name: load_now_ms
-- What time the database's clock shows.
SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)
