-- One row: the number of the newest table. Numbers aren't used again, so that the number
-- of a dropped table never stands for another table.
CREATE TABLE dl_table_ids (
    last_table_id INTEGER NOT NULL
) STRICT;

INSERT INTO dl_table_ids SELECT COALESCE(max(table_id), 0) FROM dl_tables;
