-- Statements of all engines for the outbox.

-- name: now_ms
-- The time of leases, by the clock of the machine that has the database file.
:now_ms

-- name: load_mirrors
-- The mirrors of all tables, of one table, or of the tables with unpublished versions.
SELECT
    t.metadata, m.table_id, t.name, t.location, t.current_version, m.published_version,
    m.state, m.attempts, m.last_error, m.next_try_ms, m.lease_owner, m.lease_until_ms,
    m.checkpoint_version, m.checkpoint_until_ms, t.num_files, v.timestamp_ms, t.hold,
    {now_ms}
FROM dl_mirrors m
JOIN dl_tables t ON t.table_id = m.table_id
LEFT JOIN dl_table_versions v
    ON v.table_id = m.table_id AND v.version = m.published_version + 1
WHERE (CAST(:name AS TEXT) IS NULL OR t.name = :name)
    AND (:behind = 0 OR m.published_version < t.current_version)
ORDER BY t.name

-- name: take_lease
-- Take the lease on publishing a table if it is free, or its holder is gone.
UPDATE dl_mirrors
SET
    lease_owner = :owner, lease_until_ms = {now_ms} + :lasts_ms, fence = fence + 1
WHERE table_id = (
        SELECT table_id FROM dl_tables
        WHERE name = :name AND (hold IS NULL OR :settling = 1)
    )
    AND (state <> 'diverged' OR :settling = 1)
    AND (next_try_ms IS NULL OR next_try_ms <= {now_ms} OR :early = 1)
    AND (
        lease_until_ms IS NULL OR lease_until_ms <= {now_ms}
        OR lease_owner = CAST(:forsaken AS TEXT)
    )
RETURNING
    fence, published_version, state, attempts, last_error, next_try_ms, lease_owner,
    lease_until_ms, checkpoint_version, checkpoint_until_ms

-- name: renew_lease
-- Prolong a lease, unless it was released or another publisher took it.
UPDATE dl_mirrors SET lease_until_ms = {now_ms} + :lasts_ms
WHERE table_id = :table_id AND fence = :fence AND lease_owner IS NOT NULL
RETURNING fence

-- name: release_lost_lease
-- Release a lease that a transaction took whose COMMIT was lost.
UPDATE dl_mirrors SET lease_owner = NULL, lease_until_ms = NULL
WHERE table_id = (SELECT table_id FROM dl_tables WHERE name = :name)
    AND lease_owner = :owner

-- name: release_lease
-- Release a lease, so that the next publisher needn't wait.
UPDATE dl_mirrors SET lease_owner = NULL, lease_until_ms = NULL
WHERE table_id = :table_id AND fence = :fence

-- name: mark_published
-- Note that the versions up to this one are published, if the lease still holds.
UPDATE dl_mirrors
SET
    published_version = :version, state = 'published', attempts = 0,
    last_error = NULL, next_try_ms = NULL,
    lease_owner = CASE WHEN :release = 1 THEN NULL ELSE lease_owner END,
    lease_until_ms = CASE WHEN :release = 1 THEN NULL ELSE lease_until_ms END
WHERE table_id = :table_id AND fence = :fence AND published_version < :version
RETURNING published_version

-- name: mark_published_hash
-- Note the hash of a published log entry, if the lease still holds.
UPDATE dl_table_versions SET published_sha256 = :sha256
WHERE table_id = :table_id AND version = :version AND EXISTS (
    SELECT 1 FROM dl_mirrors m WHERE m.table_id = :table_id AND m.fence = :fence
)

-- name: mark_failed
-- Note that publishing failed, and when to try again.
UPDATE dl_mirrors
SET
    state = 'failed', attempts = attempts + 1, last_error = :error,
    next_try_ms = {now_ms} + :pause_ms
WHERE table_id = :table_id AND fence = :fence

-- name: mark_diverged
-- Stop publishing, because a foreign log entry follows the published version.
UPDATE dl_mirrors
SET
    state = 'diverged', last_error = :error, next_try_ms = NULL,
    lease_owner = NULL, lease_until_ms = NULL, fence = fence + 1
WHERE table_id = :table_id AND published_version = :published_version
    AND state <> 'diverged' AND (CAST(:fence AS BIGINT) IS NULL OR fence = :fence)

-- name: claim_checkpoint
-- Claim the right to make a checkpoint, for one process at a time.
UPDATE dl_mirrors SET checkpoint_until_ms = {now_ms} + :lasts_ms
WHERE table_id = :table_id AND checkpoint_version < :version
    AND (checkpoint_until_ms IS NULL OR checkpoint_until_ms <= {now_ms})
RETURNING table_id

-- name: renew_claim
-- Prolong the claim on a checkpoint.
UPDATE dl_mirrors SET checkpoint_until_ms = {now_ms} + :lasts_ms
WHERE table_id = :table_id AND checkpoint_version < :version
    AND checkpoint_until_ms IS NOT NULL
RETURNING table_id

-- name: mark_checkpoint
-- Note the newest checkpoint in the log.
UPDATE dl_mirrors SET checkpoint_version = :version, checkpoint_until_ms = NULL
WHERE table_id = :table_id AND checkpoint_version < :version

-- name: postpone_checkpoint
-- Note when to try again to make a checkpoint that failed.
UPDATE dl_mirrors SET checkpoint_until_ms = {now_ms} + :pause_ms
WHERE table_id = :table_id AND checkpoint_until_ms IS NOT NULL

-- name: load_unpublished
-- The number of versions of a table that aren't published.
SELECT t.current_version - m.published_version
FROM dl_mirrors m
JOIN dl_tables t ON t.table_id = m.table_id
WHERE t.name = :name

-- name: load_commits_since
-- The commits after a version, with the totals that checksum files need.
SELECT
    version, timestamp_ms, transaction_id, num_files, size_bytes,
    commit_info, other_actions
FROM dl_table_versions
WHERE table_id = :table_id AND version > :after AND version <= :upto
ORDER BY version

-- name: load_protocols_since
-- The protocols of the commits after a version.
SELECT version, action FROM dl_protocols
WHERE table_id = :table_id AND version > :after AND version <= :upto

-- name: load_metadata_since
-- The metadata of the commits after a version.
SELECT version, action FROM dl_metadata
WHERE table_id = :table_id AND version > :after AND version <= :upto

-- name: load_removes_since
-- The removes of the commits after a version.
SELECT
    removed_version, path, partition_values, size_bytes, deletion_vector, base_row_id,
    default_row_commit_version, deletion_timestamp_ms, remove_data_change,
    remove_fields
FROM dl_files
WHERE table_id = :table_id AND removed_version > :after AND removed_version <= :upto
    AND remove_data_change IS NOT NULL
ORDER BY file_id

-- name: load_adds_since
-- The adds of the commits after a version, in the order in which they were staged.
SELECT
    added_version, path, partition_values, size_bytes, modification_time_ms,
    data_change, stats, tags, deletion_vector, base_row_id, default_row_commit_version,
    clustering_provider, null_fields, extra
FROM dl_files
WHERE table_id = :table_id AND added_version > :after AND added_version <= :upto
ORDER BY file_id

-- name: load_cdc_since
-- The change data files of the commits after a version.
SELECT version, action FROM dl_cdc_files
WHERE table_id = :table_id AND version > :after AND version <= :upto
ORDER BY version, ordinal
