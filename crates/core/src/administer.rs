//! What people, and the daemon when it starts, ask of a broker beside publishing: whether what the configuration names is
//! there, and whether its settings keep the promises.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::failure::Failure;
use crate::operate::Finding;

/// One thing that the configuration wants at a broker: an exchange, a queue, a binding, a policy, a stream, a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it is and what it is called, such as ``queue `billing` ``.
    pub name: String,
    /// How it stands.
    pub state: State,
}

/// How a piece of topology stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is there, as it should be.
    Same,
    /// It is not there.
    Missing,
    /// It was not there, and was made.
    Made,
    /// It could not be seen, or not compared: it may be there, and may differ. The name of the piece says what is missing.
    Unseen,
    /// It is there and is different: it is neither changed nor deleted, a person decides.
    Differs(Vec<Difference>),
}

/// One setting in which a piece differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The broker's own name of the setting.
    pub setting: String,
    /// What the configuration says.
    pub wanted: String,
    /// What the broker has.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is {}, wanted {}", self.setting, self.found, self.wanted)
    }
}

/// What the settings of a broker are compared with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectations {
    /// The addresses of the routes, as [`Route::template`](crate::Route::template) gives them: `{topic}`, `{type}` and
    /// `{key}` stand for anything.
    pub addresses: Vec<String>,
    /// How long after a message was sent the same one may be sent again, outages of the broker aside.
    pub repeat_horizon: Duration,
}

/// A broker, as people and the daemon look at it before anything is sent.
#[async_trait]
pub trait Administer: Send + Sync {
    /// Compares the topology of the configuration with the broker's, in the order in which it would be made. Nothing is
    /// changed.
    async fn plan(&self) -> Result<Vec<Piece>, Failure>;

    /// Makes what is missing. What is there is neither changed nor deleted; if anything differs, nothing is made at all.
    /// Two that do it at once do no harm.
    async fn apply(&self) -> Result<Vec<Piece>, Failure>;

    /// Looks at the settings that the promises stand on; everything looked at is told, good or bad. A finding's subject is
    /// the name by which the configuration can accept it.
    async fn examine(&self, expectations: &Expectations) -> Result<Vec<Finding>, Failure>;
}
