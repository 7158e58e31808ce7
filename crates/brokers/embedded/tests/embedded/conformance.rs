//! The suites that every broker passes, in an ordered group and in one that is not.

use crate::harness;

relevo_conformance::broker_suite!(harness::ordered);

mod ordered {
    relevo_conformance::consumer_suite!(crate::harness::ordered);
}

mod unordered {
    relevo_conformance::consumer_suite!(crate::harness::unordered);
}
