//! The value of one configuration key: from the file, a variable, a flag or the default.

use std::collections::BTreeMap;
use std::fmt;

use relevo_observe::traces::Ratio;
use serde_json::Value as Json;
use toml::de::DeValue;

use super::keys::{Key, Kind};
use super::problem::Problem;
use super::secret::{Secret, shown};

/// A value of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Secret(Secret),
    Integer(i64),
    Ratio(Ratio),
    Boolean(bool),
    Texts(Vec<String>),
    Secrets(Vec<Secret>),
    Integers(Vec<i64>),
    /// Texts, whole numbers and booleans by name.
    Pairs(BTreeMap<String, Json>),
}

impl Value {
    /// Parses the text of a variable or a flag. The items of a list are separated by commas.
    pub(crate) fn parse(key: &Key, text: &str) -> Result<Self, Problem> {
        let wrong = || Problem::new(format!("`{}` is {}", key.name, key.kind.describe()));
        let number = |text: &str| text.trim().parse::<i64>().map_err(|_| wrong());
        let value = match key.kind {
            Kind::Text | Kind::Choice(_) => Self::Text(text.to_owned()),
            Kind::Secret => Self::Secret(Secret::new(text)),
            Kind::Integer { .. } => Self::Integer(number(text)?),
            Kind::Ratio => Self::Ratio(text.trim().parse().map_err(|_| wrong())?),
            Kind::Boolean => Self::Boolean(text.trim().parse().map_err(|_| wrong())?),
            Kind::Texts => Self::Texts(parts(text).map(str::to_owned).collect()),
            Kind::Secrets => Self::Secrets(parts(text).map(Secret::new).collect()),
            Kind::Integers { .. } => Self::Integers(parts(text).map(number).collect::<Result<_, _>>()?),
            Kind::Pairs | Kind::Scalars => {
                let pairs = parts(text).map(|part| {
                    let (name, value) = part.split_once('=').ok_or_else(wrong)?;
                    Ok((name.trim().to_owned(), scalar(key.kind, value.trim())))
                });
                Self::Pairs(pairs.collect::<Result<_, Problem>>()?)
            }
        };
        value.checked(key)
    }

    /// Parses the default of a key, which is written as in the file.
    pub(crate) fn default_of(key: &Key) -> Option<Self> {
        let text = key.default?;
        let inner = text.strip_prefix(['[', '{']).and_then(|text| text.strip_suffix([']', '}'])).unwrap_or(text);
        let plain = inner.replace('"', "");
        Some(Self::parse(key, &plain).expect("the default of every key is valid"))
    }

    /// Converts a value of the file. `None` if the key does not accept this type.
    pub(crate) fn of_file(kind: Kind, value: &DeValue<'_>) -> Option<Self> {
        match (kind, value) {
            (Kind::Secret, DeValue::String(text)) => Some(Self::Secret(Secret::new(text.as_ref()))),
            (_, DeValue::String(text)) => Some(Self::Text(text.as_ref().to_owned())),
            (Kind::Ratio, DeValue::Float(number)) => number.as_str().parse().ok().map(Self::Ratio),
            (Kind::Ratio, DeValue::Integer(number)) => number.as_str().parse().ok().map(Self::Ratio),
            (_, DeValue::Boolean(yes)) => Some(Self::Boolean(*yes)),
            (_, DeValue::Integer(_)) => integer(value).map(Self::Integer),
            (Kind::Texts, DeValue::Array(items)) => {
                let texts = items.iter().map(|item| text(item.get_ref()).map(str::to_owned));
                texts.collect::<Option<_>>().map(Self::Texts)
            }
            (Kind::Secrets, DeValue::Array(items)) => {
                let secrets = items.iter().map(|item| text(item.get_ref()).map(Secret::new));
                secrets.collect::<Option<_>>().map(Self::Secrets)
            }
            (Kind::Integers { .. }, DeValue::Array(items)) => {
                items.iter().map(|item| integer(item.get_ref())).collect::<Option<_>>().map(Self::Integers)
            }
            (Kind::Pairs | Kind::Scalars, DeValue::Table(table)) => {
                let pairs = table.iter().map(|(name, value)| {
                    let value = match value.get_ref() {
                        DeValue::String(text) => Json::from(text.as_ref()),
                        DeValue::Integer(_) if kind == Kind::Scalars => integer(value.get_ref())?.into(),
                        DeValue::Boolean(yes) if kind == Kind::Scalars => (*yes).into(),
                        _ => return None,
                    };
                    Some((name.get_ref().as_ref().to_owned(), value))
                });
                pairs.collect::<Option<_>>().map(Self::Pairs)
            }
            (_, DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_)) => None,
        }
    }

    /// Returns the value if the key accepts it.
    pub(crate) fn checked(self, key: &Key) -> Result<Self, Problem> {
        let not = |number: &i64| Problem::new(format!("`{}` is {}, not {number}", key.name, key.kind.describe()));
        match (key.kind, &self) {
            (Kind::Text, Self::Text(_))
            | (Kind::Secret, Self::Secret(_))
            | (Kind::Ratio, Self::Ratio(_))
            | (Kind::Boolean, Self::Boolean(_))
            | (Kind::Texts, Self::Texts(_))
            | (Kind::Secrets, Self::Secrets(_))
            | (Kind::Pairs | Kind::Scalars, Self::Pairs(_)) => {}
            (Kind::Integer { min, max }, Self::Integer(number)) => {
                if !(min..=max).contains(number) {
                    return Err(not(number));
                }
            }
            (Kind::Integers { min, max }, Self::Integers(numbers)) => {
                if let Some(number) = numbers.iter().find(|number| !(min..=max).contains(*number)) {
                    return Err(not(number));
                }
            }
            (Kind::Choice(words), Self::Text(text)) => {
                if !words.contains(&text.as_str()) {
                    let what = format!("`{}` is {}, not `{}`", key.name, key.kind.describe(), shown(text));
                    return Err(Problem::new(what).nearest(text, words.iter().copied()));
                }
            }
            _ => return Err(Problem::new(format!("`{}` is {}", key.name, key.kind.describe()))),
        }
        Ok(self)
    }

    /// The value as JSON. A secret is replaced by a fixed text.
    pub(crate) fn json(&self) -> Json {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Secret(secret) => secret.to_string().into(),
            Self::Integer(number) => (*number).into(),
            Self::Ratio(ratio) => ratio.to_string().parse::<f64>().map_or(Json::Null, Json::from),
            Self::Boolean(yes) => (*yes).into(),
            Self::Texts(texts) => texts.as_slice().into(),
            Self::Secrets(secrets) => secrets.iter().map(ToString::to_string).collect(),
            Self::Integers(numbers) => numbers.as_slice().into(),
            Self::Pairs(pairs) => pairs.clone().into_iter().collect(),
        }
    }
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn text<'a>(value: &'a DeValue<'_>) -> Option<&'a str> {
    match value {
        DeValue::String(text) => Some(text.as_ref()),
        _ => None,
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    }
}

/// Converts one text of a variable or a flag. If the key accepts scalars, it may be a number or a boolean.
fn scalar(kind: Kind, text: &str) -> Json {
    let plain = || text.parse::<i64>().map(Json::from).or_else(|_| text.parse::<bool>().map(Json::from));
    match kind {
        Kind::Scalars => plain().unwrap_or_else(|_| text.into()),
        _ => text.into(),
    }
}

/// Formats the value as in the file. A secret is replaced by a fixed text.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Secret(secret) => write!(f, "\"{secret}\""),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Ratio(ratio) => write!(f, "{ratio}"),
            Self::Boolean(yes) => write!(f, "{yes}"),
            Self::Texts(texts) => write!(f, "[{}]", joined(texts.iter().map(|text| format!("{text:?}")))),
            Self::Secrets(secrets) => write!(f, "[{}]", joined(secrets.iter().map(|secret| format!("\"{secret}\"")))),
            Self::Integers(numbers) => write!(f, "[{}]", joined(numbers.iter().map(ToString::to_string))),
            Self::Pairs(pairs) if pairs.is_empty() => f.write_str("{}"),
            Self::Pairs(pairs) => {
                write!(f, "{{ {} }}", joined(pairs.iter().map(|(name, value)| format!("{name:?} = {value}"))))
            }
        }
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: Kind) -> Key {
        Key::of_route("it", kind, "[]", "")
    }

    #[test]
    fn a_list_in_a_variable_is_separated_by_commas() {
        let parsed = |kind, text| Value::parse(&key(kind), text).map(|value| value.to_string()).unwrap();
        assert_eq!(parsed(Kind::Texts, "a, b,"), r#"["a", "b"]"#);
        assert_eq!(parsed(Kind::Integers { min: 1, max: 9 }, "1,2"), "[1, 2]");
        assert_eq!(parsed(Kind::Secrets, "amqp://me:sesame@a,amqp://b"), r#"["<secret>", "<secret>"]"#);
        assert_eq!(parsed(Kind::Scalars, "a=1,b=true,c=x"), r#"{ "a" = 1, "b" = true, "c" = "x" }"#);
        assert_eq!(parsed(Kind::Pairs, "a=1"), r#"{ "a" = "1" }"#);
        assert_eq!(parsed(Kind::Texts, ""), "[]");
    }

    #[test]
    fn a_ratio_is_a_number_from_0_to_1() {
        let parsed = |text| Value::parse(&key(Kind::Ratio), text).map(|value| (value.to_string(), value.json()));
        assert_eq!(parsed("0.01").unwrap(), ("0.01".to_owned(), serde_json::json!(0.01)));
        assert!(parsed("1.5").is_err() && parsed("1 %").is_err());
    }

    #[test]
    fn a_list_with_an_invalid_item_is_rejected() {
        let numbers = key(Kind::Integers { min: 1, max: 9 });
        for text in ["1,x", "1,10", "0"] {
            assert!(Value::parse(&numbers, text).is_err(), "{text}");
        }
        assert!(Value::parse(&key(Kind::Pairs), "a").is_err());
    }

    #[test]
    fn json_has_the_same_value_as_the_text() {
        let pairs = Value::parse(&key(Kind::Scalars), "a=1").unwrap();
        assert_eq!(pairs.json(), serde_json::json!({ "a": 1 }));
        let secrets = Value::parse(&key(Kind::Secrets), "sesame").unwrap();
        assert_eq!(secrets.json(), serde_json::json!(["<secret>"]));
    }
}
