//! A letter as HTML: everything inline, nothing fetched, every value escaped.

use super::words::Content;

const PAGE: &str = include_str!("letter.html");

/// The whole page.
pub(super) fn page(content: &Content) -> String {
    let [(first, one), (second, two), (third, three)] = &content.facts;
    let colour = match content.status_word {
        "open" => "#2563eb",
        "in_progress" => "#7c3aed",
        "waiting" => "#b45309",
        "resolved" => "#15803d",
        _ => "#475569",
    };
    fill(
        PAGE,
        &[
            ("language", content.language.word()),
            ("subject", &content.subject),
            ("greeting", &content.greeting),
            ("sentence", &content.sentence),
            ("number", &content.number),
            ("title", &content.title),
            ("status", content.status),
            ("colour", colour),
            ("fact-1", first),
            ("value-1", one),
            ("fact-2", second),
            ("value-2", two),
            ("fact-3", third),
            ("value-3", three),
            ("button", content.button),
            ("link", &content.link),
            ("footer", content.footer),
        ],
    )
}

/// Replaces each `{{name}}` once. Inserted values are not searched again.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, behind) = after.split_once("}}").expect("the template closes what it opens");
        let (_, value) = values.iter().find(|(known, _)| *known == name).expect("the template names values that exist");
        filled.push_str(before);
        escape(value, &mut filled);
        rest = behind;
    }
    filled + rest
}

fn escape(text: &str, into: &mut String) {
    for char in text.chars() {
        match char {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            '"' => into.push_str("&quot;"),
            '\'' => into.push_str("&#39;"),
            _ => into.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mail::letter::tests::{RESOLVED, event, letter};

    #[test]
    fn values_are_escaped_and_not_filled_again() {
        assert_eq!(
            fill("<p>{{a}}{{b}}</p>", &[("a", "{{b}}<i>"), ("b", "\"'&")]),
            "<p>{{b}}&lt;i&gt;&quot;&#39;&amp;</p>"
        );
    }

    #[test]
    fn a_page_shows_markup_as_text_and_fetches_nothing() {
        let html = letter(&event(RESOLVED)).unwrap().html;
        assert!(html.contains("&lt;b&gt;no imprime&lt;/b&gt; &amp; huele") && !html.contains("<b>"));
        for fetched in ["<img", "src=", "@import", "url(", "<script", "<link"] {
            assert!(!html.contains(fetched), "{fetched}");
        }
        insta::assert_snapshot!(html);
    }
}
