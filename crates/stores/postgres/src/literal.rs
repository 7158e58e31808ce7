//! Quotes values for statements in the simple protocol, which has no parameters.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

/// Builds a string literal that does not depend on `standard_conforming_strings`. It cannot contain a NUL.
pub(crate) fn literal(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 8);
    quoted.push_str(" E'");
    for char in text.chars() {
        match char {
            '\'' => quoted.push_str("''"),
            '\\' => quoted.push_str("\\\\"),
            '\0' => quoted.push('\u{fffd}'),
            other => quoted.push(other),
        }
    }
    quoted.push('\'');
    quoted
}

/// Builds a JSON literal. A NUL, which jsonb cannot store, becomes the replacement character.
pub(crate) fn json_literal(value: &Value) -> String {
    literal(&without_nul(value.to_string()))
}

/// Replaces NULs in JSON. An escaped backslash before `u0000` is not a NUL and stays.
fn without_nul(json: String) -> String {
    const NUL: &str = "\\u0000";
    if !json.contains(NUL) {
        return json;
    }
    let mut kept = String::with_capacity(json.len());
    let mut rest = json.as_str();
    while let Some(at) = rest.find('\\') {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix(NUL) {
            kept.push('\u{fffd}');
            rest = after;
        } else {
            // Skip the backslash and the character that it escapes.
            let (escape, after) = rest.split_at(2);
            kept.push_str(escape);
            rest = after;
        }
    }
    kept.push_str(rest);
    kept
}

/// Builds the literal of an optional text.
pub(crate) fn optional_literal(text: Option<&str>) -> String {
    text.map_or_else(|| "NULL".to_owned(), literal)
}

/// Milliseconds as a number, at most about 35 years.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(1 << 40)
}

pub(crate) fn join_with_commas(values: impl Iterator<Item = impl std::fmt::Display>) -> String {
    values.map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}

pub(crate) fn text_array<'a>(values: impl Iterator<Item = &'a str>) -> String {
    format!("ARRAY[{}]::text[]", values.map(literal).collect::<Vec<_>>().join(","))
}

pub(crate) fn bytea_array<'a>(values: impl Iterator<Item = &'a [u8]>) -> String {
    format!("ARRAY[{}]::bytea[]", values.map(bytea_literal).collect::<Vec<_>>().join(","))
}

/// Builds a bytes literal that does not depend on `standard_conforming_strings`.
pub(crate) fn bytea_literal(value: &[u8]) -> String {
    let mut text = String::with_capacity(value.len() * 2 + 8);
    text.push_str(" E'\\\\x");
    for byte in value {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_cannot_be_escaped() {
        assert_eq!(literal(r"a'b\'c"), r" E'a''b\\''c'");
        assert_eq!(literal("a\0b"), " E'a\u{fffd}b'");
    }
}
