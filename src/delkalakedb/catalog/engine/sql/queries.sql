-- Statements of all engines that read and ratify.
-- A parameter is written `:name`, and translated to the style of the engine's driver.

-- name: load_schema_version
-- The version of the newest migration that was applied.
SELECT max(version) FROM dl_schema_versions

-- name: find_near_tables
-- Tables whose names are about as long as a name that no table has, likely ones first.
SELECT name FROM dl_tables
WHERE current_version >= 0
    AND length(name) BETWEEN CAST(:shortest AS BIGINT) AND CAST(:longest AS BIGINT)
ORDER BY
    CASE WHEN lower(substr(name, 1, 1)) = CAST(:first AS VARCHAR) THEN 0 ELSE 1 END,
    name
LIMIT 1000

-- name: load_head
-- All that opening a table needs, at the latest version or a given one.
SELECT
    t.table_id, t.name, t.location, t.created_at_ms,
    t.current_version, t.first_version, t.next_file,
    v.version, v.timestamp_ms, v.num_files, v.size_bytes,
    v.metadata_version, v.protocol_version, t.stat_columns,
    t.metadata_version, t.metadata, t.protocol_version, t.protocol, t.hold
FROM dl_tables t
LEFT JOIN dl_table_versions v
    ON v.table_id = t.table_id
    AND v.version = COALESCE(CAST(:version AS BIGINT), t.current_version)
WHERE t.name = :name

-- name: load_latest
-- The columns of load_head at the latest version; for a caller that holds the table's lock.
SELECT
    table_id, name, location, created_at_ms, current_version, first_version, next_file,
    current_version, timestamp_ms, num_files, size_bytes,
    metadata_version, protocol_version, stat_columns,
    metadata_version, metadata, protocol_version, protocol, hold
FROM dl_tables
WHERE name = :name

-- name: load_heads
-- The columns of load_head for every table at its latest version, by name.
SELECT
    t.table_id, t.name, t.location, t.created_at_ms,
    t.current_version, t.first_version, t.next_file,
    v.version, v.timestamp_ms, v.num_files, v.size_bytes,
    v.metadata_version, v.protocol_version, t.stat_columns,
    t.metadata_version, t.metadata, t.protocol_version, t.protocol, t.hold
FROM dl_tables t
JOIN dl_table_versions v
    ON v.table_id = t.table_id AND v.version = t.current_version
ORDER BY t.name

-- name: count_tables
-- The number of tables, without staged ones.
SELECT count(*) FROM dl_tables WHERE current_version >= 0

-- name: load_overview
-- The first tables by name, with their sizes and what is published of them.
SELECT
    t.name, t.current_version, t.timestamp_ms, t.num_files, t.size_bytes, t.hold,
    m.state, m.published_version
FROM dl_tables t
JOIN dl_mirrors m ON m.table_id = t.table_id
WHERE t.current_version >= 0
ORDER BY t.name
LIMIT :most

-- name: find_location
-- The name of the table at a location.
SELECT name FROM dl_tables WHERE location = :location

-- name: take_table_id
-- A number that no table had; older clients don't count in dl_table_ids.
UPDATE dl_table_ids
SET last_table_id = 1 + CASE
    WHEN last_table_id < (SELECT max(table_id) FROM dl_tables)
        THEN (SELECT max(table_id) FROM dl_tables)
    ELSE last_table_id
END
RETURNING last_table_id

-- name: load_version_at
-- The newest version in a range whose timestamp isn't after a time.
SELECT version FROM dl_table_versions
WHERE table_id = :table_id AND timestamp_ms <= :timestamp_ms
    AND version >= :first AND version < :end
ORDER BY timestamp_ms DESC, version DESC
LIMIT 1

-- name: load_transaction
-- The versions that a transaction made, asked for after a connection was lost in COMMIT.
SELECT
    t.name, v.version, v.timestamp_ms, v.transaction_id, v.operation,
    v.num_added_files, v.num_removed_files, v.added_bytes, v.removed_bytes, v.table_id
FROM dl_table_versions v
JOIN dl_tables t ON t.table_id = v.table_id
WHERE v.transaction_id = :transaction_id
ORDER BY t.table_id, v.version

-- name: load_winners
-- The commits after the version that was read, with what every conflict rule needs.
SELECT
    v.version, v.operation, v.is_blind_append, m.action, p.action
FROM dl_table_versions v
LEFT JOIN dl_metadata m ON m.table_id = v.table_id AND m.version = v.version
LEFT JOIN dl_protocols p ON p.table_id = v.table_id AND p.version = v.version
WHERE v.table_id = :table_id AND v.version > :after
ORDER BY v.version

-- name: load_txns_since
-- The application transactions of the commits after a version.
SELECT version, action FROM dl_txns
WHERE table_id = :table_id AND version > :after AND version <= :upto
ORDER BY version, app_id

-- name: load_domains_since
-- The domain changes of the commits after a version.
SELECT version, action FROM dl_domains
WHERE table_id = :table_id AND version > :after AND version <= :upto
ORDER BY version, domain

-- name: load_txns
-- The newest transaction of each application at a version.
SELECT x.action FROM dl_txns x
WHERE x.table_id = :table_id AND x.version = (
    SELECT max(y.version) FROM dl_txns y
    WHERE y.table_id = x.table_id AND y.app_id = x.app_id AND y.version <= :version
)
ORDER BY x.app_id

-- name: load_txn
-- The newest transaction of one application at a version.
SELECT action FROM dl_txns
WHERE table_id = :table_id AND app_id = :app_id AND version <= :version
ORDER BY version DESC
LIMIT 1

-- name: load_applied
-- The version in which an application reached a transaction, if it did.
SELECT version FROM dl_txns
WHERE table_id = :table_id AND app_id = :app_id AND version > COALESCE(
    (
        SELECT max(version) FROM dl_txns
        WHERE table_id = :table_id AND app_id = :app_id AND txn_version < :txn
    ),
    -1
)
ORDER BY version
LIMIT 1

-- name: load_domains
-- The newest action of each domain at a version, tombstones included.
SELECT x.action FROM dl_domains x
WHERE x.table_id = :table_id AND x.version = (
    SELECT max(y.version) FROM dl_domains y
    WHERE y.table_id = x.table_id AND y.domain = x.domain AND y.version <= :version
)
ORDER BY x.domain

-- name: load_domain
-- The newest action of one domain at a version.
SELECT action FROM dl_domains
WHERE table_id = :table_id AND domain = :domain AND version <= :version
ORDER BY version DESC
LIMIT 1

-- name: load_files_at_paths
-- The files of all tables with given path hashes, live or removed after a version.
SELECT
    f.file_id, f.path, f.dv_id, f.size_bytes, f.removed_version,
    f.base_row_id, f.default_row_commit_version
FROM dl_files f
WHERE f.path_hash IN (SELECT value FROM json_each(:hashes))
    AND COALESCE(f.removed_version, :after + 1) > :after
    AND (f.removed_version IS NULL OR f.remove_data_change IS NOT NULL)

-- name: insert_table
-- Insert the head row of a table that has no version yet.
INSERT INTO dl_tables (
    table_id, name, location, created_at_ms, current_version, first_version, next_file,
    timestamp_ms, num_files, size_bytes,
    stat_columns, metadata_version, metadata, protocol_version, protocol
) VALUES (
    :table_id, :name, :location, :created_at_ms, -1, 0, 0,
    -1, 0, 0, '[]', 0, '', 0, ''
)

-- name: insert_mirror
-- Insert the outbox row of a table of which nothing is published.
INSERT INTO dl_mirrors (
    table_id, published_version, state, attempts, fence, checkpoint_version
) VALUES (:table_id, -1, 'pending', 0, 0, -1)

-- name: move_head
-- Make a version the newest, if the version before it still is.
UPDATE dl_tables
SET
    current_version = :version, next_file = :next_file, timestamp_ms = :timestamp_ms,
    num_files = :num_files, size_bytes = :size_bytes
WHERE table_id = :table_id AND current_version = :version - 1

-- name: set_state
-- Set the parts of the head row that few commits change.
UPDATE dl_tables
SET
    stat_columns = :stat_columns,
    metadata_version = :metadata_version, metadata = :metadata,
    protocol_version = :protocol_version, protocol = :protocol
WHERE table_id = :table_id

-- name: remove_files
-- Mark files as removed.
UPDATE dl_files
SET
    removed_version = :version,
    deletion_timestamp_ms = r.value ->> 1,
    remove_data_change = r.value ->> 2,
    remove_fields = r.value ->> 3
FROM json_each(:removes) r
WHERE file_id = r.value ->> 0

-- name: remove_all_files
-- Mark every live file as removed that the overwriting transaction has read or added.
UPDATE dl_files
SET
    removed_version = :version,
    deletion_timestamp_ms = :deletion_timestamp_ms,
    remove_data_change = :data_change
WHERE table_id = :table_id AND removed_version IS NULL
    AND (added_version <= :read_version OR added_version >= :first_own)

-- name: remove_number_stats
-- Mark the bounds of files as removed that a version removed.
UPDATE dl_number_stats SET removed_version = :version
WHERE file_id IN (
    SELECT file_id FROM dl_files
    WHERE table_id = :table_id AND removed_version = :version
)

-- name: remove_text_stats
-- Mark the bounds of files as removed that a version removed.
UPDATE dl_text_stats SET removed_version = :version
WHERE file_id IN (
    SELECT file_id FROM dl_files
    WHERE table_id = :table_id AND removed_version = :version
)

-- name: load_live_totals
-- The number and size of the files that remove_all_files would mark.
SELECT count(*), COALESCE(sum(size_bytes), 0) FROM dl_files
WHERE table_id = :table_id AND removed_version IS NULL
    AND (added_version <= :read_version OR added_version >= :first_own)

-- name: load_history
-- The commits of a table, newest first; a filter that is NULL matches every commit.
SELECT
    version, timestamp_ms, transaction_id, operation, operation_parameters,
    operation_metrics, user_metadata, engine_info, read_version, isolation_level,
    is_blind_append, db_user, os_user, host, client,
    num_added_files, num_removed_files, added_bytes, removed_bytes, commit_info
FROM dl_table_versions
WHERE table_id = :table_id AND version <= :version
    AND (CAST(:since_ms AS BIGINT) IS NULL OR timestamp_ms >= :since_ms)
    AND (CAST(:until_ms AS BIGINT) IS NULL OR timestamp_ms <= :until_ms)
    AND (CAST(:operation AS TEXT) IS NULL OR operation = :operation)
    AND (
        CAST(:actor AS TEXT) IS NULL
        OR db_user = :actor OR os_user = :actor OR host = :actor OR client = :actor
    )
ORDER BY version DESC
LIMIT :max_rows

-- name: load_commits_after
-- A table, and its commits after a version, oldest first; one row if there is none.
SELECT
    t.created_at_ms, t.current_version,
    v.version, v.timestamp_ms, v.transaction_id, v.operation, v.operation_parameters,
    v.operation_metrics, v.user_metadata, v.engine_info, v.read_version,
    v.isolation_level, v.is_blind_append, v.db_user, v.os_user, v.host, v.client,
    v.num_added_files, v.num_removed_files, v.added_bytes, v.removed_bytes,
    v.commit_info
FROM dl_tables t
LEFT JOIN dl_table_versions v
    ON v.table_id = t.table_id AND v.version > :after AND v.version <= t.current_version
WHERE t.table_id = :table_id
ORDER BY v.version
LIMIT :max_rows

-- name: load_metadata_at
-- The metadata that a version set, if it did.
SELECT action FROM dl_metadata WHERE table_id = :table_id AND version = :version

-- name: load_protocol_at
-- The protocol that a version set, if it did.
SELECT action FROM dl_protocols WHERE table_id = :table_id AND version = :version

-- name: load_removed_since
-- The add actions of the files that the commits after a version removed.
SELECT
    removed_version, path, partition_values, size_bytes, modification_time_ms,
    data_change, stats, tags, deletion_vector, base_row_id, default_row_commit_version,
    clustering_provider, null_fields, extra
FROM dl_files
WHERE table_id = :table_id AND removed_version > :after AND removed_version <= :upto
    AND remove_data_change IS NOT NULL
ORDER BY file_id

-- name: load_tombstones
-- The tombstones after a time of files not added again; `+ 0` makes it use dl_files_path.
SELECT
    path, partition_values, size_bytes, deletion_vector, base_row_id,
    default_row_commit_version, deletion_timestamp_ms, remove_data_change,
    remove_fields
FROM dl_files d
WHERE table_id = :table_id AND removed_version <= :version
    AND remove_data_change IS NOT NULL
    AND (
        CAST(:since_ms AS BIGINT) IS NULL
        OR COALESCE(deletion_timestamp_ms, 0) > :since_ms
    )
    AND NOT EXISTS (
        SELECT 1 FROM dl_files l
        WHERE l.path_hash = d.path_hash AND l.table_id + 0 = d.table_id
            AND l.path = d.path AND l.dv_id = d.dv_id
            AND l.file_id <> d.file_id
            AND COALESCE(l.added_version, l.removed_version) > d.removed_version
            AND COALESCE(l.added_version, l.removed_version) <= :version
    )
ORDER BY file_id

-- name: files
-- Some columns of the files at a version: live now, or removed later.
SELECT {columns} FROM dl_files
WHERE table_id = :table_id AND removed_version IS NULL AND added_version <= :version
UNION ALL
SELECT {columns} FROM dl_files
WHERE table_id = :table_id AND removed_version > :version AND added_version <= :version

-- name: load_paths
-- The paths of the files at a version, newest commit first.
SELECT path FROM (
    SELECT path, added_version, file_id FROM dl_files
    WHERE table_id = :table_id AND removed_version IS NULL AND added_version <= :version
    UNION ALL
    SELECT path, added_version, file_id FROM dl_files
    WHERE table_id = :table_id AND removed_version > :version
        AND added_version <= :version
) f
ORDER BY added_version DESC, file_id

-- name: files_since
-- Some columns of the files that were added after a version and are in a later one.
SELECT {columns} FROM dl_files
WHERE table_id = :table_id AND added_version > :after AND added_version <= :version
    AND (removed_version IS NULL OR removed_version > :version)

-- name: load_files_gone
-- The files of a version that aren't in a later one.
SELECT file_id FROM dl_files
WHERE table_id = :table_id AND added_version <= :after
    AND removed_version > :after AND removed_version <= :version

-- name: load_version_time
-- The timestamp of a version, if the version is kept.
SELECT timestamp_ms FROM dl_table_versions
WHERE table_id = :table_id AND version = :after

-- name: plan_files
-- The files at a version among {candidates}, which is made of the statements below.
SELECT {columns} FROM dl_files
WHERE file_id IN ({candidates})
    AND added_version <= :version
    AND (removed_version IS NULL OR removed_version > :version)

-- name: plan_probe
-- The number of candidates, counted up to 1000.
SELECT count(*) FROM (SELECT 1 FROM ({candidates}) c LIMIT 1000) c

-- name: plan_overlap
-- Files whose bounds overlap a range, by one btree scan for each width class.
SELECT s.file_id
FROM (
    WITH q (class, lo, hi, reach) AS (VALUES {ranges}) SELECT * FROM q
) q
JOIN {table} s
    ON s.column_id = {column}
    AND s.class = q.class AND s.hi >= q.lo AND s.hi <= q.reach AND s.lo <= q.hi
WHERE {alive}

-- name: plan_nulls
-- Files that may hold a null in a column.
SELECT s.file_id FROM {table} s
WHERE s.column_id = {column} AND s.has_null = 1 AND {alive}

-- name: plan_uncovered
-- Files that were added before a column was indexed.
SELECT s.file_id FROM dl_files s
WHERE s.table_id = :table_id AND s.added_version < {since} AND {alive}

-- name: plan_alive
-- The condition of live files.
s.removed_version IS NULL

-- name: plan_died
-- The condition of files removed later; false at once if the version is the latest.
s.removed_version > :version AND s.added_version <= :version AND EXISTS (
    SELECT 1 FROM dl_tables
    WHERE table_id = :table_id AND current_version > :version
)
