//! The outbox as a log in SQLite.
