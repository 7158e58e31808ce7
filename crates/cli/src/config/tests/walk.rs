//! Tests that walk the schema of the whole configuration.

use super::*;

const EXAMPLE: &str = include_str!("../../../../../relevo.example.toml");

#[test]
fn the_example_file_is_valid() {
    let loaded = load(EXAMPLE, &[], &[]).unwrap();
    assert_eq!(loaded.config.outboxes.len(), 1);
}

/// The example file with every key set.
fn every_key() -> String {
    let is_setting = |line: &&str| {
        let name = line.split_once(" = ").map(|(name, _)| name);
        name.is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
            || (line.starts_with('[') && line.ends_with(']'))
    };
    EXAMPLE.lines().map(|line| line.strip_prefix('#').filter(is_setting).unwrap_or(line).to_owned() + "\n").collect()
}

#[test]
fn the_example_file_has_every_key() {
    let unknown: Vec<String> = problems(&every_key()).into_iter().filter(|it| it.contains("unknown key")).collect();
    assert_eq!(unknown, [""; 0]);
    let text = every_key();
    for table in reference::tables(&schema::schema()) {
        for key in table.keys {
            let name = key.assignment.split(" = ").next().unwrap().to_owned();
            assert!(text.contains(&format!("\n{name} = ")), "{} {name}", table.path.join("."));
        }
    }
}

#[test]
fn an_unknown_key_is_an_error_in_every_table() {
    let text = every_key();
    let headings = text.lines().enumerate().filter(|(_, line)| line.starts_with('[')).map(|(line, _)| line);
    let mut count = 0;
    for heading in headings.collect::<Vec<_>>() {
        let lines = text
            .lines()
            .enumerate()
            .map(|(at, line)| if at == heading { format!("{line}\nno_such_key = 1\n") } else { format!("{line}\n") });
        let found = problems(&lines.collect::<String>()).join("\n");
        assert!(found.contains("unknown key `no_such_key` in `"), "line {heading}: {found}");
        count += 1;
    }
    assert!(problems("no_such_key = 1\n").join("\n").contains("unknown key `no_such_key` at relevo.toml:1"));
    assert!(count > 15, "{count}");
}

/// The heading of a table, with the keys without which its other keys are not read.
fn opened(table: &reference::TableDoc) -> String {
    let names = table.path.iter().scan(0, |names, name| {
        let chosen = ["shop", "main", "one"];
        Some(if name == "NAME" {
            *names += 1;
            chosen[*names - 1]
        } else {
            name.as_str()
        })
    });
    let path = names.collect::<Vec<_>>().join(".");
    let kind = table.kind.as_deref().unwrap_or("embedded");
    let broker = "outboxes.shop.destinations.main.broker";
    let of_broker = if path.starts_with(broker) { format!("[{broker}]\nkind = \"{kind}\"\n") } else { String::new() };
    match path == broker {
        true => of_broker,
        false if table.is_list => format!("{of_broker}[[{path}]]\n"),
        false => format!("{of_broker}[{path}]\n"),
    }
}

#[test]
fn no_secret_of_any_section_is_printed() {
    // The value stands in every key that accepts a secret, as its file, as its variable and as itself.
    for table in reference::tables(&schema::schema()) {
        for key in table.keys.iter().filter(|key| key.accepts.contains("secret")) {
            for assignment in
                ["X = \"https://hush\"", "X_file = \"https://hush\"", "X_env = \"hush\"", "X = [\"hush\"]"]
            {
                let text = format!("{}{}\n", opened(&table), assignment.replace('X', &key.name));
                let found = problems(&text).join("\n");
                assert!(!found.is_empty() && !found.contains("hush"), "{text}: {found}");
                assert!(!format!("{:?}", load(&text, &[], &[])).contains("hush"), "{text}");
            }
        }
    }
}

#[test]
fn no_value_of_any_key_is_printed() {
    // A secret in the place of another value: once as a word, and once as text that is no name.
    let (mut count, mut printed) = (0, Vec::new());
    for table in reference::tables(&schema::schema()) {
        for key in &table.keys {
            // The other problems of an object contain its name.
            let word = if key.name == "name" { "\"\"" } else { "\"SESAME\"" };
            for value in [word, "\"sesame, {SESAME} ! *\"", "[\"SESAME\"]", "[\"a/SESAME {SESAME} *\"]"] {
                let (heading, key) = (opened(&table), format!("{} = ", key.name));
                let kept = heading.lines().filter(|line| !line.starts_with(&key));
                let text = format!("{}\n{key}{value}\n", kept.collect::<Vec<_>>().join("\n"));
                let found = problems(&text).into_iter().filter(|problem| problem.to_lowercase().contains("sesame"));
                printed.extend(found.map(|problem| format!("{text}{problem}")));
                count += 1;
            }
        }
    }
    assert!(printed.is_empty() && count > 300, "{count}: {}", printed.join("\n"));
}
