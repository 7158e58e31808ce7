-- Settings: one row, which operators change with SQL.

CREATE TABLE relevo_settings (
    only_row                 INTEGER PRIMARY KEY CHECK (only_row = 1),
    retention_ms             INTEGER NOT NULL DEFAULT 604800000,
    id_retention_ms          INTEGER NOT NULL DEFAULT 2592000000,
    dead_letter_retention_ms INTEGER NOT NULL DEFAULT 7776000000
) STRICT;
INSERT INTO relevo_settings (only_row) VALUES (1);
