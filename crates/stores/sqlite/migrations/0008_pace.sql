-- Before then a message of the retry table is not tried: it failed, or was redriven at a rate. Null for one
-- that was not tried yet.
ALTER TABLE relevo_inbox_waiting ADD COLUMN not_before_ms INTEGER;
