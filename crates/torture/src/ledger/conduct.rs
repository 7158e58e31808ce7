//! What a member does when a message reaches certain points: nothing, abort, or wait.

use std::io::{BufRead as _, Write as _};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use relevo_inbox::{HandlerResult, Incoming, Verdict};

/// A stage of a message on its way through a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The message was received, and no handler has seen it.
    Before,
    /// The external service has responded, and nothing is written. Only for members that make calls.
    Called,
    /// The row is written, and nothing is committed.
    During,
    /// The transaction is committed, and the broker does not know it yet.
    Committed,
}

impl Point {
    /// All points, in the order in which a message reaches them.
    pub const ALL: [Self; 4] = [Self::Before, Self::Called, Self::During, Self::Committed];

    /// The name of the point.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Called => "called",
            Self::During => "during",
            Self::Committed => "committed",
        }
    }
}

/// A message that has reached a point.
#[derive(Clone, Copy, Debug)]
pub struct Reached<'a> {
    /// The point.
    pub point: Point,
    /// The number of the change in its payload.
    pub change: i64,
    /// The message, if a handler has it.
    pub incoming: Option<&'a Incoming>,
}

/// The behaviour of a member at each point.
#[async_trait]
pub trait Conduct: Send + Sync {
    /// Called when a message reaches a point. The message continues when this returns. An error or a verdict counts
    /// only inside a handler: at [`Point::Called`] and [`Point::During`].
    async fn at(&self, reached: Reached<'_>) -> HandlerResult;
}

/// Does nothing at any point.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steady;

#[async_trait]
impl Conduct for Steady {
    async fn at(&self, _reached: Reached<'_>) -> HandlerResult {
        Ok(Verdict::Done)
    }
}

/// What happens to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// The process aborts without cleanup.
    Die,
    /// The message waits until a line arrives on the standard input. The rest of the process continues.
    Stay,
}

/// An event that happens once in a process: when the first message, or that of a certain change, reaches a point.
#[derive(Debug)]
pub struct Fate {
    deed: Deed,
    point: Point,
    change: Option<i64>,
    met: AtomicBool,
}

impl Fate {
    /// `place` is a [point](Point), optionally with the number of a change: `during`, `during@7`.
    pub fn new(deed: Deed, place: &str) -> Result<Self> {
        let (word, change) = match place.split_once('@') {
            Some((word, change)) => (word, Some(i64::from_str(change).context("a change is a number")?)),
            None => (place, None),
        };
        let Some(point) = Point::ALL.into_iter().find(|point| point.word() == word) else {
            bail!("`{word}` is no point; hint: `before`, `called`, `during` or `committed`");
        };
        Ok(Self { deed, point, change, met: AtomicBool::new(false) })
    }
}

#[async_trait]
impl Conduct for Fate {
    async fn at(&self, reached: Reached<'_>) -> HandlerResult {
        let here = reached.point == self.point && self.change.is_none_or(|change| change == reached.change);
        if here && !self.met.swap(true, Ordering::Relaxed) {
            match self.deed {
                Deed::Die => std::process::abort(),
                Deed::Stay => stay(self.point).await,
            }
        }
        Ok(Verdict::Done)
    }
}

/// Prints the point, and waits for a line.
async fn stay(point: Point) {
    let (sender, line) = tokio::sync::oneshot::channel();
    // A separate thread: a blocked thread of the runtime would keep the process from ending.
    std::thread::spawn(move || {
        let said = writeln!(std::io::stdout(), "at {}", point.word()).and_then(|()| std::io::stdout().flush());
        let heard = said.and_then(|()| std::io::stdin().lock().read_line(&mut String::new()));
        // If the other end of the pipe is closed, the message never continues.
        if heard.is_ok_and(|bytes| bytes > 0) {
            sender.send(()).ok();
        } else {
            std::mem::forget(sender);
        }
    });
    line.await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fate_is_read_with_its_place() {
        let fate = Fate::new(Deed::Die, "committed@12").unwrap();
        assert_eq!((fate.point, fate.change), (Point::Committed, Some(12)));
        assert_eq!(Fate::new(Deed::Stay, "before").unwrap().change, None);
        assert!(Fate::new(Deed::Die, "after").is_err() && Fate::new(Deed::Die, "during@x").is_err());
    }
}
