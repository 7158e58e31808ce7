//! Links between documents.

use std::path::Path;

use super::Finding;

/// Reports links to files of the project that do not exist.
pub(super) fn check(root: &Path, file: &Path, text: &str) -> Vec<Finding> {
    let directory = file.parent().unwrap_or(Path::new(""));
    let dead = |target: &&str| !root.join(directory).join(target).exists();
    let findings = relative_links(text).into_iter().filter(|(_, target)| dead(target)).map(|(line, target)| Finding {
        file: file.to_owned(),
        line,
        problem: format!("links to `{target}`, which does not exist"),
    });
    findings.collect()
}

/// The line and the path, without its anchor, of each link that is not a URL.
fn relative_links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', ' ', '#']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains(':') {
                links.push((index + 1, target));
            }
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_to_files_are_checked() {
        let text = "[a](docs/a.md#part) [b](https://example.org/b) [c](#here)\n```\n[d](d.md)\n```\n![e](e.svg \"E\")";
        assert_eq!(relative_links(text), [(1, "docs/a.md"), (5, "e.svg")]);
    }

    #[test]
    fn a_link_is_relative_to_its_document() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "[here](../src/main.rs)\n[gone](../src/gone.rs)";
        let findings = check(root, Path::new("docs/a.md"), text);
        // The first link resolves only if `docs` exists, so the first assertion checks only the second line.
        assert!(findings.iter().any(|finding| finding.line == 2));
        assert!(check(root, Path::new("src/a.md"), text).iter().all(|finding| finding.line == 2));
    }
}
