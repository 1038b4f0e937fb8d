-- Statements of all engines for the retention of versions.

-- name: load_retention
-- The limits of the floor; for a caller that holds the table's lock.
SELECT
    t.table_id, t.first_version, t.metadata, m.published_version, m.checkpoint_version
FROM dl_tables t
JOIN dl_mirrors m ON m.table_id = t.table_id
WHERE t.name = :name

-- name: load_first_version
-- The oldest version of a table that is kept.
SELECT first_version FROM dl_tables WHERE table_id = :table_id

-- name: move_floor
-- Set the oldest version that is kept.
UPDATE dl_tables SET first_version = :floor WHERE table_id = :table_id

-- name: delete_versions
-- Delete the commits below the floor.
DELETE FROM dl_table_versions WHERE table_id = :table_id AND version < :floor

-- name: delete_cdc_files
-- Delete the change data files of commits below the floor.
DELETE FROM dl_cdc_files WHERE table_id = :table_id AND version < :floor

-- name: delete_metadata
-- Delete metadata that the floor's metadata replaced.
DELETE FROM dl_metadata
WHERE table_id = :table_id AND version < (
    SELECT max(m.version) FROM dl_metadata m
    WHERE m.table_id = :table_id AND m.version <= :floor
)

-- name: delete_protocols
-- Delete protocols that the floor's protocol replaced.
DELETE FROM dl_protocols
WHERE table_id = :table_id AND version < (
    SELECT max(p.version) FROM dl_protocols p
    WHERE p.table_id = :table_id AND p.version <= :floor
)

-- name: delete_txns
-- Delete application transactions that a later one up to the floor replaced.
DELETE FROM dl_txns
WHERE table_id = :table_id AND version < (
    SELECT max(x.version) FROM dl_txns x
    WHERE x.table_id = dl_txns.table_id AND x.app_id = dl_txns.app_id
        AND x.version <= :floor
)

-- name: delete_domains
-- Delete domain changes that a later one up to the floor replaced.
DELETE FROM dl_domains
WHERE table_id = :table_id AND version < (
    SELECT max(x.version) FROM dl_domains x
    WHERE x.table_id = dl_domains.table_id AND x.domain = dl_domains.domain
        AND x.version <= :floor
)

-- name: delete_number_stats
-- Delete the bounds of files that are in no kept version.
DELETE FROM dl_number_stats
WHERE file_id IN (
    SELECT file_id FROM dl_files
    WHERE table_id = :table_id AND removed_version <= :floor
)

-- name: delete_text_stats
-- Delete the bounds of files that are in no kept version.
DELETE FROM dl_text_stats
WHERE file_id IN (
    SELECT file_id FROM dl_files
    WHERE table_id = :table_id AND removed_version <= :floor
)

-- name: delete_files
-- Delete files of no kept commit, except tombstones neither expired nor replaced.
DELETE FROM dl_files
WHERE table_id = :table_id AND removed_version < :floor
    AND (
        remove_data_change IS NULL
        OR COALESCE(deletion_timestamp_ms, 0) <= :tombstones_ms
        OR EXISTS (
            SELECT 1 FROM dl_files l
            WHERE l.path_hash = dl_files.path_hash
                AND l.table_id + 0 = dl_files.table_id
                AND l.path = dl_files.path AND l.dv_id = dl_files.dv_id
                AND COALESCE(l.added_version, l.removed_version)
                    > dl_files.removed_version
                AND COALESCE(l.added_version, l.removed_version) <= :floor
        )
    )

-- name: count_dead
-- The number of files that are in no kept version, and of their bounds.
SELECT
    (
        SELECT count(*) FROM dl_files
        WHERE table_id = :table_id AND removed_version <= :floor
    ),
    (
        SELECT count(*) FROM dl_number_stats
        WHERE file_id IN (
            SELECT file_id FROM dl_files
            WHERE table_id = :table_id AND removed_version <= :floor
        )
    ) + (
        SELECT count(*) FROM dl_text_stats
        WHERE file_id IN (
            SELECT file_id FROM dl_files
            WHERE table_id = :table_id AND removed_version <= :floor
        )
    )
