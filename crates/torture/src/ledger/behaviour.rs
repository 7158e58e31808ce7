//! The behaviour of a member when a message reaches a point: continue, abort, or wait.

use std::io::{BufRead as _, Write as _};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use relevo_inbox::{HandlerResult, Incoming, Verdict};

relevo_core::text_enum! {
    /// A point on the way of a message through a member.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Point {
        /// The message was received, and no handler has received it.
        Before = "before",
        /// The external service has responded, and nothing is written. Only for members that make calls.
        Called = "called",
        /// The row is written, and nothing is committed.
        During = "during",
        /// The transaction is committed, and the broker does not know it yet.
        Committed = "committed",
    }
}

/// A message that has reached a point.
#[derive(Clone, Copy, Debug)]
pub struct PointReached<'a> {
    /// The point.
    pub point: Point,
    /// The number of the change in its payload.
    pub change: i64,
    /// The message, if a handler has it.
    pub incoming: Option<&'a Incoming>,
}

/// The behaviour of a member at each point.
#[async_trait]
pub trait Behaviour: Send + Sync {
    /// Called when a message reaches a point. The message continues when this returns. An error or a verdict counts
    /// only inside a handler: at [`Point::Called`] and [`Point::During`].
    async fn at(&self, reached: PointReached<'_>) -> HandlerResult;
}

/// Does nothing at any point.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFault;

#[async_trait]
impl Behaviour for NoFault {
    async fn at(&self, _reached: PointReached<'_>) -> HandlerResult {
        Ok(Verdict::Done)
    }
}

/// The effect on the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The process aborts without cleanup.
    Abort,
    /// The message waits until a line arrives on the standard input. The rest of the process continues.
    Wait,
}

/// An event that happens once in a process: when the first message, or that of a certain change, reaches a point.
#[derive(Debug)]
pub struct OneTimeFault {
    action: FaultAction,
    point: Point,
    change: Option<i64>,
    happened: AtomicBool,
}

impl OneTimeFault {
    /// `point` is a [point](Point), optionally with the number of a change: `during`, `during@7`.
    pub fn new(action: FaultAction, point: &str) -> Result<Self> {
        let (name, change) = match point.split_once('@') {
            Some((name, change)) => (name, Some(i64::from_str(change).context("a change is a number")?)),
            None => (point, None),
        };
        let Some(point) = Point::parse(name) else {
            bail!("unknown point `{name}`; hint: `before`, `called`, `during` or `committed`");
        };
        Ok(Self { action, point, change, happened: AtomicBool::new(false) })
    }
}

#[async_trait]
impl Behaviour for OneTimeFault {
    async fn at(&self, reached: PointReached<'_>) -> HandlerResult {
        let matches = reached.point == self.point && self.change.is_none_or(|change| change == reached.change);
        if matches && !self.happened.swap(true, Ordering::Relaxed) {
            match self.action {
                FaultAction::Abort => std::process::abort(),
                FaultAction::Wait => stay(self.point).await,
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
        let written = writeln!(std::io::stdout(), "at {}", point.as_str()).and_then(|()| std::io::stdout().flush());
        let read = written.and_then(|()| std::io::stdin().lock().read_line(&mut String::new()));
        // If the other end of the pipe is closed, the message never continues.
        if read.is_ok_and(|bytes| bytes > 0) {
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
    fn a_fault_is_parsed_with_its_point() {
        let faults = OneTimeFault::new(FaultAction::Abort, "committed@12").unwrap();
        assert_eq!((faults.point, faults.change), (Point::Committed, Some(12)));
        assert_eq!(OneTimeFault::new(FaultAction::Wait, "before").unwrap().change, None);
        assert!(
            OneTimeFault::new(FaultAction::Abort, "after").is_err()
                && OneTimeFault::new(FaultAction::Abort, "during@x").is_err()
        );
    }
}
