-- What SQLite says differently.

-- name: find_catalog
-- Whether the database holds a catalog.
SELECT 1 FROM sqlite_master WHERE name = 'dl_schema_versions'
