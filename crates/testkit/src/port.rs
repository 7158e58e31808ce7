//! Loopback ports, reserved across all test processes.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};

/// Below the range for outgoing connections: Linux could reuse a port of that range while a server restarts.
const LOWEST: u16 = 15_000;
const COUNT: u16 = 17_000;

/// A port that no other test gets while this value exists, even while its server is down.
///
/// The reservation is a locked file. The kernel releases the lock when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    number: u16,
    _lock: File,
}

impl ReservedPort {
    pub(crate) fn new() -> Self {
        let directory = std::env::temp_dir().join("relevo-test-ports");
        std::fs::create_dir_all(&directory).expect("the directory for temporary files can be written");
        loop {
            let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
            let number = LOWEST + u16::try_from(random % u64::from(COUNT)).expect("less than the count");
            let file =
                File::options().write(true).create(true).truncate(false).open(directory.join(number.to_string()));
            // A file of another user cannot be opened. Its port counts as reserved.
            let Ok(lock) = file else { continue };
            if lock.try_lock().is_ok() && is_free(number) {
                return Self { number, _lock: lock };
            }
        }
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// Whether no process listens on the port.
pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::File;

    use super::ReservedPort;

    #[test]
    fn a_reserved_port_is_not_given_again_while_nothing_listens_on_it() {
        let ports: Vec<_> = (0..500).map(|_| ReservedPort::new()).collect();
        let numbers: BTreeSet<_> = ports.iter().map(ReservedPort::number).collect();
        assert_eq!(numbers.len(), ports.len());
        let path = std::env::temp_dir().join("relevo-test-ports").join(ports[0].number().to_string());
        let file = File::options().write(true).open(path).expect("the reservation is a file");
        assert!(file.try_lock().is_err(), "another process would see it as reserved");
        drop(ports);
        file.lock().expect("the reservation ends with the value");
    }
}
