//! Durations and sizes as people write them: `"30s"`, `"500ms"`, `"10MiB"`.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MILLIS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
const BYTES: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1000),
    ("B", 1),
];
/// What a duration must be, for an error message.
pub(crate) const DURATION: &str = "a duration such as `\"30s\"`, with the unit `ms`, `s`, `m`, `h` or `d`";
const SIZE: &str = "a size such as `\"10MiB\"`, with the unit `B`, `KiB`, `MiB` or `GiB`";

/// Parses a whole number with a unit, such as `500ms`, `30s`, `5m`, `2h` or `7d`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    parse(text, &MILLIS).map(Duration::from_millis)
}

/// Parses a whole number of bytes with a unit, such as `512B`, `64KiB` or `10MiB`.
pub fn parse_size(text: &str) -> Option<u64> {
    parse(text, &BYTES)
}

/// Formats a duration as [`parse_duration`] reads it, in the largest unit without a fraction.
pub fn format_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 { "0s".to_owned() } else { format(millis, &MILLIS, "ms") }
}

/// Formats a size as [`parse_size`] reads it, in the largest binary unit without a fraction.
pub fn format_size(bytes: u64) -> String {
    if bytes == 0 { "0B".to_owned() } else { format(bytes, &BYTES[..4], "B") }
}

fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn format(number: u64, units: &[(&str, u64)], smallest: &str) -> String {
    let unit = units.iter().find(|(_, factor)| number.is_multiple_of(*factor));
    unit.map_or_else(|| format!("{number}{smallest}"), |(name, factor)| format!("{}{name}", number / factor))
}

/// The form of a [`Duration`] in a configuration, for `#[serde(with = "DurationText")]`. Also for an option or a list.
pub enum DurationText {}

/// The form of a number of bytes in a configuration, for `#[serde(with = "SizeText")]`. Also for an option.
pub enum SizeText {}

macro_rules! text_form {
    ($form:ident, $name:literal, $format:literal, $trait:ident) => {
        impl $form {
            /// Serializes as text.
            pub fn serialize<T: $trait, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
                value.write(serializer)
            }

            /// Deserializes from text.
            pub fn deserialize<'de, T: $trait, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
                T::read(deserializer)
            }
        }

        impl JsonSchema for $form {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": $format })
            }
        }
    };
}

text_form!(DurationText, "Duration", "duration", DurationForm);
text_form!(SizeText, "Size", "size", SizeForm);

/// What [`DurationText`] can read and write.
pub trait DurationForm: Sized {
    /// Writes it.
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
    /// Reads it.
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

/// What [`SizeText`] can read and write.
pub trait SizeForm: Sized {
    /// Writes it.
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
    /// Reads it.
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

impl DurationForm for Duration {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*self))
    }

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_any(TextVisitor(DURATION))?;
        parse_duration(&text).ok_or_else(|| expected(DURATION))
    }
}

impl DurationForm for Option<Duration> {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.map(format_duration).serialize(serializer)
    }

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Duration::read(deserializer).map(Some)
    }
}

impl DurationForm for Vec<Duration> {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(|duration| format_duration(*duration)))
    }

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Item(Duration);
        impl<'de> Deserialize<'de> for Item {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Duration::read(deserializer).map(Self)
            }
        }
        Ok(Vec::<Item>::deserialize(deserializer)?.into_iter().map(|item| item.0).collect())
    }
}

macro_rules! size_form {
    ($($number:ty),*) => {$(
        impl SizeForm for $number {
            fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&format_size(u64::try_from(*self).unwrap_or(u64::MAX)))
            }

            fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = deserializer.deserialize_any(TextVisitor(SIZE))?;
                parse_size(&text).and_then(|size| size.try_into().ok()).ok_or_else(|| expected(SIZE))
            }
        }

        impl SizeForm for Option<$number> {
            fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.map(|size| format_size(u64::try_from(size).unwrap_or(u64::MAX))).serialize(serializer)
            }

            fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <$number>::read(deserializer).map(Some)
            }
        }
    )*};
}

size_form!(usize, u64, u32);

fn expected<E: Error>(what: &str) -> E {
    E::custom(format!("must be {what}"))
}

/// Accepts text alone: a number without a unit is a mistake.
struct TextVisitor(&'static str);

impl Visitor<'_> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_read_as_they_are_written() {
        for (text, millis) in [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000)]
        {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)));
            assert_eq!(format_duration(Duration::from_millis(millis)), text);
        }
        for (text, bytes) in [("512B", 512), ("64KiB", 65_536), ("10MiB", 10 << 20), ("8GiB", 8 << 30)] {
            assert_eq!((parse_size(text), format_size(bytes).as_str()), (Some(bytes), text));
        }
        assert_eq!((parse_duration("90 s"), parse_size("1 MB")), (Some(Duration::from_secs(90)), Some(1_000_000)));
        for text in ["", "30", "s", "-1s", "1.5s", "30 sec", "99999999999999999999d"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        assert_eq!((format_duration(Duration::ZERO), format_size(1500)), ("0s".to_owned(), "1500B".to_owned()));
    }
}
