//! The share of traces starting here that is exported.

use std::fmt;
use std::str::FromStr;

use relevo_core::random::mix;
use relevo_core::trace::TraceId;
use uuid::Uuid;

const MILLION: u32 = 1_000_000;

/// A share of all traces, from none to all, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ratio(u32);

impl Ratio {
    /// Starts no trace. Traces that other services started are continued.
    pub const NONE: Self = Self(0);
    /// All messages are traced.
    pub const ALL: Self = Self(MILLION);

    /// A share of `part` in a million. Values above a million count as a million.
    pub const fn per_million(part: u32) -> Self {
        Self(if part > MILLION { MILLION } else { part })
    }

    /// Whether a trace is sampled. The same id gives the same result everywhere.
    pub(super) fn samples(self, trace: TraceId) -> bool {
        let (high, low) = Uuid::from_bytes(*trace.as_bytes()).as_u64_pair();
        // Ids may be sequential or based on a clock, so all their bits must have the same influence.
        let part = mix(high ^ mix(low)) % u64::from(MILLION);
        part < u64::from(self.0)
    }
}

/// The error for text that is not a valid ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ratio is a number from 0 to 1, with at most six decimals")]
pub struct RatioError;

impl FromStr for Ratio {
    type Err = RatioError;

    fn from_str(text: &str) -> Result<Self, RatioError> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.len() > 6 {
            return Err(RatioError);
        }
        let whole: u32 = whole.parse().map_err(|_| RatioError)?;
        let decimals: u32 = format!("{decimals:0<6}").parse().map_err(|_| RatioError)?;
        let millionths = whole.checked_mul(MILLION).and_then(|whole| whole.checked_add(decimals));
        millionths.filter(|part| *part <= MILLION).map(Self).ok_or(RatioError)
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:06}", self.0 % MILLION);
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{}", self.0 / MILLION),
            decimals => write!(f, "{}.{decimals}", self.0 / MILLION),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Ratio {
        text.parse().unwrap()
    }

    fn trace(number: u128) -> TraceId {
        TraceId::from_bytes(number.to_be_bytes()).expect("not zero")
    }

    #[test]
    fn a_ratio_is_written_as_it_was_read() {
        for text in ["0", "0.01", "0.000001", "0.5", "1"] {
            assert_eq!(of(text).to_string(), text);
        }
        assert_eq!((of("1.0"), of("0.010")), (Ratio::ALL, Ratio::per_million(10_000)));
    }

    #[test]
    fn invalid_text_is_rejected() {
        for text in ["", "-0.1", "1.1", "2", "0.0000001", "1e-2", ".5", "5.", "+1", "99999999999"] {
            assert_eq!(text.parse::<Ratio>(), Err(RatioError), "{text}");
        }
    }

    #[test]
    fn none_samples_no_trace_and_all_samples_every_trace() {
        assert!((1..10_000).all(|number| Ratio::ALL.samples(trace(number)) && !Ratio::NONE.samples(trace(number))));
    }

    #[test]
    fn sequential_ids_and_ids_with_a_common_prefix_are_sampled_evenly() {
        for shift in [0, 64, 100] {
            let sampled =
                (1..=100_000).filter(|number| Ratio::per_million(10_000).samples(trace(number << shift))).count();
            assert!((900..1100).contains(&sampled), "{sampled} of 100 000 by bit {shift}");
        }
    }
}
