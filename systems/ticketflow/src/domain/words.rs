//! Enumerations with one word per value, the same in Rust, JSON, SQL and on the page.

use std::fmt;

/// An unexpected word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord {
    /// The accepted words.
    pub expected: &'static [&'static str],
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "must be one of {}", self.expected.join(", "))
    }
}

impl std::error::Error for UnknownWord {}

/// Declares an enumeration with its words.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$of])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// All values, in display order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// Their words, in the same order.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::domain::UnknownWord;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::domain::UnknownWord { expected: Self::WORDS }),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }
    };
}

pub(super) use words;
