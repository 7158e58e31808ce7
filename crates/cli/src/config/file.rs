//! The file: TOML, every key known, every problem told at once.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{Found, Key, NAME, find, is_list, word_of};
use super::problem::Problem;
use super::secret::shown;
use super::settings::{Origin, Path, Settings};
use super::value::Value;

/// Reads a file's text; `name` is what people call the file.
pub(crate) fn read(name: &str, text: &str, settings: &mut Settings, problems: &mut Vec<Problem>) {
    let mut reader = Reader { name, text, settings, problems };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        // The error's own picture of the line might show a secret.
        let place = reader.place(error.span().map_or(0, |span| span.start));
        reader.problems.push(Problem::new(error.message().trim_end()).at(place));
    }
    // What a broken file seems to say may be far from what is meant.
    if errors.is_empty() {
        reader.table(&Path::default(), &[], table.get_ref());
    }
}

/// Whether a text can name an outbox or a destination: it becomes a label, a part of a path and of a variable.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
        && !text.contains("__")
        && !text.starts_with('_')
        && !text.ends_with('_')
}

struct Reader<'a> {
    name: &'a str,
    text: &'a str,
    settings: &'a mut Settings,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn place(&self, offset: usize) -> Origin {
        let line = self.text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1;
        Origin::File { file: self.name.to_owned(), line }
    }

    fn table(&mut self, path: &Path, pattern: &[&'static str], table: &DeTable<'_>) {
        // In the file's order, so that problems come in it too.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let (name, place) = (key.get_ref().as_ref(), self.place(key.span().start));
            match find(pattern, name) {
                Found::Key(known) => self.value(path.name(name), known, value, place),
                Found::Heading => self.heading(path, pattern, name, value, place),
                Found::Nothing(known) => {
                    let what = if pattern.is_empty() {
                        format!("unknown key `{}`", shown(name))
                    } else {
                        format!("unknown key `{}` in `{path}`", shown(name))
                    };
                    self.problems.push(Problem::new(what).at(place).nearest(name, known));
                }
            }
        }
    }

    fn heading(
        &mut self,
        path: &Path,
        pattern: &[&'static str],
        name: &str,
        value: &Spanned<DeValue<'_>>,
        place: Origin,
    ) {
        let word = word_of(pattern, name).expect("the place was found before");
        if word == NAME && !is_name(name) {
            let what = format!("`{}` cannot be a name", shown(name));
            let hint = "a name has 1 to 63 ASCII letters, digits, `-` and single `_` between them";
            self.problems.push(Problem::new(what).at(place).hint(hint));
            return;
        }
        let (path, pattern) = (path.name(name), [pattern, &[word]].concat());
        self.settings.head(path.clone(), place.clone());
        if is_list(&pattern) {
            self.list(&path, &pattern, value, place);
        } else if let DeValue::Table(table) = value.get_ref() {
            self.table(&path, &pattern, table);
        } else {
            self.problems.push(Problem::new(format!("`{path}` is a table")).at(place));
        }
    }

    fn list(&mut self, path: &Path, pattern: &[&'static str], value: &Spanned<DeValue<'_>>, place: Origin) {
        let wrong = || Problem::new(format!("`{path}` is a list of tables")).hint(format!("write `[[{path}]]`"));
        let DeValue::Array(items) = value.get_ref() else {
            self.problems.push(wrong().at(place));
            return;
        };
        for (index, item) in items.iter().enumerate() {
            let place = self.place(item.span().start);
            let DeValue::Table(table) = item.get_ref() else {
                self.problems.push(wrong().at(place));
                continue;
            };
            let path = path.index(index);
            self.settings.head(path.clone(), place);
            self.table(&path, &[pattern, &[super::keys::INDEX]].concat(), table);
        }
    }

    fn value(&mut self, path: Path, key: &Key, value: &Spanned<DeValue<'_>>, place: Origin) {
        let value = Value::of_file(key.kind, value.get_ref());
        let wrong = || Problem::new(format!("`{}` is {}", key.name, key.kind.describe()));
        match value.ok_or_else(wrong).and_then(|value| value.checked(key)) {
            Ok(value) => self.settings.set(path, value, place),
            Err(problem) => {
                self.settings.spoil(path);
                self.problems.push(problem.at(place));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let (mut settings, mut problems) = (Settings::default(), Vec::new());
        read("relevo.toml", text, &mut settings, &mut problems);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_problem_is_told_with_its_line_and_what_was_meant() {
        let text = "\
[relay]
lease_sm = 1
page_messages = \"many\"
pages_max = 0

[outboxes.shop]
databse = \"postgres://me:sesame@db/shop\"
[outboxes.shop.destinations.main]
start = \"nwo\"
[outboxes.shop.destinations.main.routes]
topic = \"orders\"
[amdin]
";
        assert_eq!(
            problems(text),
            [
                "unknown key `lease_sm` in `relay` at relevo.toml:2; hint: did you mean `lease_ms`?",
                "`page_messages` is a whole number, at least 1 at relevo.toml:3",
                "`pages_max` is a whole number, at least 1, not 0 at relevo.toml:4",
                "unknown key `databse` in `outboxes.shop` at relevo.toml:7; hint: did you mean `database`?",
                "`start` is one of `now`, `oldest`, not `nwo` at relevo.toml:9; hint: did you mean `now`?",
                "`outboxes.shop.destinations.main.routes` is a list of tables at relevo.toml:10; \
                 hint: write `[[outboxes.shop.destinations.main.routes]]`",
                "unknown key `amdin` at relevo.toml:12; hint: did you mean `admin`?",
            ]
        );
    }

    #[test]
    fn a_file_that_is_no_toml_is_told_by_its_lines_and_never_shown() {
        let told = problems("a = \nb = \"sesame\" x\n").join("\n");
        assert!(told.contains("relevo.toml:1") && told.contains("relevo.toml:2"), "{told}");
        assert!(!told.contains("sesame"), "{told}");
    }

    #[test]
    fn a_name_that_no_variable_could_mean_is_refused() {
        for name in ["a.b", "a__b", "_a", "a b", ""] {
            let told = problems(&format!("[outboxes.\"{name}\"]\n")).join("\n");
            assert!(told.contains("cannot be a name at relevo.toml:1"), "{name}: {told}");
        }
    }

    #[test]
    fn numbers_are_read_in_every_form_that_toml_has() {
        let (mut settings, mut problems) = (Settings::default(), Vec::new());
        read("f", "[relay]\nlease_ms = 10_000\npages_max = 0x10\n", &mut settings, &mut problems);
        let get = |name| settings.get(&Path::of(&["relay", name])).map(|setting| setting.value.clone());
        assert_eq!((problems, get("lease_ms")), (Vec::new(), Some(Value::Integer(10_000))));
        assert_eq!(get("pages_max"), Some(Value::Integer(16)));
    }
}
