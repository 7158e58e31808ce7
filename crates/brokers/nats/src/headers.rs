//! Encodes and decodes NATS headers.
//!
//! NATS trims header values and ends them at a line break, so it cannot carry every text. `CloudEvents` attributes are
//! percent-encoded, as the NATS binding requires. Other values are encoded only if NATS would change them. One more
//! header lists their names, so that a receiver knows which ones to decode.

use std::borrow::Cow;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use relevo_core::message::Headers;
use relevo_core::wire::{CONTENT_TYPE, EPOCH, SEQUENCE};

use crate::classify::Error;

/// The header that lists percent-encoded headers, separated by spaces. `CloudEvents` attributes are not listed.
pub(crate) const ENCODED_HEADER: &str = "relevo-encoded";

/// Characters that the binding requires to be encoded, besides all non-ASCII characters.
const ENCODED_CHARACTERS: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// Collects the headers of one message.
#[derive(Debug, Default)]
pub(crate) struct HeaderWriter {
    map: HeaderMap,
    bytes: usize,
    encoded_names: String,
    error: Option<Error>,
}

impl HeaderWriter {
    /// Adds a header of the message.
    pub(crate) fn put(&mut self, name: &str, value: &str) {
        let own = || name.parse().ok().filter(|_| is_allowed_name(name));
        let Some(header) = well_known(name).or_else(own) else {
            self.error = Some(Error::InvalidHeaders(name.to_owned()));
            return;
        };
        if !is_attribute(name) && survives_transport(value) {
            self.insert(header, Cow::Borrowed(value));
            return;
        }
        if !is_attribute(name) {
            self.encoded_names.push_str(if self.encoded_names.is_empty() { "" } else { " " });
            self.encoded_names.push_str(name);
        }
        self.insert(header, utf8_percent_encode(value, ENCODED_CHARACTERS).into());
    }

    /// Adds a NATS server header, whose value needs no encoding.
    pub(crate) fn put_control(&mut self, name: HeaderName, value: Cow<'_, str>) {
        self.insert(name, value);
    }

    /// Adds the list of encoded headers. Returns the headers and their size on the wire.
    pub(crate) fn finish(mut self) -> Result<(HeaderMap, usize), Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if !self.encoded_names.is_empty() {
            let names = std::mem::take(&mut self.encoded_names);
            self.insert(HeaderName::from_static(ENCODED_HEADER), names.into());
        }
        // The version line before the headers and the empty line after them.
        Ok((self.map, self.bytes + "NATS/1.0\r\n\r\n".len()))
    }

    fn insert(&mut self, name: HeaderName, value: Cow<'_, str>) {
        let text: &str = name.as_ref();
        self.bytes += text.len() + value.len() + ": \r\n".len();
        // Neither panics: the name was parsed, and values with a line break were encoded before.
        self.map.insert(name, HeaderValue::from(value.into_owned()));
    }
}

/// Decodes the headers of a message, for consumers that use only the client library. Headers that only the server or
/// the encoding uses are left out.
pub fn decode_headers(map: &HeaderMap) -> Headers {
    let named = map.get_last(HeaderName::from_static(ENCODED_HEADER)).map_or("", HeaderValue::as_str);
    let mut headers = Headers::new();
    for (name, values) in map.iter() {
        let name: &str = name.as_ref();
        let Some(value) = values.last().filter(|_| is_allowed_name(name)) else { continue };
        let encoded = is_attribute(name) || named.split(' ').any(|encoded| encoded == name);
        let value = if encoded { percent_decode(value.as_str()) } else { value.as_str().into() };
        headers.insert(name.to_owned(), value.into_owned());
    }
    headers
}

fn percent_decode(text: &str) -> Cow<'_, str> {
    // A value from a sender that does not follow the binding may not be encoded; it stays as it is.
    percent_decode_str(text).decode_utf8().unwrap_or(Cow::Borrowed(text))
}

/// Whether a header is a `CloudEvents` attribute, whose value is always encoded.
fn is_attribute(name: &str) -> bool {
    name.starts_with("ce-")
}

/// Whether a message may use this name. The server acts on its own headers: one of them purges the stream.
fn is_allowed_name(name: &str) -> bool {
    let server = name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-"));
    !server && !name.is_empty() && name != ENCODED_HEADER
}

fn survives_transport(value: &str) -> bool {
    value.trim().len() == value.len() && !value.contains(char::is_control)
}

/// The header names that every message has, without an allocation.
fn well_known(name: &str) -> Option<HeaderName> {
    const NAMES: [&str; 10] = [
        "ce-specversion",
        "ce-id",
        "ce-source",
        "ce-type",
        "ce-subject",
        "ce-time",
        "ce-partitionkey",
        CONTENT_TYPE,
        SEQUENCE,
        EPOCH,
    ];
    NAMES.into_iter().find(|known| *known == name).map(HeaderName::from_static)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write_headers(headers: &Headers) -> Result<HeaderMap, Error> {
        let mut outgoing = HeaderWriter::default();
        for (name, value) in headers {
            outgoing.put(name, value);
        }
        Ok(outgoing.finish()?.0)
    }

    fn single_header(name: &str, value: &str) -> Headers {
        Headers::from([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn attributes_are_encoded_as_the_binding_requires() {
        let map = write_headers(&single_header("ce-partitionkey", "50% \"ñ\"")).expect("a legal name");
        assert_eq!(map.get("ce-partitionkey").map(HeaderValue::as_str), Some("50%25%20%22%C3%B1%22"));
    }

    #[test]
    fn a_safe_value_is_sent_unchanged() {
        let map = write_headers(&single_header("x-text", "50% \"ñ\"")).expect("a legal name");
        assert_eq!(map.get("x-text").map(HeaderValue::as_str), Some("50% \"ñ\""));
        assert_eq!(map.get(ENCODED_HEADER), None);
    }

    #[test]
    fn an_unsafe_value_is_encoded_and_its_header_listed() {
        let map = write_headers(&single_header("x-text", " two\r\nlines")).expect("a legal name");
        assert_eq!(map.get("x-text").map(HeaderValue::as_str), Some("%20two%0D%0Alines"));
        assert_eq!(map.get(ENCODED_HEADER).map(HeaderValue::as_str), Some("x-text"));
    }

    #[test]
    fn invalid_names_and_names_of_the_server_are_rejected() {
        for name in ["", "a b", "a:b", "ñ", "a\r\nb", "Nats-Rollup", "nats-msg-id", "NATS-TTL", ENCODED_HEADER] {
            assert!(matches!(write_headers(&single_header(name, "v")), Err(Error::InvalidHeaders(_))), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_value_survives_a_round_trip(
            headers in prop::collection::btree_map("(ce-|x-)?[!-9;-~]{1,8}", any::<String>(), 0..6)
        ) {
            prop_assume!(headers.keys().all(|name| is_allowed_name(name)));
            let mut outgoing = HeaderWriter::default();
            for (name, value) in &headers {
                outgoing.put(name, value);
            }
            let (map, bytes) = outgoing.finish().expect("legal names");
            // Read the headers as a client does: each value is trimmed.
            let mut read = HeaderMap::new();
            let mut length = "NATS/1.0\r\n\r\n".len();
            for (name, values) in map.iter() {
                let value = values[0].as_str();
                prop_assert!(!value.contains(['\r', '\n']));
                length += format!("{name}: {value}\r\n").len();
                read.insert(name.clone(), value.trim());
            }
            prop_assert_eq!(length, bytes);
            prop_assert_eq!(decode_headers(&read), headers);
        }
    }
}
