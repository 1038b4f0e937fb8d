-- Why nobody may commit to a table here: others write it by file ('following'), or
-- another catalog has it ('moving to ...', 'moved to ...'). NULL while it is ours.
ALTER TABLE dl_tables ADD COLUMN hold TEXT;
