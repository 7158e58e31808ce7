-- How long a consumer's inbox remembers what was handled: what it was last pruned with, null if it never was.
ALTER TABLE relevo_inbox_consumer ADD COLUMN remembers_ms INTEGER;
