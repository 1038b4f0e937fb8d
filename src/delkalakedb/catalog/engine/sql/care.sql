-- Statements of all engines for administration.

-- name: load_table_versions
-- The newest version of each table, without staged tables.
SELECT name, current_version, table_id, created_at_ms FROM dl_tables
WHERE current_version >= 0
ORDER BY name

-- name: find_broken_tables
-- The tables whose head row disagrees with their newest version, outbox row or files.
SELECT t.name
FROM dl_tables t
LEFT JOIN dl_table_versions v
    ON v.table_id = t.table_id AND v.version = t.current_version
LEFT JOIN dl_mirrors m ON m.table_id = t.table_id
LEFT JOIN (
    SELECT table_id, count(*) AS num_files, sum(size_bytes) AS size_bytes
    FROM dl_files WHERE removed_version IS NULL GROUP BY table_id
) f ON f.table_id = t.table_id
WHERE t.current_version >= 0 AND (
    v.version IS NULL OR m.table_id IS NULL
    OR m.published_version > t.current_version
    OR t.num_files <> COALESCE(f.num_files, 0)
    OR t.size_bytes <> COALESCE(f.size_bytes, 0)
)
ORDER BY t.name

-- name: free_leases
-- Release all leases, because their holders belong to the time of the backup.
UPDATE dl_mirrors
SET lease_owner = NULL, lease_until_ms = NULL, checkpoint_until_ms = NULL

-- name: load_audit
-- The commits of all tables, newest first, and the number of tables of each transaction.
SELECT
    t.name,
    (
        SELECT count(DISTINCT o.table_id) FROM dl_table_versions o
        WHERE o.transaction_id = v.transaction_id
    ),
    v.version, v.timestamp_ms, v.transaction_id, v.operation, v.operation_parameters,
    v.operation_metrics, v.user_metadata, v.engine_info, v.read_version,
    v.isolation_level, v.is_blind_append, v.db_user, v.os_user, v.host, v.client,
    v.num_added_files, v.num_removed_files, v.added_bytes, v.removed_bytes,
    v.commit_info
FROM dl_table_versions v
JOIN dl_tables t ON t.table_id = v.table_id
WHERE t.current_version >= 0
    AND (CAST(:name AS TEXT) IS NULL OR t.name = :name)
    AND (CAST(:transaction_id AS TEXT) IS NULL OR v.transaction_id = :transaction_id)
    AND (CAST(:since_ms AS BIGINT) IS NULL OR v.timestamp_ms >= :since_ms)
    AND (CAST(:until_ms AS BIGINT) IS NULL OR v.timestamp_ms <= :until_ms)
    AND (CAST(:operation AS TEXT) IS NULL OR v.operation = :operation)
    AND (
        CAST(:actor AS TEXT) IS NULL OR v.db_user = :actor OR v.os_user = :actor
        OR v.host = :actor OR v.client = :actor
    )
ORDER BY v.timestamp_ms DESC, t.name, v.version DESC
LIMIT :max_rows

-- name: load_sizes
-- The sizes of the tables, and their growth since a time.
SELECT
    t.name, t.current_version, t.current_version - t.first_version + 1,
    t.num_files, t.size_bytes,
    CAST(COALESCE(g.commits, 0) AS BIGINT),
    CAST(COALESCE(g.grown_bytes, 0) AS BIGINT)
FROM dl_tables t
LEFT JOIN (
    SELECT
        table_id, count(*) AS commits, sum(added_bytes - removed_bytes) AS grown_bytes
    FROM dl_table_versions WHERE timestamp_ms >= :since_ms GROUP BY table_id
) g ON g.table_id = t.table_id
WHERE t.current_version >= 0 AND (CAST(:name AS TEXT) IS NULL OR t.name = :name)
ORDER BY t.name

-- name: load_small_files
-- The live files below a size, and how many of them are in one partition with another.
SELECT
    t.name, CAST(sum(p.num_files) AS BIGINT), CAST(sum(p.size_bytes) AS BIGINT),
    CAST(sum(CASE WHEN p.num_files > 1 THEN p.num_files ELSE 0 END) AS BIGINT)
FROM (
    SELECT
        table_id, partition_values, count(*) AS num_files, sum(size_bytes) AS size_bytes
    FROM dl_files
    WHERE removed_version IS NULL AND size_bytes < :small_bytes
    GROUP BY table_id, partition_values
) p
JOIN dl_tables t ON t.table_id = p.table_id
WHERE CAST(:name AS TEXT) IS NULL OR t.name = :name
GROUP BY t.name

-- name: load_tombstone_sizes
-- The removed files that weren't added again; `+ 0` makes it use dl_files_path.
SELECT t.name, count(*), CAST(sum(r.size_bytes) AS BIGINT)
FROM (
    SELECT DISTINCT d.table_id, d.path, d.size_bytes FROM dl_files d
    WHERE d.removed_version IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM dl_files l
        WHERE l.path_hash = d.path_hash AND l.table_id + 0 = d.table_id
            AND l.path = d.path AND l.removed_version IS NULL
    )
) r
JOIN dl_tables t ON t.table_id = r.table_id
WHERE CAST(:name AS TEXT) IS NULL OR t.name = :name
GROUP BY t.name

-- name: load_vacuum_time
-- The time of a table's last vacuum.
SELECT max(timestamp_ms) FROM dl_table_versions
WHERE table_id = :table_id AND operation = 'VACUUM START'

-- name: count_tombstones
-- The files that were removed in a period and up to a version, and not added again.
SELECT count(DISTINCT d.path) FROM dl_files d
WHERE d.table_id = :table_id AND d.removed_version <= :floor
    AND COALESCE(d.deletion_timestamp_ms, 0) > :after_ms
    AND COALESCE(d.deletion_timestamp_ms, 0) <= :cutoff_ms
    AND NOT EXISTS (
        SELECT 1 FROM dl_files l
        WHERE l.path_hash = d.path_hash AND l.table_id + 0 = d.table_id
            AND l.path = d.path
            AND (l.removed_version IS NULL OR l.removed_version > :floor)
    )

-- name: load_growth
-- The size of a table after each of its commits since a time.
SELECT
    v.version, v.timestamp_ms, v.operation, v.num_added_files, v.num_removed_files,
    v.added_bytes, v.removed_bytes, v.num_files, v.size_bytes
FROM dl_table_versions v
JOIN dl_tables t ON t.table_id = v.table_id
WHERE t.name = :name AND v.timestamp_ms >= :since_ms
ORDER BY v.version

-- name: create_probe
-- Try whether the role may create tables; always rolled back.
CREATE TABLE dl_probe (x INTEGER)
