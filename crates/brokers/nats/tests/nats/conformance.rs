//! The conformance suite of every broker, on the oldest and the newest server.

mod newest {
    relevo_conformance::broker_suite!(crate::harness::newest);
}

mod oldest {
    relevo_conformance::broker_suite!(crate::harness::oldest);
}

mod atomic {
    relevo_conformance::broker_suite!(crate::harness::atomic);
}

mod newest_faults {
    relevo_conformance::broker_fault_suite!(crate::fault_harness::newest);
}

mod oldest_faults {
    relevo_conformance::broker_fault_suite!(crate::fault_harness::oldest);
}
