//! Runs the inbox suite on each version, behind a pooler in transaction mode, with a publication of all tables, and
//! with another default isolation level.

mod postgres_13 {
    relevo_conformance::inbox_suite!(crate::inbox_harness::on_13);
}

mod postgres_15 {
    relevo_conformance::inbox_suite!(crate::inbox_harness::on_15);
}

mod postgres_18_with_a_publication {
    relevo_conformance::inbox_suite!(crate::inbox_harness::published_18);
}

mod behind_pgbouncer {
    relevo_conformance::inbox_suite!(crate::inbox_harness::pooled);
}

mod repeatable_read {
    relevo_conformance::inbox_suite!(crate::inbox_harness::repeatable_read);
}
