-- Statements shared by all engines: tables that others write, and tables that are copied
-- from one catalog to another.

-- name: set_hold
-- Say who may commit to a table, if nobody has said something else meanwhile.
UPDATE dl_tables SET hold = CAST(:hold AS TEXT)
WHERE name = :name AND current_version >= 0 AND COALESCE(hold, '') = :before
RETURNING table_id

-- name: count_copied
-- How many rows of a table there are, by table or by the numbers of its files.
SELECT count(*) FROM {table}
WHERE {key} >= :first AND {key} < :end

-- name: copy_rows
-- The rows of a table after so many, always in the same order.
SELECT {columns} FROM {table}
WHERE {key} >= :first AND {key} < :end
ORDER BY {order}
LIMIT :rows OFFSET :done
