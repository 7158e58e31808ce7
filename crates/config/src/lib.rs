//! Layered configuration: a TOML file, then variables, then flags, read into serde types.
//!
//! [`Layers`] merges the sources into one tree, in which every value has its origin. A [`Reader`] reads sections of
//! that tree into types that implement [`Section`]. It reports every problem with its file and line, or its variable
//! or flag, and never prints a value that may be a secret. [`Reader::finish`] also reports every key that no section
//! read, with the nearest known name.
//!
//! ```
//! use relevo_config::{KeyPath, Layers, Section};
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! #[serde(default)]
//! struct Log {
//!     /// The minimum level.
//!     level: String,
//! }
//!
//! impl Default for Log {
//!     fn default() -> Self {
//!         Self { level: "info".to_owned() }
//!     }
//! }
//!
//! impl Section for Log {}
//!
//! let mut layers = Layers::default();
//! layers.file("app.toml", "[log]\nlevle = 'debug'\n");
//! let mut reader = layers.reader();
//! reader.read::<Log>(&KeyPath::of(&["log"]));
//! let problems = reader.finish().unwrap_err();
//! assert_eq!(problems[0].to_string(), "unknown key `levle` in `log` at app.toml:2; hint: did you mean `level`?");
//! ```

mod deserialize;
mod layers;
mod path;
mod problem;
mod reader;
pub mod reference;
mod secret;
mod section;
mod tls;
mod tree;
mod units;

pub use layers::Layers;
pub use path::{KeyPath, is_name, variable_word};
pub use problem::Problem;
pub use reader::{Reader, Setting};
pub use secret::{HIDDEN, Secret, without_secrets};
pub use section::{Checks, Configured, Section};
pub use tls::Certificates;
pub use tree::Origin;
pub use units::{DurationText, SizeText, format_duration, format_size, parse_duration, parse_size};
