//! Bytes as text where JSON needs it: the standard alphabet of RFC 4648, padded.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().enumerate().fold(0u32, |group, (at, byte)| group | u32::from(*byte) << (16 - 8 * at));
        for at in 0..4 {
            let digit = usize::try_from(group >> (18 - 6 * at) & 63).expect("six bits");
            text.push(if at <= chunk.len() { char::from(ALPHABET[digit]) } else { '=' });
        }
    }
    text
}

/// `None` if it is no base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    if text.len() - digits > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits * 3 / 4);
    for chunk in text[..digits].chunks(4) {
        let mut group = 0u32;
        for (at, byte) in chunk.iter().enumerate() {
            let digit = ALPHABET.iter().position(|known| known == byte)?;
            group |= u32::try_from(digit).ok()? << (18 - 6 * at);
        }
        bytes.extend_from_slice(&group.to_be_bytes()[1..chunk.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_and_the_examples_of_the_standard_hold() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in ["Zg", "Zg=", "Z===", "====", "Zm9v!mFy", "Zg==Zg=="] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
