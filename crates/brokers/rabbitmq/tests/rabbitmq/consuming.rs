//! What consuming promises beyond the suite: a server that dies, sleeps or is full, members that come and go.

mod suite {
    relevo_conformance::consumer_suite!(crate::consumer_harness::start);
}
