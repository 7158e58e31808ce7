//! Loopback ports.

use std::net::{Ipv4Addr, TcpListener};

/// Below the ports that Linux gives to connections going out, one of which could sit on ours while a server restarts.
const LOWEST: u16 = 15_000;
const COUNT: u16 = 17_000;

/// A port that was free a moment ago. Another process may take it first, so a start on it must be retried on another.
pub(crate) fn free() -> u16 {
    loop {
        let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
        let offset = u16::try_from(random % u64::from(COUNT)).expect("less than the count");
        if is_free(LOWEST + offset) {
            return LOWEST + offset;
        }
    }
}

/// Whether nobody listens on it.
pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
