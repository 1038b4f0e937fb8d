-- One row: the last number that a table was given. None comes back, so that whoever
-- knew a table by its number finds nothing once it is dropped, and not another one.
CREATE TABLE dl_table_ids (
    last_table_id INTEGER NOT NULL
) STRICT;

INSERT INTO dl_table_ids SELECT COALESCE(max(table_id), 0) FROM dl_tables;
