-- The applied schema versions.
CREATE TABLE migration (
    version         int PRIMARY KEY,
    name            text NOT NULL,
    applied_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The oldest program, by its own schema version, that runs on this version; null for no older program.
    compatible_from int
);
