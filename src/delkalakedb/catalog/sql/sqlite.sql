-- What SQLite says differently.

-- name: find_catalog
-- Whether the database holds a catalog.
SELECT 1 FROM sqlite_master WHERE name = 'dl_schema_versions'

-- name: files_page
-- A page of the files that are live at a version and haven't been removed since.
SELECT {columns}, file_id AS page_key FROM dl_files
WHERE table_id = :table_id AND removed_version IS NULL AND added_version <= :version
    AND file_id > :after
ORDER BY file_id
LIMIT :page_rows

-- name: files_died
-- The files that were live at a version and have been removed since.
SELECT {columns} FROM dl_files
WHERE table_id = :table_id AND removed_version > :version AND added_version <= :version

-- name: load_server_version
-- The version of the database's own software.
SELECT sqlite_version()

-- name: load_now_ms
-- What time the database's clock shows.
SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
