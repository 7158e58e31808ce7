//! Subjects with wildcards, token by token.

use relevo_core::template::Word;

/// The tokens of a stream's or consumer's subject.
pub(crate) fn words(subject: &str) -> Vec<Word<'_>> {
    let word = |word| match word {
        "*" => Word::One,
        ">" => Word::Some,
        text => Word::Is(text),
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
    fn subjects_overlap_where_the_server_says_so() {
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
