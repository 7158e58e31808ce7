//! Tokens, which authenticate callers.

use std::fmt;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// A token, which is shown once. The database stores its SHA-256, which is enough for a random token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A new token of 244 random bits.
    pub fn random() -> Self {
        Self(format!("tf_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()))
    }

    /// A token of a caller.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// The text, for its owner.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The stored hash.
    pub(super) fn sha256(&self) -> Vec<u8> {
        Sha256::digest(self.0.as_bytes()).to_vec()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(token)")
    }
}
