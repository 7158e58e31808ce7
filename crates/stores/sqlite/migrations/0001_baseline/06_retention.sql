-- One row of settings, changed by hand.
CREATE TABLE relevo_setting (
    only_row          INTEGER PRIMARY KEY CHECK (only_row = 1),
    retention_ms      INTEGER NOT NULL DEFAULT 604800000,
    id_retention_ms   INTEGER NOT NULL DEFAULT 2592000000,
    dead_retention_ms INTEGER NOT NULL DEFAULT 7776000000
) STRICT;
INSERT INTO relevo_setting (only_row) VALUES (1);
