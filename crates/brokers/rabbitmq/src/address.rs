//! Converts an address to an exchange and a routing key.

use relevo_core::slot::lane_of;

use crate::classify::Error;
use crate::config::{Config, NAME_BYTES_MAX};
use crate::topology::lane_routing_key;

/// The exchange and the routing key of an address: the parts before and after the first slash. Without a slash, the
/// address is a routing key of the configured exchange.
pub(crate) fn split_address<'a>(address: &'a str, config: &'a Config) -> (&'a str, &'a str) {
    address.split_once('/').unwrap_or((&config.exchange, address))
}

/// The exchange and the routing key for a message of this key. With lanes, the last word of the routing key is the
/// lane.
pub(crate) fn resolve_address<'a>(address: &'a str, key: &str, config: &'a Config) -> Result<(&'a str, String), Error> {
    let (exchange, routing_key) = split_address(address, config);
    let routing_key = match config.lanes {
        Some(lanes) => lane_routing_key(routing_key, lane_of(key, lanes)),
        None => routing_key.to_owned(),
    };
    if exchange.len() > NAME_BYTES_MAX {
        return Err(Error::InvalidAddress("its exchange is longer than 255 bytes"));
    }
    if routing_key.len() > NAME_BYTES_MAX {
        return Err(Error::InvalidAddress("its routing key is longer than 255 bytes"));
    }
    Ok((exchange, routing_key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config { exchange: "events".to_owned(), ..Config::new("amqp://localhost") }
    }

    #[test]
    fn the_first_slash_ends_the_exchange() {
        let config = config();
        for (address, exchange, key) in [
            ("orders", "events", "orders"),
            ("audit/orders.eu", "audit", "orders.eu"),
            ("audit/", "audit", ""),
            ("/orders", "", "orders"),
            ("audit/a/b", "audit", "a/b"),
            ("", "events", ""),
        ] {
            assert_eq!(split_address(address, &config), (exchange, key), "{address}");
        }
    }

    #[test]
    fn the_lane_is_the_last_word_of_the_routing_key() {
        let config = Config { lanes: Some(8), ..config() };
        // The slot of `o-1` is 92.
        assert_eq!(resolve_address("orders", "o-1", &config).expect("an address"), ("events", "orders.4".to_owned()));
    }

    #[test]
    fn names_that_are_too_long_are_rejected() {
        let config = config();
        let long = "x".repeat(256);
        assert!(matches!(resolve_address(&long, "k", &config), Err(Error::InvalidAddress(_))));
        assert!(matches!(resolve_address(&format!("{long}/a"), "k", &config), Err(Error::InvalidAddress(_))));
        assert!(resolve_address(&"x".repeat(255), "k", &config).is_ok());
    }
}
