//! The consumer suite, on the oldest and the newest server.

mod newest {
    relevo_conformance::consumer_suite!(crate::consumer_harness::newest);
}

mod oldest {
    relevo_conformance::consumer_suite!(crate::consumer_harness::oldest);
}
