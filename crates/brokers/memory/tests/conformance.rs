//! The suite that every broker passes, with a fence and without.

mod harness;

mod plain {
    relevo_conformance::broker_suite!(super::harness::plain);
}

mod fenced {
    relevo_conformance::broker_suite!(super::harness::fenced);
}
