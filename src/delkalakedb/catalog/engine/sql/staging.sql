-- Statements of all engines for staged tables, which many transactions write and one
-- shows. A staged table has the current version -1 and a name that no URI can have.
-- `created_at_ms` is the token of the process that writes the table.

-- name: load_staged
-- The columns of load_head for the table at a location, staged or not.
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
-- One row if a table has the name.
SELECT 1 FROM dl_tables WHERE name = :name

-- name: take_staged
-- Let the process with a token write a staged table, and no other one.
UPDATE dl_tables SET created_at_ms = :token
WHERE table_id = :table_id AND current_version = -1
RETURNING table_id

-- name: move_staged
-- Set the head row of a staged table, unless another process took the table over.
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
-- Make a staged table a table of the catalog.
UPDATE dl_tables
SET
    name = :name, created_at_ms = :now_ms, current_version = :version,
    hold = CAST(:hold AS TEXT)
WHERE table_id = :table_id AND created_at_ms = :token AND current_version = -1
RETURNING table_id

-- name: insert_published
-- Insert the outbox row of a table whose versions are in the log.
INSERT INTO dl_mirrors (
    table_id, published_version, state, attempts, fence, checkpoint_version
) VALUES (:table_id, :version, 'published', 0, 0, :checkpoint_version)

-- name: end_files
-- Mark files as removed, each by its own version.
UPDATE dl_files
SET
    removed_version = r.value ->> 1,
    deletion_timestamp_ms = r.value ->> 2,
    remove_data_change = r.value ->> 3,
    remove_fields = r.value ->> 4
FROM json_each(:removes) r
WHERE file_id = r.value ->> 0

-- name: end_number_stats
-- Mark the bounds of files as removed that were removed after a version.
UPDATE dl_number_stats
SET removed_version = f.removed_version
FROM dl_files f
WHERE f.table_id = :table_id AND f.removed_version > :after
    AND dl_number_stats.file_id = f.file_id

-- name: end_text_stats
-- Mark the bounds of files as removed that were removed after a version.
UPDATE dl_text_stats
SET removed_version = f.removed_version
FROM dl_files f
WHERE f.table_id = :table_id AND f.removed_version > :after
    AND dl_text_stats.file_id = f.file_id

-- name: rename_table
-- Rename a table that isn't staged.
UPDATE dl_tables SET name = :new
WHERE name = :old AND current_version >= 0
RETURNING table_id

-- name: forget_versions
-- Delete the rows of a table: its commits.
DELETE FROM dl_table_versions WHERE table_id = :table_id

-- name: forget_metadata
-- Delete the rows of a table: its metadata.
DELETE FROM dl_metadata WHERE table_id = :table_id

-- name: forget_protocols
-- Delete the rows of a table: its protocols.
DELETE FROM dl_protocols WHERE table_id = :table_id

-- name: forget_txns
-- Delete the rows of a table: its application transactions.
DELETE FROM dl_txns WHERE table_id = :table_id

-- name: forget_domains
-- Delete the rows of a table: its domains.
DELETE FROM dl_domains WHERE table_id = :table_id

-- name: forget_cdc_files
-- Delete the rows of a table: its change data files.
DELETE FROM dl_cdc_files WHERE table_id = :table_id

-- name: forget_mirror
-- Delete the rows of a table: its outbox row.
DELETE FROM dl_mirrors WHERE table_id = :table_id

-- name: forget_number_stats
-- Delete the rows of a table: the bounds of its files.
DELETE FROM dl_number_stats WHERE file_id >= :first_file AND file_id < :end_file

-- name: forget_text_stats
-- Delete the rows of a table: the bounds of its files.
DELETE FROM dl_text_stats WHERE file_id >= :first_file AND file_id < :end_file

-- name: forget_files
-- Delete the rows of a table: its files.
DELETE FROM dl_files WHERE table_id = :table_id

-- name: forget_table
-- Delete the rows of a table: its head row, last because other rows refer to it.
DELETE FROM dl_tables WHERE table_id = :table_id
