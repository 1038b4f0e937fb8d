-- What DuckDB says differently.

-- name: load_files_at_paths
-- The files at given paths, of any table, that are live or were removed since a version.
SELECT
    f.file_id, f.path, f.dv_id, f.size_bytes, f.removed_version,
    f.base_row_id, f.default_row_commit_version
FROM dl_files f
WHERE f.path_hash IN (SELECT unnest(CAST(:hashes AS BIGINT[])))
    AND COALESCE(f.removed_version, :after + 1) > :after
    AND (f.removed_version IS NULL OR f.remove_data_change IS NOT NULL)

-- name: load_files_at_path
-- The same for one path: a fifth quicker, since nothing is joined.
SELECT
    f.file_id, f.path, f.dv_id, f.size_bytes, f.removed_version,
    f.base_row_id, f.default_row_commit_version
FROM dl_files f
WHERE f.path_hash = :hash
    AND COALESCE(f.removed_version, :after + 1) > :after
    AND (f.removed_version IS NULL OR f.remove_data_change IS NOT NULL)

-- name: remove_files
-- End the life of named files.
UPDATE dl_files
SET
    removed_version = :version,
    deletion_timestamp_ms = CAST(r.value ->> 1 AS BIGINT),
    remove_data_change = CAST(r.value ->> 2 AS BOOLEAN),
    remove_fields = r.value ->> 3
FROM (SELECT unnest(from_json(:removes, '["JSON"]')) AS value) r
WHERE file_id = CAST(r.value ->> 0 AS BIGINT)

-- name: end_files
-- End the life of files, each with a version of its own.
UPDATE dl_files
SET
    removed_version = CAST(r.value ->> 1 AS BIGINT),
    deletion_timestamp_ms = CAST(r.value ->> 2 AS BIGINT),
    remove_data_change = CAST(r.value ->> 3 AS BOOLEAN),
    remove_fields = r.value ->> 4
FROM (SELECT unnest(from_json(:removes, '["JSON"]')) AS value) r
WHERE file_id = CAST(r.value ->> 0 AS BIGINT)

-- name: find_catalog
-- Whether the database holds a catalog; where it doesn't, this fails.
SELECT 1 FROM catalog.main.dl_schema_versions LIMIT 1

-- name: plan_overlap
-- Files whose interval overlaps a range; zone maps skip what lies beyond it.
SELECT s.file_id FROM {table} s
WHERE s.column_id = {column} AND s.class >= 0 AND ({overlaps}) AND {alive}

-- name: plan_bounds
-- The bounds of a column at a version, in order.
SELECT s.file_id, s.lo, s.hi, s.class >= 0 AS bounded FROM {table} s
WHERE s.column_id = :column_id AND {alive}
ORDER BY s.lo

-- name: plan_nulls
-- Files that may hold a null.
SELECT s.file_id FROM {table} s
WHERE s.column_id = {column} AND s.has_null AND {alive}

-- name: plan_named
-- Files that were looked up before; {ids} is a few of them, or the next one.
SELECT {columns} FROM dl_files WHERE file_id IN ({ids})

-- name: plan_ids
-- Many ids.
SELECT unnest(CAST(:ids AS BIGINT[]))

-- name: plan_uncovered
-- Files from before a column was indexed.
SELECT s.file_id FROM dl_files s
WHERE s.table_id = :table_id AND s.added_version < {since}
    AND (s.removed_version IS NULL OR s.removed_version > :version)

-- name: plan_alive
-- One scan finds the files that are alive still and those removed since.
s.removed_version > :version AND s.added_version <= :version

-- name: load_server_version
-- The version of the database's own software.
SELECT version()

-- name: load_now_ms
-- What time the database's clock shows.
SELECT epoch_ms(now())
