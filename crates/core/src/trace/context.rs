//! Trace ids, span ids, and the `traceparent` header.

use std::fmt;

use crate::message::MessageId;

/// Identifies a trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId([u8; 16]);

/// Identifies a span within its trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// Creates an id from bytes. Returns `None` if all bytes are zero, which is not a valid id.
    pub fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// The trace id of a message that carries no trace context: its own id.
    pub fn of_message(id: MessageId) -> Option<Self> {
        Self::from_bytes(*id.as_uuid().as_bytes())
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl SpanId {
    /// Creates an id from bytes. Returns `None` if all bytes are zero, which is not a valid id.
    pub fn from_bytes(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A reference to a span: the content of a `traceparent` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace.
    pub trace: TraceId,
    /// The span within the trace.
    pub span: SpanId,
    /// Whether the trace is recorded.
    pub sampled: bool,
}

impl SpanContext {
    /// Parses a `traceparent` header. Returns `None` if it is malformed. From a later version it reads the fields that
    /// this version knows. Allocates nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut next = || parts.next();
        let (version, trace, span, flags) = (next()?, next()?, next()?, next()?);
        let [version] = hex::<1>(version)?;
        let [flags] = hex::<1>(flags)?;
        let (trace, span) = (TraceId::from_bytes(hex(trace)?)?, SpanId::from_bytes(hex(span)?)?);
        let fields_end = version != 0 || next().is_none();
        (version != 0xff && fields_end).then_some(Self { trace, span, sampled: flags & 1 == 1 })
    }
}

/// Formats the context as a `traceparent` header.
impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

/// Decodes lower-case hexadecimal digits, as the W3C recommendation requires.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_context_survives_a_round_trip() {
        for text in [
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000001-0000000000000001-00",
        ] {
            assert_eq!(SpanContext::parse(text).map(|context| context.to_string()).as_deref(), Some(text));
        }
    }

    #[test]
    fn only_a_later_version_may_have_more_fields() {
        let known = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read = |text: String| SpanContext::parse(&text).map(|context| context.to_string());
        let this = Some(format!("00-{known}"));
        assert_eq!([read(format!("01-{known}")), read(format!("cc-{known}-later-field"))], [this.clone(), this]);
        assert_eq!([read(format!("00-{known}-more")), read(format!("ff-{known}"))], [None, None]);
        assert_eq!(read(format!("01-{known}more")), None, "flags are two digits in every version");
    }

    #[test]
    fn only_the_last_flag_bit_means_sampled() {
        let sampled = |flags: &str| {
            let text = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
            SpanContext::parse(&text).map(|context| context.sampled)
        };
        assert_eq!([sampled("00"), sampled("01"), sampled("02"), sampled("03")], [false, true, false, true].map(Some));
        assert_eq!(sampled("0"), None);
    }
}
