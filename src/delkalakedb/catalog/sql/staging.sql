-- Statements shared by all engines: tables that are written in many transactions and
-- shown in one. Until then a table has no current version and a name of its own;
-- `created_at_ms` is the number of who writes it.

-- name: load_staged
-- The table at a location, staged or not, with the newest of its versions.
SELECT
    t.table_id, t.name, t.location, t.created_at_ms,
    t.current_version, t.first_version, t.next_file,
    (SELECT max(v.version) FROM dl_table_versions v WHERE v.table_id = t.table_id),
    t.timestamp_ms, t.num_files, t.size_bytes,
    t.metadata_version, t.protocol_version, t.stat_columns,
    t.metadata_version, t.metadata, t.protocol_version, t.protocol, t.hold
FROM dl_tables t
WHERE t.location = :location

-- name: find_table
-- Whether a name is taken.
SELECT 1 FROM dl_tables WHERE name = :name

-- name: take_staged
-- One process at a time writes: whoever came last.
UPDATE dl_tables SET created_at_ms = :token
WHERE table_id = :table_id AND current_version = -1
RETURNING table_id

-- name: move_staged
-- How far the staged table has come, if nobody else has taken it over.
UPDATE dl_tables
SET
    first_version = :first_version, next_file = :next_file,
    timestamp_ms = :timestamp_ms, num_files = :num_files, size_bytes = :size_bytes,
    stat_columns = :stat_columns,
    metadata_version = :metadata_version, metadata = :metadata,
    protocol_version = :protocol_version, protocol = :protocol
WHERE table_id = :table_id AND created_at_ms = :token AND current_version = -1
RETURNING table_id

-- name: show_staged
-- The staged table becomes one of the catalog.
UPDATE dl_tables
SET
    name = :name, created_at_ms = :now_ms, current_version = :version,
    hold = CAST(:hold AS TEXT)
WHERE table_id = :table_id AND created_at_ms = :token AND current_version = -1
RETURNING table_id

-- name: insert_published
-- A table's place in the outbox, all of it in the log already.
INSERT INTO dl_mirrors (
    table_id, published_version, state, attempts, fence, checkpoint_version
) VALUES (:table_id, :version, 'published', 0, 0, :checkpoint_version)

-- name: end_files
-- End the life of files, each with a version of its own.
UPDATE dl_files
SET
    removed_version = r.value ->> 1,
    deletion_timestamp_ms = r.value ->> 2,
    remove_data_change = r.value ->> 3,
    remove_fields = r.value ->> 4
FROM json_each(:removes) r
WHERE file_id = r.value ->> 0

-- name: end_number_stats
-- Take the bounds of files that ended after a version out of the live index.
UPDATE dl_number_stats
SET removed_version = f.removed_version
FROM dl_files f
WHERE f.table_id = :table_id AND f.removed_version > :after
    AND dl_number_stats.file_id = f.file_id

-- name: end_text_stats
-- Take the bounds of files that ended after a version out of the live index.
UPDATE dl_text_stats
SET removed_version = f.removed_version
FROM dl_files f
WHERE f.table_id = :table_id AND f.removed_version > :after
    AND dl_text_stats.file_id = f.file_id

-- name: rename_table
-- Another name for a table; one that is only staged has none.
UPDATE dl_tables SET name = :new
WHERE name = :old AND current_version >= 0
RETURNING table_id

-- name: forget_versions
-- Forget a table: its commits.
DELETE FROM dl_table_versions WHERE table_id = :table_id

-- name: forget_metadata
-- Forget a table: its metadata.
DELETE FROM dl_metadata WHERE table_id = :table_id

-- name: forget_protocols
-- Forget a table: its protocols.
DELETE FROM dl_protocols WHERE table_id = :table_id

-- name: forget_txns
-- Forget a table: its application transactions.
DELETE FROM dl_txns WHERE table_id = :table_id

-- name: forget_domains
-- Forget a table: its domains.
DELETE FROM dl_domains WHERE table_id = :table_id

-- name: forget_cdc_files
-- Forget a table: its change data.
DELETE FROM dl_cdc_files WHERE table_id = :table_id

-- name: forget_mirror
-- Forget a table: its place in the outbox.
DELETE FROM dl_mirrors WHERE table_id = :table_id

-- name: forget_number_stats
-- Forget a table: the bounds of its files.
DELETE FROM dl_number_stats WHERE file_id >= :first_file AND file_id < :end_file

-- name: forget_text_stats
-- Forget a table: the bounds of its files.
DELETE FROM dl_text_stats WHERE file_id >= :first_file AND file_id < :end_file

-- name: forget_files
-- Forget a table: its files.
DELETE FROM dl_files WHERE table_id = :table_id

-- name: forget_table
-- Forget a table: its head row, last.
DELETE FROM dl_tables WHERE table_id = :table_id
