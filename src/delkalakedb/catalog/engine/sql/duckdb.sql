-- Statements that are different in DuckDB.

-- name: load_files_at_paths
-- The files of all tables with given path hashes, live or removed after a version.
SELECT
    f.file_id, f.path, f.dv_id, f.size_bytes, f.removed_version,
    f.base_row_id, f.default_row_commit_version
FROM dl_files f
WHERE f.path_hash IN (SELECT unnest(CAST(:hashes AS BIGINT[])))
    AND COALESCE(f.removed_version, :after + 1) > :after
    AND (f.removed_version IS NULL OR f.remove_data_change IS NOT NULL)

-- name: load_files_at_path
-- The files with one path hash, a fifth faster than load_files_at_paths without its join.
SELECT
    f.file_id, f.path, f.dv_id, f.size_bytes, f.removed_version,
    f.base_row_id, f.default_row_commit_version
FROM dl_files f
WHERE f.path_hash = :hash
    AND COALESCE(f.removed_version, :after + 1) > :after
    AND (f.removed_version IS NULL OR f.remove_data_change IS NOT NULL)

-- name: remove_files
-- Mark files as removed.
UPDATE dl_files
SET
    removed_version = :version,
    deletion_timestamp_ms = CAST(r.value ->> 1 AS BIGINT),
    remove_data_change = CAST(r.value ->> 2 AS BOOLEAN),
    remove_fields = r.value ->> 3
FROM (SELECT unnest(from_json(:removes, '["JSON"]')) AS value) r
WHERE file_id = CAST(r.value ->> 0 AS BIGINT)

-- name: end_files
-- Mark files as removed, each by its own version.
UPDATE dl_files
SET
    removed_version = CAST(r.value ->> 1 AS BIGINT),
    deletion_timestamp_ms = CAST(r.value ->> 2 AS BIGINT),
    remove_data_change = CAST(r.value ->> 3 AS BOOLEAN),
    remove_fields = r.value ->> 4
FROM (SELECT unnest(from_json(:removes, '["JSON"]')) AS value) r
WHERE file_id = CAST(r.value ->> 0 AS BIGINT)

-- name: find_catalog
-- Fail if the database has no catalog.
SELECT 1 FROM catalog.main.dl_schema_versions LIMIT 1

-- name: plan_overlap
-- Files whose bounds overlap a range; zone maps skip the other row groups.
SELECT s.file_id FROM {table} s
WHERE s.column_id = {column} AND s.class >= 0 AND ({overlaps}) AND {alive}

-- name: plan_nulls
-- Files that may hold a null in a column.
SELECT s.file_id FROM {table} s
WHERE s.column_id = {column} AND s.has_null AND {alive}

-- name: plan_named
-- Files by id; {ids} is a list of a few ids, or plan_ids.
SELECT {columns} FROM dl_files WHERE file_id IN ({ids})

-- name: plan_ids
-- Many ids, given as one parameter.
SELECT unnest(CAST(:ids AS BIGINT[]))

-- name: plan_uncovered
-- Files that were added before a column was indexed.
SELECT s.file_id FROM dl_files s
WHERE s.table_id = :table_id AND s.added_version < {since}
    AND (s.removed_version IS NULL OR s.removed_version > :version)

-- name: plan_alive
-- The condition of files at a version; one scan finds live and removed files.
s.removed_version > :version AND s.added_version <= :version

-- name: load_server_version
-- The version of the database engine.
SELECT version()

-- name: load_now_ms
-- The time in ms by the database's clock.
SELECT epoch_ms(now())
