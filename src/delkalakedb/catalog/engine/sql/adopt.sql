-- Statements of all engines for foreign commits in the log.

-- name: load_transaction_ids
-- The transaction ids of the versions after a version.
SELECT v.version, v.transaction_id
FROM dl_tables t
JOIN dl_table_versions v ON v.table_id = t.table_id
WHERE t.name = :name AND v.version > :after

-- name: load_published_version
-- The newest published version; for a caller that holds the table's lock.
SELECT m.published_version
FROM dl_tables t
JOIN dl_mirrors m ON m.table_id = t.table_id
WHERE t.name = :name

-- name: keep_original
-- Keep the commitInfo of an adopted commit as it is, and the hash of its log entry.
UPDATE dl_table_versions
SET commit_info = CAST(:commit_info AS TEXT), published_sha256 = :sha256
WHERE table_id = :table_id AND version = :version

-- name: mark_adopted
-- Note that an adopted commit is published, if the lease on the log still holds.
UPDATE dl_mirrors SET published_version = :version
WHERE table_id = :table_id AND published_version = :version - 1 AND fence = :fence
RETURNING published_version

-- name: settle_mirror
-- Let publishing go on after a foreign commit was adopted or removed.
UPDATE dl_mirrors
SET
    state = CASE
        WHEN published_version < (
            SELECT t.current_version FROM dl_tables t
            WHERE t.table_id = dl_mirrors.table_id
        ) THEN 'pending'
        ELSE 'published'
    END,
    attempts = 0, last_error = NULL, next_try_ms = NULL
WHERE table_id = (SELECT table_id FROM dl_tables WHERE name = :name)
