-- Statements shared by all engines: comparing the mirror with the catalog.

-- name: load_published
-- The commits from a version on: who ratified them, and what was published.
SELECT version, transaction_id, published_sha256 FROM dl_table_versions
WHERE table_id = :table_id AND version >= :first
ORDER BY version
