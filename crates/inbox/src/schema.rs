//! Validates payloads before their handler runs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::Value;

use crate::incoming::Incoming;

/// Validates payloads before their handler runs. A payload that does not match its schema is undecodable.
pub trait Validator: fmt::Debug + Send + Sync {
    /// Returns a readable description of what is wrong. A payload without a schema is valid.
    fn validate(&self, incoming: &Incoming) -> Result<(), String>;
}

/// Why schemas cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// A file or folder cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// Path of the file or folder.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// A file is not valid JSON.
    #[error("`{name}` is not valid JSON")]
    Json {
        /// Name of the schema.
        name: String,
        /// The parse error.
        source: serde_json::Error,
    },
    /// A file is not a valid JSON Schema.
    #[error("`{name}` is not a valid JSON Schema: {reason}")]
    Schema {
        /// Name of the schema.
        name: String,
        /// The compile error.
        reason: String,
    },
}

/// JSON Schemas by type and version.
///
/// File `TYPE.json` contains the schema of a type, `TYPE@VERSION.json` that of one version. A message names its version
/// in header [`JsonSchemas::VERSION`]; if that version has no file, the message has no schema. Schemas refer to each
/// other by file name: `{"$ref": "Money.json"}`.
pub struct JsonSchemas {
    schemas: Schemas,
    by_name: BTreeMap<String, SchemaIndex>,
    strict: bool,
}

impl JsonSchemas {
    /// Header with the schema version of a payload.
    pub const VERSION: &str = "schema-version";

    /// Reads every `.json` file of a folder.
    pub fn open(folder: &Path) -> Result<Self, SchemaError> {
        let unreadable = |path: &Path| {
            let path = path.to_owned();
            move |source| SchemaError::Read { path, source }
        };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable(folder))? {
            let path = entry.map_err(unreadable(folder))?.path();
            let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
            if path.extension().is_some_and(|extension| extension == "json") && !name.is_empty() {
                let text = std::fs::read_to_string(&path).map_err(unreadable(&path))?;
                files.push((name, text));
            }
        }
        Self::new(files)
    }

    /// Compiles schemas from their names, `TYPE` or `TYPE@VERSION`, and their text.
    pub fn new(files: impl IntoIterator<Item = (String, String)>) -> Result<Self, SchemaError> {
        let mut compiler = Compiler::new();
        let mut names = Vec::new();
        for (name, text) in files {
            let value: Value =
                serde_json::from_str(&text).map_err(|source| SchemaError::Json { name: name.clone(), source })?;
            compiler.add_resource(&location(&name), value).map_err(|error| schema_error(&name, &error))?;
            names.push(name);
        }
        let (mut schemas, mut by_name) = (Schemas::new(), BTreeMap::new());
        for name in names {
            let index =
                compiler.compile(&location(&name), &mut schemas).map_err(|error| schema_error(&name, &error))?;
            by_name.insert(name, index);
        }
        Ok(Self { schemas, by_name, strict: false })
    }

    /// Makes messages without a schema undecodable too.
    #[must_use]
    pub fn strict(self) -> Self {
        Self { strict: true, ..self }
    }
}

fn schema_error(name: &str, error: &boon::CompileError) -> SchemaError {
    SchemaError::Schema { name: name.to_owned(), reason: format!("{error:#}") }
}

/// All schemas are siblings under a root without a host. References between them resolve, and no URL is ever fetched.
fn location(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~@".contains(&byte);
    let escaped = |byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    format!("relevo:///{}.json", name.bytes().map(escaped).collect::<String>())
}

impl Validator for JsonSchemas {
    fn validate(&self, incoming: &Incoming) -> Result<(), String> {
        let name = match incoming.header(Self::VERSION) {
            Some(version) => format!("{}@{version}", incoming.kind()),
            None => incoming.kind().to_owned(),
        };
        let Some(index) = self.by_name.get(&name) else {
            return if self.strict { Err(format!("no schema `{name}`")) } else { Ok(()) };
        };
        let payload: Value = serde_json::from_slice(incoming.payload())
            .map_err(|error| format!("the payload is not valid JSON: {error}"))?;
        self.schemas
            .validate(&payload, *index)
            .map_err(|error| format!("the payload does not match schema `{name}`: {error:#}"))
    }
}

impl fmt::Debug for JsonSchemas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incoming::tests::incoming;

    const MONEY: &str = r#"{"type": "integer", "minimum": 0}"#;
    const ORDER: &str = r#"{"type": "object", "required": ["total"], "properties": {"total": {"$ref": "Money.json"}}}"#;
    const ORDER_2: &str = r#"{"type": "object", "required": ["sum"]}"#;

    fn schemas() -> JsonSchemas {
        let files = [("Money", MONEY), ("order.placed", ORDER), ("order.placed@2", ORDER_2)];
        JsonSchemas::new(files.map(|(name, text)| (name.to_owned(), text.to_owned()))).expect("schemas")
    }

    fn check(payload: &str, headers: &[(&str, &str)]) -> Result<(), String> {
        schemas().validate(&incoming("order.placed", payload, headers))
    }

    #[test]
    fn a_payload_is_validated_by_the_schema_of_its_type() {
        assert_eq!(check(r#"{"total": 5}"#, &[]), Ok(()));
        let error = check(r#"{"total": -5}"#, &[]).unwrap_err();
        assert!(error.contains("`order.placed`") && error.contains("minimum"), "{error}");
        assert!(check("{", &[]).unwrap_err().starts_with("the payload is not valid JSON"));
    }

    #[test]
    fn a_version_has_its_own_schema() {
        let second = [(JsonSchemas::VERSION, "2")];
        assert_eq!(check(r#"{"sum": 5}"#, &second), Ok(()));
        assert!(check(r#"{"total": 5}"#, &second).is_err());
    }

    #[test]
    fn a_payload_without_a_schema_passes_unless_strict() {
        assert_eq!(schemas().validate(&incoming("other", "x", &[])), Ok(()));
        assert_eq!(schemas().strict().validate(&incoming("other", "x", &[])), Err("no schema `other`".to_owned()));
    }

    #[test]
    fn schemas_are_read_from_a_folder_and_invalid_files_are_named() {
        let folder = std::env::temp_dir().join(format!("relevo-schemas-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("Money.json"), MONEY).unwrap();
        std::fs::write(folder.join("order.placed.json"), ORDER).unwrap();
        std::fs::write(folder.join("notes.txt"), "no schema").unwrap();
        let schemas = JsonSchemas::open(&folder).expect("schemas");
        assert!(schemas.validate(&incoming("order.placed", r#"{"total": "x"}"#, &[])).is_err());
        std::fs::write(folder.join("broken.json"), r#"{"type": 7}"#).unwrap();
        let error = JsonSchemas::open(&folder).unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(error.starts_with("`broken` is not a valid JSON Schema"), "{error}");
        assert!(JsonSchemas::open(&folder).unwrap_err().to_string().starts_with("cannot read"));
    }
}
