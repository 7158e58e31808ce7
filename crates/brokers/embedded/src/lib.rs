//! A durable broker in a SQLite file.
