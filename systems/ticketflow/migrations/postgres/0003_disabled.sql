-- Since when nobody is let in as this person.
ALTER TABLE ticketflow.person ADD COLUMN disabled_at timestamptz;
