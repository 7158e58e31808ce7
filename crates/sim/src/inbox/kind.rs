//! What a handler makes of a message; it is written in the message's type, behind the form of the handler.

use relevo_core::random::SplitMix64;

/// What a handler makes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is done.
    Plain,
    /// It is done, and takes about as long as its handler may.
    Slow,
    /// There is nothing to do.
    Skip,
    /// No handler wants it.
    Unwanted,
    /// It fails so many times.
    Fails(u32),
    /// Its handler panics so many times.
    Panics(u32),
    /// Its handler never returns, so many times.
    Hangs(u32),
    /// It can never pass, until the handler is mended.
    Poison,
    /// It takes its process down, so many times.
    Kills(u32),
    /// It is no message of ours.
    Malformed,
}

impl Kind {
    /// One of them; plain ones if nothing is to go wrong in so many of a thousand cases.
    pub fn random(random: &mut SplitMix64, trouble: u64, kills: bool) -> Self {
        if !random.permille(trouble) {
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

    /// Reads it from a message's type.
    pub fn parse(kind: &str) -> Self {
        let word = kind.split_once('.').map_or(kind, |(_, word)| word);
        let (word, times) = word.split_once('-').unwrap_or((word, ""));
        let times = times.parse().unwrap_or(1);
        match word {
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

    /// The message's type, for a handler that works inside of the transaction or calls before it.
    pub fn word(self, calls: bool) -> String {
        let form = if calls { "call" } else { "inside" };
        match self {
            Self::Plain => format!("{form}.plain"),
            Self::Slow => format!("{form}.slow"),
            Self::Skip => format!("{form}.skip"),
            Self::Unwanted => "nobodys.unwanted".to_owned(),
            Self::Fails(times) => format!("{form}.fails-{times}"),
            Self::Panics(times) => format!("{form}.panics-{times}"),
            Self::Hangs(times) => format!("{form}.hangs-{times}"),
            Self::Poison => format!("{form}.poison"),
            Self::Kills(times) => format!("{form}.kills-{times}"),
            Self::Malformed => format!("{form}.malformed"),
        }
    }

    /// Whether nothing about the message keeps it from flowing.
    pub const fn is_plain(self) -> bool {
        matches!(self, Self::Plain | Self::Skip | Self::Unwanted)
    }
}
