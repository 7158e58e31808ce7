//! Subjects with wildcards, token by token.

use relevo_core::address_template::PatternWord;

/// The tokens of a stream's or consumer's subject.
pub(crate) fn words(subject: &str) -> Vec<PatternWord<'_>> {
    let word = |word| match word {
        "*" => PatternWord::One,
        ">" => PatternWord::OneOrMore,
        text => PatternWord::Literal(text),
    };
    subject.split('.').map(word).collect()
}

/// Whether a subject can match both.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let (mut ones, mut others) = (one.split('.'), other.split('.'));
    loop {
        match (ones.next(), others.next()) {
            (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(a), Some(b)) if a == "*" || b == "*" || a == b => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::overlap;

    #[test]
    fn subjects_overlap_as_the_server_decides() {
        for (one, other, wanted) in [
            ("orders", "orders", true),
            ("orders", "invoices", false),
            ("orders.*", "orders.paid", true),
            ("orders.*", "*.paid", true),
            ("orders.*", "orders", false),
            ("orders.>", "orders", false),
            ("orders.>", "orders.a.b", true),
            (">", "orders", true),
            ("orders.*.eu", "orders.paid", false),
        ] {
            assert_eq!(overlap(one, other), wanted, "{one} {other}");
            assert_eq!(overlap(other, one), wanted, "{other} {one}");
        }
    }
}
