-- Replays that go on where they were stopped: where the reader stood when it fed a message, null for any other.
ALTER TABLE relevo_inbox_waiting ADD COLUMN fed_from TEXT;

-- Dead letters of a replay are counted whenever it is fed.
CREATE INDEX relevo_inbox_dead_replay_idx ON relevo_inbox_dead (consumer, replay) WHERE replay > 0;
