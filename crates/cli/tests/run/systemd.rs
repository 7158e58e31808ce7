//! Notifications to the service manager, received on a socket of the test.

use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use crate::daemon::{DEADLINE, Daemon};
use crate::test_outbox::{BEGIN, TestOutbox};

struct Manager {
    socket: UnixDatagram,
    path: String,
}

impl Manager {
    fn new(shop: &TestOutbox) -> Self {
        let path = shop.directory.path().join("notify").to_str().expect("UTF-8").to_owned();
        let socket = UnixDatagram::bind(&path).expect("a free name");
        socket.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        Self { socket, path }
    }

    fn next(&self) -> String {
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).expect("the daemon sends a notification");
        String::from_utf8(buffer[..length].to_vec()).expect("UTF-8")
    }

    /// Discards the notifications that were sent before.
    fn catch_up(&self) {
        self.socket.set_nonblocking(true).expect("a socket of ours");
        while self.socket.recv(&mut [0; 4096]).is_ok() {}
        self.socket.set_nonblocking(false).expect("a socket of ours");
    }

    /// The notifications up to the first one with this line, inclusive.
    fn until(&self, line: &str) -> Vec<String> {
        let end = Instant::now() + DEADLINE;
        let mut received = Vec::new();
        while Instant::now() < end {
            let next = self.next();
            let found = next.lines().any(|it| it == line);
            received.push(next);
            if found {
                return received;
            }
        }
        panic!("`{line}` was not received: {received:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_manager_is_notified_from_ready_to_stopping() {
    let shop = TestOutbox::new().await;
    let manager = Manager::new(&shop);
    let mut daemon = Daemon::start(&shop.config(""), &[("NOTIFY_SOCKET", &manager.path)]);
    let ready = manager.until("READY=1").pop().unwrap();
    assert!(ready.contains("STATUS=1 of 1 relays run\n"), "{ready}");
    daemon.ready();
    daemon.signal("HUP");
    let reloading = manager.until("RELOADING=1").pop().unwrap();
    let time =
        reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).expect("the notification has the time");
    assert!(time.parse::<u64>().unwrap() > 0);
    manager.until("READY=1");
    daemon.signal("TERM");
    manager.until("STOPPING=1");
    assert_eq!(daemon.end(), Some(0));
    assert!(!daemon.log().contains("WATCHDOG"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watchdog_is_fed_while_the_relays_make_progress_even_without_a_database() {
    let shop = TestOutbox::new().await;
    // No process listens on port 1 of loopback.
    let text = format!("{BEGIN}{}", shop.outbox("shop", "postgres://me@127.0.0.1:1/none", ""));
    let manager = Manager::new(&shop);
    let variables = [("NOTIFY_SOCKET", manager.path.as_str()), ("WATCHDOG_USEC", "400000")];
    let mut daemon = Daemon::start(&shop.directory.write("relevo.toml", &text), &variables);
    let ready = manager.until("READY=1").pop().unwrap();
    assert!(ready.contains("STATUS=0 of 1 relays run, 1 wait for database or broker"), "{ready}");
    let keeps_interval = || {
        manager.catch_up();
        let begun = Instant::now();
        for _ in 0..5 {
            manager.until("WATCHDOG=1");
        }
        begun.elapsed().as_millis() >= 700
    };
    // After a pause of the machine, the daemon sends the missed notifications at once.
    assert!((0..5).any(|_| keeps_interval()), "it is fed every 200 ms, not faster");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_is_never_ready() {
    let shop = TestOutbox::new().await;
    shop.run("DROP SCHEMA relevo CASCADE").await;
    let manager = Manager::new(&shop);
    let mut daemon = Daemon::start(&shop.config(""), &[("NOTIFY_SOCKET", &manager.path)]);
    assert_eq!(daemon.end(), Some(1));
    let received = manager.until("STOPPING=1");
    assert!(!received.concat().contains("READY=1"), "{received:?}");
    crate::daemon::until("the log has the hint", || daemon.log().contains("hint: run `relevo migrate`"));
}
