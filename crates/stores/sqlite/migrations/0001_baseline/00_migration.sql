-- Applied versions. The newest row decides whether a program may use the file.

CREATE TABLE relevo_migration (
    version         INTEGER PRIMARY KEY,
    name            TEXT NOT NULL,
    -- The oldest program, by the version that it came with, that can use this version.
    compatible_from INTEGER NOT NULL,
    applied_at_ms   INTEGER NOT NULL
) STRICT;
