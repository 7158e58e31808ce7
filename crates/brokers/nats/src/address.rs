//! Converts addresses to subjects.

use std::fmt::Write as _;

use relevo_core::slot::lane_of;

use crate::classify::Error;

/// The maximum length of an address. The protocol line also holds the reply inbox and two numbers, and the server
/// closes a connection whose line exceeds `max_control_line`, 4 096 bytes by default.
const BYTES_MAX: usize = 3_900;

/// The subject of an address, followed by the lane token if there are lanes.
pub(crate) fn subject(address: &str, key: &str, lanes: Option<u16>) -> Result<String, Error> {
    let invalid = |reason| Err(Error::InvalidAddress { address: truncated(address), reason });
    if address.len() > BYTES_MAX {
        return invalid("it is too long for a protocol line");
    }
    if address.contains(|char: char| char.is_whitespace() || char.is_control()) {
        return invalid("it contains white space or a control character");
    }
    if address.split('.').any(str::is_empty) {
        return invalid("a token between its dots is empty");
    }
    if address.split('.').any(|token| token == "*" || token == ">") {
        return invalid("it contains a wildcard, which only subscribers may use");
    }
    if ["$JS", "$SYS"].contains(&address.split('.').next().unwrap_or_default()) {
        return invalid("the prefix is reserved for the server");
    }
    let mut subject = String::with_capacity(address.len() + 4);
    subject.push_str(address);
    if let Some(lanes) = lanes {
        write!(subject, ".{}", lane_of(key, lanes)).expect("writing to a string cannot fail");
    }
    Ok(subject)
}

fn truncated(address: &str) -> String {
    if address.chars().nth(100).is_some() {
        address.chars().take(100).chain(['…']).collect()
    } else {
        address.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use relevo_core::Class;

    use super::*;

    #[test]
    fn an_invalid_address_is_blocked_before_it_is_sent() {
        let long = "a".repeat(4_000);
        for address in
            ["", ".", "a..b", ".a", "a.", "a b", "a\tb", "a\r\nb", "*", "a.>", "a.*.b", "$JS.API.INFO", "$SYS.x", &long]
        {
            let error = subject(address, "k", None).expect_err(address);
            assert_eq!(error.class(), Class::Blocked);
            assert!(error.to_string().len() < 300, "{error}");
        }
    }

    #[test]
    fn a_token_that_contains_a_wildcard_character_is_a_subject() {
        for address in ["a", "a.b-c_d.E", "a*b", "a.b>", "ñ.鍵", "$KV.bucket.key"] {
            assert_eq!(subject(address, "k", None).expect("a subject"), address);
        }
    }

    #[test]
    fn the_lane_of_the_key_is_the_last_token_of_the_subject() {
        // The same slots as everywhere in Relevo: 92 and 43.
        assert_eq!(subject("orders", "o-1", Some(4)).expect("a subject"), "orders.0");
        assert_eq!(subject("orders", "o-2", Some(4)).expect("a subject"), "orders.3");
    }
}
