//! How a handler treats a message. The message's type contains it, after the form of the handler.

use relevo_core::random::SplitMix64;

/// How a handler treats a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerBehaviour {
    /// It succeeds.
    Plain,
    /// It succeeds, and takes about as long as the handler's timeout.
    Slow,
    /// The handler skips it.
    Skip,
    /// No handler matches it.
    Unwanted,
    /// It fails this many times.
    Fails(u32),
    /// Its handler panics this many times.
    Panics(u32),
    /// Its handler never returns, this many times.
    Hangs(u32),
    /// It fails permanently, until the handler is fixed.
    Poison,
    /// It kills its process this many times.
    Kills(u32),
    /// It is not a valid Relevo message.
    Malformed,
}

impl HandlerBehaviour {
    /// A random behaviour. `failing_permille` is the number of failing messages per thousand.
    pub fn random(random: &mut SplitMix64, failing_permille: u64, kills: bool) -> Self {
        if !random.permille(failing_permille) {
            return match random.between(0, 19) {
                0 => Self::Skip,
                1 => Self::Unwanted,
                2 => Self::Slow,
                _ => Self::Plain,
            };
        }
        let times = u32::try_from(random.between(1, 7)).unwrap_or(1);
        match random.between(0, 11) {
            6 => Self::Panics(times),
            7 => Self::Hangs(times.min(2)),
            8..=9 => Self::Poison,
            10 if kills => Self::Kills(times),
            11 => Self::Malformed,
            _ => Self::Fails(times),
        }
    }

    /// Parses the behaviour from a message's type.
    pub fn parse(kind: &str) -> Self {
        let name = kind.split_once('.').map_or(kind, |(_, name)| name);
        let (name, times) = name.split_once('-').unwrap_or((name, ""));
        let times = times.parse().unwrap_or(1);
        match name {
            "slow" => Self::Slow,
            "skip" => Self::Skip,
            "unwanted" => Self::Unwanted,
            "fails" => Self::Fails(times),
            "panics" => Self::Panics(times),
            "hangs" => Self::Hangs(times),
            "poison" => Self::Poison,
            "kills" => Self::Kills(times),
            "malformed" => Self::Malformed,
            _ => Self::Plain,
        }
    }

    /// The message's type, for a handler inside the transaction or with a call before it.
    pub fn message_type(self, calls: bool) -> String {
        let prefix = if calls { "call" } else { "inside" };
        match self {
            Self::Plain => format!("{prefix}.plain"),
            Self::Slow => format!("{prefix}.slow"),
            Self::Skip => format!("{prefix}.skip"),
            Self::Unwanted => "nobodys.unwanted".to_owned(),
            Self::Fails(times) => format!("{prefix}.fails-{times}"),
            Self::Panics(times) => format!("{prefix}.panics-{times}"),
            Self::Hangs(times) => format!("{prefix}.hangs-{times}"),
            Self::Poison => format!("{prefix}.poison"),
            Self::Kills(times) => format!("{prefix}.kills-{times}"),
            Self::Malformed => format!("{prefix}.malformed"),
        }
    }

    /// Whether the message itself causes no delay.
    pub const fn is_plain(self) -> bool {
        matches!(self, Self::Plain | Self::Skip | Self::Unwanted)
    }
}
