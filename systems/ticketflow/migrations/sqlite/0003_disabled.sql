-- Since when nobody is let in as this person.
ALTER TABLE person ADD COLUMN disabled_at INTEGER;
