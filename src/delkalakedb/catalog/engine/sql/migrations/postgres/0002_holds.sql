-- Why nobody may commit to a table in this catalog: other clients write the table by file
-- ('following'), or another catalog has it ('moving to ...', 'moved to ...'). Else NULL.
ALTER TABLE dl_tables ADD COLUMN hold TEXT;
