//! The broker conformance suite, with and without guaranteed order in flight.

mod harness;

mod plain {
    relevo_conformance::broker_suite!(super::harness::plain);
}

mod fenced {
    relevo_conformance::broker_suite!(super::harness::fenced);
}
