//! Validation of user input.

/// The longest title, in characters.
pub const TITLE_MAX: usize = 200;
/// The longest description or comment, in characters.
pub const TEXT_MAX: usize = 10_000;
/// The longest name of a person, in characters.
pub const NAME_MAX: usize = 100;
/// The longest e-mail address, in characters.
pub const EMAIL_MAX: usize = 254;

/// An invalid field: a code for programs and a sentence for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `missing`, `empty`, `too_long`, `control_character`, `malformed`, `unknown`.
    pub code: &'static str,
    /// The sentence.
    pub message: String,
}

impl Fault {
    /// A fault with this code and this sentence.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// One visible line: a title or a name. A line break could forge a header of an e-mail.
pub fn line(value: &str, characters_max: usize) -> Result<(), Fault> {
    text_of(value, characters_max, char::is_control)
}

/// Text of several lines.
pub fn text(value: &str, characters_max: usize) -> Result<(), Fault> {
    text_of(value, characters_max, |character| character.is_control() && !matches!(character, '\n' | '\r' | '\t'))
}

/// A syntactically valid address. Its mail server decides whether it exists.
pub fn email(value: &str) -> Result<(), Fault> {
    line(value, EMAIL_MAX)?;
    let is_plain =
        |character: char| !character.is_whitespace() && !matches!(character, '<' | '>' | ',' | ';' | '"' | '@');
    match value.split_once('@') {
        Some((name, host))
            if (1..=64).contains(&name.len())
                && name.chars().all(is_plain)
                && !host.is_empty()
                && host.chars().all(|character| character.is_alphanumeric() || matches!(character, '-' | '.'))
                && host.split('.').all(|label| !label.is_empty())
                // The e-mail library must accept the address, or the e-mail could never be sent.
                && value.parse::<lettre::Address>().is_ok() =>
        {
            Ok(())
        }
        _ => Err(Fault::new("malformed", "must be an e-mail address, as `ana@example.org`")),
    }
}

fn text_of(value: &str, characters_max: usize, is_forbidden: impl Fn(char) -> bool) -> Result<(), Fault> {
    if value.trim().is_empty() {
        return Err(Fault::new("empty", "must not be empty"));
    }
    let characters = value.chars().count();
    if characters > characters_max {
        let message = format!("must have at most {characters_max} characters, has {characters}");
        return Err(Fault::new("too_long", message));
    }
    match value.chars().find(|character| is_forbidden(*character)) {
        Some(character) => {
            let message = format!("must not have the control character U+{:04X}", u32::from(character));
            Err(Fault::new("control_character", message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(checked: Result<(), Fault>) -> &'static str {
        checked.map_or_else(|fault| fault.code, |()| "fine")
    }

    #[test]
    fn characters_are_counted_not_bytes() {
        assert_eq!(code(line(&"ñ".repeat(200), TITLE_MAX)), "fine");
        assert_eq!(code(line(&"ñ".repeat(201), TITLE_MAX)), "too_long");
        assert_eq!(code(line(" \u{a0} ", TITLE_MAX)), "empty");
    }

    #[test]
    fn only_texts_have_line_breaks_and_nothing_has_other_control_characters() {
        assert_eq!(code(line("a\r\nBcc: all@example.org", TITLE_MAX)), "control_character");
        assert_eq!(code(text("a\r\n\tb", TEXT_MAX)), "fine");
        assert_eq!(code(text("a\u{0}b", TEXT_MAX)), "control_character");
        assert_eq!(code(line("<b>bold</b>", TITLE_MAX)), "fine");
    }

    #[test]
    fn an_address_has_one_at_and_nothing_that_ends_it() {
        for fine in ["ana@example.org", "a.b+c@mail.example", "ñ@ejemplo.es", "root@localhost"] {
            assert_eq!(code(email(fine)), "fine", "{fine}");
        }
        for bad in [
            "ana",
            "@b.c",
            "a@",
            "a@b@c",
            "a b@c.d",
            "<a@b.c>",
            "a@b..c",
            "a@b.c,d@e.f",
            ".a@b.c",
            "a..b@c.d",
            "a(b)@c.d",
        ] {
            assert_eq!(code(email(bad)), "malformed", "{bad}");
        }
    }
}
