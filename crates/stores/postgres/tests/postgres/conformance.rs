//! Runs the store suite on each version, and behind a pooler in transaction mode.

mod postgres_13 {
    relevo_conformance::outbox_suite!(crate::harness::shared_13, crate::harness::private_13);
}

mod postgres_15 {
    relevo_conformance::outbox_suite!(crate::harness::shared_15, crate::harness::private_15);
}

/// A publication of all tables requires a replica identity in each table that has updates or deletes.
mod postgres_18_with_a_publication {
    relevo_conformance::outbox_suite!(crate::harness::published_18, crate::harness::private_18);
}

mod behind_pgbouncer {
    relevo_conformance::outbox_suite!(crate::harness::pooled, crate::harness::private_15);
}
