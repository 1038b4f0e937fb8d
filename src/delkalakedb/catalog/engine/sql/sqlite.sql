-- Statements that are different in SQLite.

-- name: find_catalog
-- One row if the database has a catalog.
SELECT 1 FROM sqlite_master WHERE name = 'dl_schema_versions'

-- name: load_server_version
-- The version of the database engine.
SELECT sqlite_version()

-- name: load_now_ms
-- The time in ms by the database's clock.
SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
