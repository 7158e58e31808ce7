//! The suite that every broker passes, on the oldest and the newest server.

mod newest {
    relevo_conformance::broker_suite!(crate::harness::newest);
}

mod oldest {
    relevo_conformance::broker_suite!(crate::harness::oldest);
}

mod atomic {
    relevo_conformance::broker_suite!(crate::harness::atomic);
}
