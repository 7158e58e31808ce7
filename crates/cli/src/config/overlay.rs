//! Variables and flags, which replace what the file says.

use super::file::is_name;
use super::keys::{Found, INDEX, Key, NAME, find, is_list, word_of};
use super::problem::Problem;
use super::secret::shown;
use super::settings::{Origin, Path, Settings, Step};
use super::value::Value;

/// Two underscores part the words of a variable, so that nothing else of this name's family is taken for one.
pub(crate) const PREFIX: &str = "RELEVO__";
/// A short name for the variable of `log.level`.
const LOG: &str = "RELEVO_LOG";
const PART: &str = "__";
/// What this program's variables begin with, and others' may, such as those that Kubernetes makes of services.
const FAMILY: &str = "RELEVO_";
const OUTBOXES: &str = "RELEVO_OUTBOXES_";
/// Names that mean something without [`PREFIX`].
const SHORT: [&str; 3] = [LOG, super::VARIABLE, "RELEVO_DATABASE_URL"];
/// So many letters may differ before a name is another one's.
const SLIPS: usize = 2;

/// Takes every variable that begins with [`PREFIX`].
pub(crate) fn variables(
    variables: impl IntoIterator<Item = (String, String)>,
    settings: &mut Settings,
    problems: &mut Vec<Problem>,
) {
    for (name, text) in variables {
        let words = match name.strip_prefix(PREFIX) {
            Some(words) => words.to_ascii_lowercase(),
            None if name == LOG => "log__level".to_owned(),
            None => continue,
        };
        let words: Vec<&str> = words.split(PART).collect();
        let origin = Origin::Variable(name.clone());
        match place(&words, settings).and_then(|(path, key)| Ok((path, Value::parse(key, &text)?))) {
            Ok((path, value)) => settings.set(path, value, origin),
            Err(problem) => problems.push(problem.at(origin)),
        }
    }
}

/// Variables that were probably meant for the configuration, and mean nothing.
pub(crate) fn strangers<'a>(names: impl IntoIterator<Item = &'a str>, settings: &Settings) -> Vec<Problem> {
    let known: Vec<String> = SHORT.iter().map(|name| (*name).to_owned()).chain(settings_variables(settings)).collect();
    let ours = |name: &&str| name.starts_with(FAMILY) && !name.starts_with(PREFIX) && !SHORT.contains(name);
    let strange = names.into_iter().filter(ours).filter_map(|name| {
        // One underscore instead of two is no difference here.
        let distance = |known: &str| strsim::damerau_levenshtein(&joined(name), &joined(known));
        let near = known.iter().map(|known| (distance(known), known)).min();
        let hint = match near.filter(|(distance, _)| *distance <= SLIPS) {
            Some((_, known)) => format!("did you mean `{known}`?"),
            None if name.starts_with(OUTBOXES) => {
                "two underscores part the words, as in `RELEVO__OUTBOXES__SHOP__SCHEMA`".to_owned()
            }
            None => return None,
        };
        Some(Problem::new(format!("variable `{name}` sets nothing")).hint(hint))
    });
    strange.collect()
}

fn settings_variables(settings: &Settings) -> impl Iterator<Item = String> {
    let possible = settings.possible().into_iter().filter(|path| !path.is_in_list());
    possible.map(|path| {
        let words = path.steps().iter().filter_map(|step| match step {
            Step::Name(name) => Some(plain(name).to_ascii_uppercase()),
            Step::Index(_) => None,
        });
        format!("{PREFIX}{}", words.collect::<Vec<_>>().join(PART))
    })
}

fn joined(name: &str) -> String {
    name.replace(PART, "_")
}

/// Takes flags of the form `outboxes.shop.schema=value`.
pub(crate) fn flags<'a>(
    flags: impl IntoIterator<Item = &'a (String, String)>,
    settings: &mut Settings,
    problems: &mut Vec<Problem>,
) {
    for (flag, assignment) in flags {
        let origin = Origin::Flag(flag.clone());
        let Some((path, text)) = assignment.split_once('=') else {
            let problem = Problem::new("there is no `=`").at(origin).hint("`--set log.level=debug`");
            problems.push(problem);
            continue;
        };
        let words: Vec<&str> = path.trim().split('.').collect();
        match place(&words, settings).and_then(|(path, key)| Ok((path, Value::parse(key, text)?))) {
            Ok((path, value)) => settings.set(path, value, origin),
            Err(problem) => problems.push(problem.at(origin)),
        }
    }
}

/// The variable that sets a key; a route's keys have none.
pub(crate) fn variable_of(pattern: &[&str], key: &str) -> Option<String> {
    if pattern.contains(&INDEX) {
        return None;
    }
    let words = pattern.iter().chain([&key]).map(|word| match *word {
        NAME => "NAME".to_owned(),
        word => word.to_ascii_uppercase(),
    });
    Some(format!("{PREFIX}{}", words.collect::<Vec<_>>().join(PART)))
}

/// The key that the words lead to, by the names that the file chose where they fit.
fn place(words: &[&str], settings: &Settings) -> Result<(Path, &'static Key), Problem> {
    let (mut path, mut pattern) = (Path::default(), Vec::new());
    let Some((last, headings)) = words.split_last() else { return Err(Problem::new("no key is named")) };
    for word in headings {
        let Some(known) = word_of(&pattern, word) else { return Err(unknown(&pattern, word)) };
        let name = if known == NAME { chosen(&path, word, settings)? } else { (*word).to_owned() };
        path = path.name(&name);
        pattern.push(known);
        if is_list(&pattern) {
            let what = format!("`{path}` can be set in the file only");
            return Err(Problem::new(what));
        }
    }
    match find(&pattern, last) {
        Found::Key(key) => Ok((path.name(last), key)),
        Found::Heading => Err(Problem::new(format!("`{}` is no key", path.name(last)))),
        Found::Nothing(_) => Err(unknown(&pattern, last)),
    }
}

/// The name in the file that a word means: a variable has no lower case and no `-`.
fn chosen(path: &Path, word: &str, settings: &Settings) -> Result<String, Problem> {
    let names = settings.names(path);
    if names.iter().any(|name| name == word) {
        return Ok(word.to_owned());
    }
    let mut fitting = names.into_iter().filter(|name| plain(name) == plain(word));
    match (fitting.next(), fitting.next()) {
        (Some(name), None) => Ok(name),
        (Some(one), Some(other)) => Err(Problem::new(format!("it could mean `{one}` or `{other}`"))),
        (None, _) if is_name(word) => Ok(word.to_owned()),
        (None, _) => Err(Problem::new(format!("`{}` cannot be a name", shown(word)))),
    }
}

/// A name as a variable has it, but for the case of its letters.
pub(super) fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace('-', "_")
}

fn unknown(pattern: &[&str], word: &str) -> Problem {
    let known = match find(pattern, word) {
        Found::Nothing(known) => known,
        Found::Key(_) | Found::Heading => Vec::new(),
    };
    Problem::new(format!("unknown key `{}`", shown(word))).nearest(word, known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    #[test]
    fn a_variable_means_the_name_that_the_file_chose() {
        let (mut settings, mut problems) = (Settings::default(), Vec::new());
        settings.head(Path::of(&["outboxes"]), Origin::Default);
        settings.head(Path::of(&["outboxes", "My-Shop"]), Origin::Default);
        let set = owned(&[("RELEVO__OUTBOXES__MY_SHOP__SCHEMA", "a"), ("RELEVO__OUTBOXES__NEW__SCHEMA", "b")]);
        variables(set, &mut settings, &mut problems);
        assert_eq!(problems, []);
        let text = |name| settings.get(&Path::of(&["outboxes", name, "schema"])).map(|it| it.value.clone());
        assert_eq!(text("My-Shop"), Some(Value::Text("a".to_owned())));
        assert_eq!(text("new"), Some(Value::Text("b".to_owned())));
    }

    #[test]
    fn a_variable_with_one_underscore_is_told_and_others_are_left_alone() {
        let mut settings = Settings::default();
        settings.head(Path::of(&["outboxes", "my-shop"]), Origin::Default);
        let told = |name| strangers([name], &settings).first().map(ToString::to_string);
        for (name, meant) in [
            ("RELEVO_RELAY_LEASE_MS", "did you mean `RELEVO__RELAY__LEASE_MS`?"),
            ("RELEVO_ADMIN_LISTN", "did you mean `RELEVO__ADMIN__LISTEN`?"),
            ("RELEVO_LOGS", "did you mean `RELEVO_LOG`?"),
            ("RELEVO_OUTBOXES_MY_SHOP_DATABASE", "did you mean `RELEVO__OUTBOXES__MY_SHOP__DATABASE`?"),
            ("RELEVO_OUTBOXES_X", "two underscores part the words, as in `RELEVO__OUTBOXES__SHOP__SCHEMA`"),
        ] {
            assert_eq!(told(name), Some(format!("variable `{name}` sets nothing; hint: {meant}")));
        }
        for name in ["RELEVO_SERVICE_HOST", "RELEVO_PORT", "RELEVO_LOG", "RELEVO_CONFIG", "RELEVO__X", "PATH"] {
            assert_eq!(told(name), None, "{name}");
        }
    }

    #[test]
    fn wrong_variables_and_flags_are_told_with_what_was_meant() {
        let (mut settings, mut problems) = (Settings::default(), Vec::new());
        let set = owned(&[
            ("RELEVO__RELAY__LEASE_SM", "1"),
            ("RELEVO__RELAY__LEASE_MS", "soon"),
            ("RELEVO__OUTBOXES__A__DESTINATIONS__B__ROUTES__0__TOPIC", "x"),
            ("RELEVO_SERVICE_HOST", "10.0.0.1"),
        ]);
        variables(set, &mut settings, &mut problems);
        flags(&owned(&[("--set", "log.levle=debug"), ("--set", "nonsense")]), &mut settings, &mut problems);
        let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "unknown key `lease_sm` at variable `RELEVO__RELAY__LEASE_SM`; hint: did you mean `lease_ms`?",
                "`lease_ms` is a whole number, at least 100 at variable `RELEVO__RELAY__LEASE_MS`",
                "`outboxes.a.destinations.b.routes` can be set in the file only at variable \
                 `RELEVO__OUTBOXES__A__DESTINATIONS__B__ROUTES__0__TOPIC`",
                "unknown key `levle` at flag `--set`; hint: did you mean `level`?",
                "there is no `=` at flag `--set`; hint: `--set log.level=debug`",
            ]
        );
    }
}
