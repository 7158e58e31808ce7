//! What a member does at certain points beside its work: nothing, or end, or stay there until it may go on.

use std::io::{BufRead as _, Write as _};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use relevo_inbox::{Handled, Incoming, Verdict};

/// Where a message is on its way through a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// It was received, and no handler has seen it.
    Before,
    /// The far side has answered, and nothing is written. Only of members that call.
    Called,
    /// Its row is written, and nothing is committed.
    During,
    /// It is committed, and the broker does not know it yet.
    Committed,
}

impl Point {
    /// Every point, in the order of a message's way.
    pub const ALL: [Self; 4] = [Self::Before, Self::Called, Self::During, Self::Committed];

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Called => "called",
            Self::During => "during",
            Self::Committed => "committed",
        }
    }
}

/// A message that has come to a point.
#[derive(Clone, Copy, Debug)]
pub struct Reached<'a> {
    /// Which point.
    pub point: Point,
    /// The number in its payload.
    pub change: i64,
    /// The message, where a handler has it.
    pub incoming: Option<&'a Incoming>,
}

/// What a member does at each point.
#[async_trait]
pub trait Conduct: Send + Sync {
    /// A message has come to a point; it goes on when this returns. An error or a verdict counts only where a handler can say
    /// one: at [`Point::Called`] and [`Point::During`].
    async fn at(&self, reached: Reached<'_>) -> Handled;
}

/// Does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steady;

#[async_trait]
impl Conduct for Steady {
    async fn at(&self, _reached: Reached<'_>) -> Handled {
        Ok(Verdict::Done)
    }
}

/// What becomes of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// It aborts: nothing is cleaned up.
    Die,
    /// The message stays there until a line comes on the standard input; the rest of the process goes on.
    Stay,
}

/// Something that happens to a process once, when the first message, or the one of a certain change, comes to a point.
#[derive(Debug)]
pub struct Fate {
    deed: Deed,
    point: Point,
    change: Option<i64>,
    met: AtomicBool,
}

impl Fate {
    /// This happens there; `place` is a [point](Point), or one with the change: `during`, `during@7`.
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
    async fn at(&self, reached: Reached<'_>) -> Handled {
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

/// Says where it is, and waits for a line.
async fn stay(point: Point) {
    let (sender, line) = tokio::sync::oneshot::channel();
    // A thread of its own: one of the runtime's would keep the process from ending.
    std::thread::spawn(move || {
        let said = writeln!(std::io::stdout(), "at {}", point.word()).and_then(|()| std::io::stdout().flush());
        let heard = said.and_then(|()| std::io::stdin().lock().read_line(&mut String::new()));
        // Without anybody at the other end nobody lets it go on.
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
