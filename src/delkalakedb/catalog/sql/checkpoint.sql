-- Statements shared by all engines: checkpoints.

-- name: load_unexpired
-- Removes after a time whose file hasn't come back; `+ 0` keeps to the index of paths.
SELECT
    path, partition_values, size_bytes, deletion_vector, base_row_id,
    default_row_commit_version, deletion_timestamp_ms, remove_data_change,
    remove_fields
FROM dl_files d
WHERE table_id = :table_id AND removed_version <= :version
    AND deletion_timestamp_ms > :since_ms AND remove_data_change IS NOT NULL
    AND NOT EXISTS (
        SELECT 1 FROM dl_files l
        WHERE l.path_hash = d.path_hash AND l.table_id + 0 = d.table_id
            AND l.path = d.path AND l.dv_id = d.dv_id
            AND l.file_id <> d.file_id
            AND COALESCE(l.added_version, l.removed_version) > d.removed_version
            AND COALESCE(l.added_version, l.removed_version) <= :version
    )
