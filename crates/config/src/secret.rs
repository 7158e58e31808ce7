//! A text that is never printed.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Replaces a secret in all output.
pub const HIDDEN: &str = "<secret>";
/// By this name the deserializer recognises a secret.
pub(crate) const TYPE_NAME: &str = "relevo_config::Secret";
/// The `format` of a secret in a schema.
pub(crate) const FORMAT: &str = "secret";

/// A text that `Debug`, `Display` and serde do not print.
///
/// A field `X` of this type is set by the key `X`, by `X_file`, which names a file with the value, or by `X_env`, which
/// names a variable with the value.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for Secret {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Secret;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Secret, D::Error> {
                String::deserialize(deserializer).map(Secret)
            }
        }
        deserializer.deserialize_newtype_struct(TYPE_NAME, Visitor)
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": FORMAT })
    }
}

/// A text for an error message. A URL or a login, which may contain a password, is replaced.
pub fn without_secrets(text: &str) -> &str {
    if text.contains("://") || text.contains('@') { HIDDEN } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::new("sesame");
        assert_eq!((format!("{secret:?}"), secret.to_string()), (HIDDEN.to_owned(), HIDDEN.to_owned()));
        assert_eq!(serde_json::to_value(&secret).ok(), Some(HIDDEN.into()));
    }

    #[test]
    fn a_url_or_login_is_not_printed() {
        assert_eq!(without_secrets("shop"), "shop");
        for text in ["postgres://me:sesame@db/shop", "me:sesame@db"] {
            assert_eq!(without_secrets(text), HIDDEN);
        }
    }
}
