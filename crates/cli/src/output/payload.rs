//! A payload as people can read it.

use std::io::{self, Write};

use serde_json::Value;

use super::is_json;

/// So much of a payload that is no text is shown.
const HEX_BYTES_MAX: usize = 1024;
const HEX_LINE: usize = 16;

/// JSON is laid out, text is text, anything else is bytes.
pub(crate) fn write(out: &mut impl Write, content_type: &str, payload: &[u8]) -> io::Result<()> {
    if is_json(content_type)
        && let Ok(value) = serde_json::from_slice::<Value>(payload)
    {
        return writeln!(out, "{value:#}");
    }
    let is_plain = |text: &str| !text.contains(|char: char| char.is_control() && !matches!(char, '\n' | '\t' | '\r'));
    match std::str::from_utf8(payload).ok().filter(|text| is_plain(text)) {
        Some(text) => writeln!(out, "{text}"),
        None => hex(out, payload),
    }
}

fn hex(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let shown = &bytes[..bytes.len().min(HEX_BYTES_MAX)];
    for (at, line) in shown.chunks(HEX_LINE).enumerate() {
        let digits = line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        let readable = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
        let text: String = line.iter().map(readable).collect();
        writeln!(out, "{:08x}  {digits:48} {text}", at * HEX_LINE)?;
    }
    if bytes.len() > shown.len() {
        writeln!(out, "… {} more bytes; `--raw` writes all of them", bytes.len() - shown.len())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(content_type: &str, payload: &[u8]) -> String {
        let mut out = Vec::new();
        write(&mut out, content_type, payload).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_payload_is_shown_as_what_it_is() {
        assert_eq!(shown("application/json", b"{\"n\":1}"), "{\n  \"n\": 1\n}\n");
        assert_eq!(shown("application/json", b"{broken"), "{broken\n");
        assert_eq!(shown("text/plain", "señal\n".as_bytes()), "señal\n\n");
        let hex = shown("application/octet-stream", b"a\0\xffb");
        assert_eq!(hex, format!("00000000  {:48} a..b\n", "61 00 ff 62"));
        assert!(shown("text/plain", b"\x1b[2J").starts_with("00000000  1b 5b 32 4a"), "no tricks");
    }

    #[test]
    fn a_long_payload_is_cut_and_says_so() {
        let hex = shown("application/octet-stream", &[0; HEX_BYTES_MAX + 1]);
        assert!(hex.ends_with("… 1 more bytes; `--raw` writes all of them\n"), "{hex}");
    }
}
