//! Loopback ports.

use std::net::{Ipv4Addr, TcpListener};

/// A port that was free a moment ago. Another process may take it first, so a start on it must be retried on another.
pub(crate) fn free() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}

/// Whether nobody listens on it.
pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
