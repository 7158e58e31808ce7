//! Loopback ports.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, Result};

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on loopback")?;
    Ok(listener.local_addr()?.port())
}
