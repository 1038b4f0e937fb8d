-- Statements shared by all engines: the outbox.

-- name: load_mirror
-- How far a table's mirror has come.
SELECT m.published_version, t.current_version, t.location
FROM dl_tables t
JOIN dl_mirrors m ON m.table_id = t.table_id
WHERE t.name = :name

-- name: mark_published
-- A version is in the mirror.
UPDATE dl_mirrors
SET published_version = :version, state = 'published', attempts = 0, last_error = NULL
WHERE published_version = :version - 1
    AND table_id = (SELECT table_id FROM dl_tables WHERE name = :name)

-- name: mark_published_hash
-- What was published, to know it again.
UPDATE dl_table_versions SET published_sha256 = :sha256
WHERE version = :version
    AND table_id = (SELECT table_id FROM dl_tables WHERE name = :name)
