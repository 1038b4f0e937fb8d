-- Statements of all engines for tables that other clients write by file, and for tables
-- that are copied from one catalog to another.

-- name: set_hold
-- Set or clear the hold on a table, if the hold is still what it was before.
UPDATE dl_tables SET hold = CAST(:hold AS TEXT)
WHERE name = :name AND current_version >= 0 AND COALESCE(hold, '') = :before
RETURNING table_id

-- name: count_copied
-- The number of rows of a table, by table id or by file ids.
SELECT count(*) FROM {table}
WHERE {key} >= :first AND {key} < :end

-- name: copy_rows
-- The rows of a table after the first ones, in a fixed order.
SELECT {columns} FROM {table}
WHERE {key} >= :first AND {key} < :end
ORDER BY {order}
LIMIT :rows OFFSET :done
