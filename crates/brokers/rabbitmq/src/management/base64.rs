//! Base64 as HTTP's basic login wants it.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let index = (bits >> (18 - 6 * place)) & 63;
            text.push(if place <= group.len() { char::from(ALPHABET[index as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::encode;

    #[test]
    fn logins_are_encoded_with_and_without_padding() {
        assert_eq!(encode(b"guest:guest"), "Z3Vlc3Q6Z3Vlc3Q=");
        assert_eq!(encode(b"ab"), "YWI=");
        assert_eq!(encode(b"a"), "YQ==");
        assert_eq!(encode(b"abc"), "YWJj");
    }
}
