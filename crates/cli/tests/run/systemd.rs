//! What a service manager is told, over a socket of the test's own.

use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use crate::daemon::{DEADLINE, Daemon};
use crate::test_outbox::{BEGIN, TestOutbox};

struct Manager {
    socket: UnixDatagram,
    path: String,
}

impl Manager {
    fn new(world: &TestOutbox) -> Self {
        let path = world.directory.path().join("notify").to_str().expect("UTF-8").to_owned();
        let socket = UnixDatagram::bind(&path).expect("a free name");
        socket.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        Self { socket, path }
    }

    fn next(&self) -> String {
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).expect("the daemon tells something");
        String::from_utf8(buffer[..length].to_vec()).expect("UTF-8")
    }

    /// Reads what was told before, so that whatever comes next was told from now on.
    fn catch_up(&self) {
        self.socket.set_nonblocking(true).expect("a socket of ours");
        while self.socket.recv(&mut [0; 4096]).is_ok() {}
        self.socket.set_nonblocking(false).expect("a socket of ours");
    }

    /// What is told up to the first datagram with this line, that one included.
    fn until(&self, line: &str) -> Vec<String> {
        let end = Instant::now() + DEADLINE;
        let mut told = Vec::new();
        while Instant::now() < end {
            let next = self.next();
            let found = next.lines().any(|it| it == line);
            told.push(next);
            if found {
                return told;
            }
        }
        panic!("`{line}` was not told: {told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_is_told_from_ready_to_stopping() {
    let world = TestOutbox::new().await;
    let manager = Manager::new(&world);
    let mut daemon = Daemon::start(&world.config(""), &[("NOTIFY_SOCKET", &manager.path)]);
    let ready = manager.until("READY=1").pop().unwrap();
    assert!(ready.contains("STATUS=1 of 1 relays run\n"), "{ready}");
    daemon.ready();
    daemon.signal("HUP");
    let reloading = manager.until("RELOADING=1").pop().unwrap();
    let time = reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).expect("the time is told");
    assert!(time.parse::<u64>().unwrap() > 0);
    manager.until("READY=1");
    daemon.signal("TERM");
    manager.until("STOPPING=1");
    assert_eq!(daemon.end(), Some(0));
    assert!(!daemon.log().contains("WATCHDOG"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watchdog_is_fed_while_the_relays_turn_also_without_a_database() {
    let world = TestOutbox::new().await;
    // Port 1 is nobody's on loopback.
    let text = format!("{BEGIN}{}", world.outbox("shop", "postgres://me@127.0.0.1:1/none", ""));
    let manager = Manager::new(&world);
    let variables = [("NOTIFY_SOCKET", manager.path.as_str()), ("WATCHDOG_USEC", "400000")];
    let mut daemon = Daemon::start(&world.directory.write("relevo.toml", &text), &variables);
    let ready = manager.until("READY=1").pop().unwrap();
    assert!(ready.contains("STATUS=0 of 1 relays run, 1 wait for database or broker"), "{ready}");
    let keeps_its_pace = || {
        manager.catch_up();
        let begun = Instant::now();
        for _ in 0..5 {
            manager.until("WATCHDOG=1");
        }
        begun.elapsed().as_millis() >= 700
    };
    // A daemon that stood still for a moment makes up for what it missed.
    assert!((0..5).any(|_| keeps_its_pace()), "it is fed every 200 ms, not faster");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_is_never_ready() {
    let world = TestOutbox::new().await;
    world.run("DROP SCHEMA relevo CASCADE").await;
    let manager = Manager::new(&world);
    let mut daemon = Daemon::start(&world.config(""), &[("NOTIFY_SOCKET", &manager.path)]);
    assert_eq!(daemon.end(), Some(1));
    let told = manager.until("STOPPING=1");
    assert!(!told.concat().contains("READY=1"), "{told:?}");
    crate::daemon::until("it says why", || daemon.log().contains("hint: run `relevo migrate`"));
}
