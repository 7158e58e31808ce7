-- Which programs may run on a version of the schema, so that old and new ones can stand side by side while they are
-- restarted one by one: the oldest that may; null for none but its own.
ALTER TABLE migration ADD COLUMN serves_from int;
