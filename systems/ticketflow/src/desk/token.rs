//! Tokens: what callers show to be known.

use std::fmt;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// A token, told once. The desk keeps its SHA-256, which is enough for what nobody can guess.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A new one, of 244 random bits.
    pub fn random() -> Self {
        Self(format!("tf_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()))
    }

    /// One that somebody shows.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// The text, for the one who gets it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    pub(super) fn sha256(&self) -> Vec<u8> {
        Sha256::digest(self.0.as_bytes()).to_vec()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(token)")
    }
}
