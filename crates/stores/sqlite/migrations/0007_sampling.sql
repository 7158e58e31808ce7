-- Dead letters that nobody has marked are counted every few seconds: found by an index, however many were dealt with.
CREATE INDEX relevo_dead_letter_dead_idx ON relevo_dead_letter (destination, seq) WHERE state = 'dead';
