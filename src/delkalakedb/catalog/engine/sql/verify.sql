-- Statements of all engines that compare the mirror with the catalog.

-- name: load_published
-- The transaction ids and the published hashes of the commits from a version on.
SELECT version, transaction_id, published_sha256 FROM dl_table_versions
WHERE table_id = :table_id AND version >= :first
ORDER BY version
