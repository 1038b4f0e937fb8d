-- Statements of all engines for restore and vacuum.

-- name: load_only_in
-- The files of one version that another hasn't; `+ 0` makes it use dl_files_path.
SELECT
    path, partition_values, size_bytes, modification_time_ms, data_change, stats,
    tags, deletion_vector, base_row_id, default_row_commit_version,
    clustering_provider, null_fields, extra
FROM dl_files f
WHERE table_id = :table_id AND added_version <= :version
    AND (removed_version IS NULL OR removed_version > :version)
    AND (added_version > :other OR removed_version <= :other)
    AND NOT EXISTS (
        SELECT 1 FROM dl_files l
        WHERE l.path_hash = f.path_hash AND l.table_id + 0 = f.table_id
            AND l.path = f.path AND l.dv_id = f.dv_id
            AND l.added_version <= :other
            AND (l.removed_version IS NULL OR l.removed_version > :other)
    )
ORDER BY file_id

-- name: load_expired
-- The files that were removed before a time and a version, and not added again.
SELECT DISTINCT path, size_bytes FROM dl_files d
WHERE table_id = :table_id AND removed_version <= :floor
    AND COALESCE(deletion_timestamp_ms, 0) <= :cutoff_ms
    AND NOT EXISTS (
        SELECT 1 FROM dl_files l
        WHERE l.path_hash = d.path_hash AND l.table_id + 0 = d.table_id
            AND l.path = d.path
            AND (
                l.removed_version IS NULL OR l.removed_version > :floor
                OR l.deletion_timestamp_ms > :cutoff_ms
            )
    )
ORDER BY path

-- name: load_vectors
-- The deletion vectors that are files, and whether they have expired.
SELECT
    deletion_vector,
    removed_version <= :floor AND COALESCE(deletion_timestamp_ms, 0) <= :cutoff_ms
FROM dl_files
WHERE table_id = :table_id AND substr(dv_id, 1, 1) IN ('p', 'u')
ORDER BY file_id

-- name: load_needed
-- The files that are live, or were removed after a time or a version.
SELECT path FROM dl_files
WHERE table_id = :table_id
    AND (
        removed_version IS NULL OR removed_version > :floor
        OR deletion_timestamp_ms > :cutoff_ms
    )
