//! One direction of all connections.

use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

const CHUNK_BYTES: usize = 16 * 1024;
/// The number of chunks per second in a throttled direction.
const STEPS_PER_SECOND: usize = 20;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

#[derive(Default)]
pub(super) struct Lane {
    stalled: watch::Sender<bool>,
    /// The number of chunks held since the stall began.
    held: watch::Sender<u64>,
    pace: Mutex<Pace>,
    /// The number of bytes that may pass before the cut, if a cut is set.
    left: Mutex<Option<u64>>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Pace {
    pub(super) delay: Duration,
    pub(super) bytes_per_second: Option<u32>,
}

/// The decision about a chunk before it is written.
struct Passage {
    bytes: usize,
    then_cut: bool,
}

impl Lane {
    pub(super) fn stall(&self) {
        self.held.send_replace(0);
        self.stalled.send_replace(true);
    }

    pub(super) fn flow(&self) {
        self.stalled.send_replace(false);
    }

    pub(super) async fn until_held(&self) {
        assert!(*self.stalled.borrow(), "only a stalled direction holds anything");
        self.held.subscribe().wait_for(|held| *held > 0).await.expect("this value holds the sender");
    }

    pub(super) fn change_pace(&self, change: &impl Fn(&mut Pace)) {
        change(&mut self.pace.lock().expect("no holder panics"));
    }

    pub(super) fn limit(&self, bytes: u64) {
        *self.left.lock().expect("no holder panics") = Some(bytes);
    }

    /// Forwards bytes until one side ends. Calls `cut` when the limit is reached.
    pub(super) async fn pump(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        cut: impl Fn(),
    ) -> std::io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = from.read(&mut chunk[..self.pace().chunk_bytes()]).await?;
            self.pass(length).await;
            if length == 0 {
                return to.shutdown().await;
            }
            let passage = self.take(length);
            to.write_all(&chunk[..passage.bytes]).await?;
            if passage.then_cut {
                cut();
                // The cut ends this task. Until then, no more bytes may pass.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits as long as a stall, a delay or a throttle holds a chunk back.
    async fn pass(&self, length: usize) {
        let mut stalled = self.stalled.subscribe();
        if *stalled.borrow() {
            self.held.send_modify(|held| *held += 1);
        }
        let wait = self.pace().wait(length);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        stalled.wait_for(|stalled| !stalled).await.expect("this value holds the sender");
    }

    fn take(&self, length: usize) -> Passage {
        let mut left = self.left.lock().expect("no holder panics");
        let Some(allowed) = *left else { return Passage { bytes: length, then_cut: false } };
        let bytes = usize::try_from(allowed).unwrap_or(usize::MAX).min(length);
        let rest = allowed - bytes as u64;
        *left = (rest > 0).then_some(rest);
        Passage { bytes, then_cut: rest == 0 }
    }

    fn pace(&self) -> Pace {
        *self.pace.lock().expect("no holder panics")
    }
}

impl Pace {
    /// Small enough for a throttled direction to move smoothly.
    fn chunk_bytes(self) -> usize {
        self.bytes_per_second.map_or(CHUNK_BYTES, |rate| (rate as usize / STEPS_PER_SECOND).clamp(1, CHUNK_BYTES))
    }

    fn wait(self, length: usize) -> Duration {
        let nanos = self.bytes_per_second.map_or(0, |rate| length as u64 * NANOS_PER_SECOND / u64::from(rate));
        self.delay + Duration::from_nanos(nanos)
    }
}
