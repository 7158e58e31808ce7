//! Links between documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::Finding;

/// The page from which a reader must be able to reach every page below [`DOCUMENTATION`].
const START: &str = "README.md";
const DOCUMENTATION: &str = "docs";

/// Reports links to files and headings of the project that do not exist, and pages of the documentation without a path from
/// [`START`].
pub(super) fn check(root: &Path, pages: &[(PathBuf, String)]) -> Vec<Finding> {
    let anchors: BTreeMap<&Path, BTreeSet<String>> =
        pages.iter().map(|(file, text)| (file.as_path(), anchors(text))).collect();
    let mut findings = Vec::new();
    let mut links_of: BTreeMap<&Path, Vec<PathBuf>> = BTreeMap::new();
    for (file, text) in pages {
        for link in links(text) {
            let target = link.target_from(file);
            let problem = if root.join(&target).exists() {
                let is_missing =
                    |anchor: &&str| anchors.get(target.as_path()).is_some_and(|known| !known.contains(*anchor));
                link.anchor.filter(is_missing).map(|anchor| format!("links to `#{anchor}` of `{}`", target.display()))
            } else {
                Some(format!("links to `{}`", link.path))
            };
            let finding =
                |problem| Finding { file: file.clone(), line: link.line, problem: problem + ", which does not exist" };
            findings.extend(problem.map(finding));
            links_of.entry(file).or_default().push(target);
        }
    }
    findings.extend(unreached(pages, &links_of));
    findings
}

/// Reports the pages of the documentation that no sequence of links reaches. A link to a folder reaches the pages in it.
fn unreached(pages: &[(PathBuf, String)], links_of: &BTreeMap<&Path, Vec<PathBuf>>) -> Vec<Finding> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![Path::new(START)]);
    while let Some(file) = open.pop() {
        if !reached.insert(file) {
            continue;
        }
        for target in links_of.get(file).into_iter().flatten() {
            open.extend(
                pages
                    .iter()
                    .map(|(page, _)| page.as_path())
                    .filter(|page| page == target || page.parent() == Some(target)),
            );
        }
    }
    let of_documentation = pages.iter().map(|(page, _)| page).filter(|page| page.starts_with(DOCUMENTATION));
    let lost = of_documentation.filter(|page| !reached.contains(page.as_path()));
    let problem = format!("no link from {START} leads here: add the page to {DOCUMENTATION}/README.md");
    lost.map(|page| Finding { file: page.clone(), line: 1, problem: problem.clone() }).collect()
}

/// A link that is not a URL.
#[derive(Debug, PartialEq, Eq)]
struct Link<'a> {
    line: usize,
    /// Empty if the link is to the same page.
    path: &'a str,
    anchor: Option<&'a str>,
}

impl Link<'_> {
    /// The file or folder, relative to the project, of a link in this file.
    fn target_from(&self, file: &Path) -> PathBuf {
        if self.path.is_empty() {
            return file.to_owned();
        }
        let mut target = file.parent().unwrap_or(Path::new("")).to_owned();
        for part in Path::new(self.path).components() {
            match part {
                Component::ParentDir => {
                    target.pop();
                }
                Component::Normal(name) => target.push(name),
                _ => {}
            }
        }
        target
    }
}

/// The links of a page: those of Markdown, and images in HTML.
fn links(text: &str) -> Vec<Link<'_>> {
    let mut links = Vec::new();
    for (line, text) in prose(text) {
        let markdown = text.split("](").skip(1).map(|rest| rest.split([')', ' ']).next().unwrap_or_default());
        let html = ["src=\"", "srcset=\""].into_iter().flat_map(|name| text.split(name).skip(1));
        let html = html.map(|rest| rest.split(['"', ' ']).next().unwrap_or_default());
        for target in markdown.chain(html).filter(|target| !target.is_empty() && !target.contains(':')) {
            let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
            links.push(Link { line, path, anchor });
        }
    }
    links
}

/// The anchors that GitHub gives to the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let Some((_, heading)) =
            line.split_once(' ').filter(|(marks, _)| marks.starts_with('#') && marks.trim_matches('#').is_empty())
        else {
            continue;
        };
        // The text of a link counts, its address does not.
        let shown: String = heading
            .split("](")
            .enumerate()
            .map(|(index, part)| if index == 0 { part } else { after_address(part) })
            .collect();
        let known = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
        let anchor: String = shown
            .trim()
            .to_lowercase()
            .chars()
            .filter(known)
            .map(|letter| if letter == ' ' { '-' } else { letter })
            .collect();
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

fn after_address(part: &str) -> &str {
    part.split_once(')').map_or(part, |(_, rest)| rest)
}

/// The lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!in_code && !is_fence).then_some((index + 1, line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages<const N: usize>(pages: [(&str, &str); N]) -> Vec<(PathBuf, String)> {
        pages.map(|(file, text)| (file.into(), text.to_owned())).to_vec()
    }

    fn problems<const N: usize>(texts: [(&str, &str); N]) -> Vec<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        check(&root, &pages(texts)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_links_to_the_project_are_checked() {
        let text = "[a](docs/a.md#part) [b](https://example.org/b) [c](#here)\n```\n[d](d.md)\n```\n![e](e.svg \"E\")\n<img src=\"f.svg\">";
        let found: Vec<_> = links(text).into_iter().map(|link| (link.line, link.path, link.anchor)).collect();
        assert_eq!(
            found,
            [(1, "docs/a.md", Some("part")), (1, "", Some("here")), (5, "e.svg", None), (6, "f.svg", None)]
        );
    }

    #[test]
    fn a_link_is_relative_to_its_document() {
        assert_eq!(
            problems([("xtask/a.md", "[here](src/main.rs) [up](../README.md) [nothing](../main.rs)")]),
            ["xtask/a.md:1: links to `../main.rs`, which does not exist"]
        );
    }

    #[test]
    fn an_anchor_is_a_heading_of_its_page() {
        let text = "# The `inbox`, briefly\n## Part\n## Part\n```\n# not a heading\n```\n[a](#the-inbox-briefly) [b](#part-1) [c](#not-a-heading)";
        assert_eq!(
            problems([("README.md", text)]),
            ["README.md:7: links to `#not-a-heading` of `README.md`, which does not exist"]
        );
        let other = ("docs/README.md", "[a](../README.md#part) [b](../README.md#partly)");
        let found = problems([("README.md", "## Part\n[docs](docs/README.md)"), other]);
        assert_eq!(found, ["docs/README.md:1: links to `#partly` of `README.md`, which does not exist"]);
    }

    #[test]
    fn every_page_is_reached_from_the_first_one() {
        let orphan = "docs/b.md:1: no link from README.md leads here: add the page to docs/README.md";
        let index = ("docs/README.md", "[decisions](adr)");
        let decision = ("docs/adr/0001-store-as-a-log.md", "");
        assert_eq!(problems([("README.md", "[docs](docs/README.md)"), index, decision, ("docs/b.md", "")]), [orphan]);
    }
}
