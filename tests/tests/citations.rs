//! Checks citations. A citation is the section sign with a number, in a source, a document or a configuration. It names
//! a heading of the specification, so that a reader finds the rule.

mod repository;

use repository::Source;
use std::collections::BTreeMap;

/// The folder of the specification.
const SPECIFICATION: &str = "docs/protocol/";

/// Pages that older comments named, and that are not in the repository.
const GONE: &[&str] = &["protocol.md", "algorithms.md", "design.md", "foundations.md"];

/// Numbers of the specification's headings, such as `4.3.2`, with the file of each.
type Sections = BTreeMap<String, String>;

/// The number at the beginning of `text`, such as `4.3.2`; empty without one.
fn number(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text[..end].trim_end_matches('.')
}

/// Collects the headings' numbers.
///
/// # Errors
/// If a chapter's heading has another chapter's number, or two headings have one number.
fn sections(sources: &[Source]) -> Result<Sections, String> {
    let mut found = Sections::new();
    for source in sources.iter().filter(|s| s.path.starts_with(SPECIFICATION)) {
        let name = &source.path[SPECIFICATION.len()..];
        let chapter = number(name);
        for heading in source.text.lines().filter(|_| !chapter.is_empty()).filter_map(|line| line.strip_prefix('#')) {
            let heading = heading.trim_start_matches('#').trim_start();
            let here = number(heading);
            if here.is_empty() || here.split('.').next() != Some(chapter) {
                return Err(format!("{}: heading {heading:?} has no number of chapter {chapter}", source.path));
            }
            if found.insert(here.to_owned(), name.to_owned()).is_some() {
                return Err(format!("{}: two headings have the number {here}", source.path));
            }
        }
    }
    Ok(found)
}

/// The wrong citations of one file.
fn complaints(source: &Source, sections: &Sections, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (at, line) in source.text.lines().enumerate() {
        let mut complain = |what: String| found.push(format!("{}:{}: {what}", source.path, at + 1));
        for (place, sign) in line.match_indices('\u{a7}') {
            let cited = number(&line[place + sign.len()..]);
            match sections.get(cited) {
                _ if cited.is_empty() => {}
                None => complain(format!("no section {cited} in {SPECIFICATION}")),
                Some(file) => {
                    let named = named_file(&line[..place]).filter(|named| named != file);
                    named
                        .into_iter()
                        .for_each(|named| complain(format!("section {cited} is in {file}, not in {named}")));
                }
            }
        }
        for page in GONE.iter().filter(|page| names(line, page)) {
            complain(format!("{page} is not in the repository: cite {SPECIFICATION}, or a paper"));
        }
        let paths = line.match_indices(SPECIFICATION).map(|(place, _)| path(&line[place..]));
        paths
            .filter(|path| path.ends_with(".md") && !exists(path))
            .for_each(|path| complain(format!("no file {path}")));
        if source.path.ends_with(".md") {
            let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let links = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
            let local = links.filter(|link| link.ends_with(".md") && !link.contains("://"));
            local.filter(|link| !exists(&joined(folder, link))).for_each(|link| complain(format!("no file {link}")));
        }
    }
    found
}

/// The last chapter file that this text names, if only section numbers follow it.
fn named_file(before: &str) -> Option<String> {
    let end = before.rfind(".md")? + ".md".len();
    let rest = before[end..].trim_start_matches(['`', ')', ']', ',', ' ', '\u{a7}', '.']);
    let follows = rest.chars().all(|c| c.is_ascii_digit() || "., \u{a7}".contains(c));
    let name = before[..end].rsplit(|c: char| !c.is_ascii_alphanumeric() && !"-.".contains(c)).next()?;
    (follows && !number(name).is_empty()).then(|| name.to_owned())
}

/// Whether the line names this page, and not a page whose longer name ends in it.
fn names(line: &str, page: &str) -> bool {
    line.match_indices(page).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    })
}

/// The path at the beginning of this text.
fn path(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"-_./".contains(c)).unwrap_or(text.len());
    text[..end].trim_end_matches('.')
}

/// A link from a folder, as a path from the root.
fn joined(folder: &str, link: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Constants that a row names after a source file, as `` `deadline.rs` `FAR_BEATS` ``, and that the file does not
/// define.
fn strayed(row: &str, sources: &[Source]) -> Vec<String> {
    let quoted: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
    let mut found = Vec::new();
    let mut file = None;
    for name in quoted {
        if name.ends_with(".rs") {
            file = Some(name);
        } else if let Some(file) = file
            && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        {
            let define = [format!("const {name}:"), format!("static {name}:")];
            let is_there = |s: &Source| {
                (s.path == file || s.path.ends_with(&format!("/{file}"))) && define.iter().any(|d| s.text.contains(d))
            };
            if !sources.iter().any(is_there) {
                found.push(format!("{file} defines no {name}"));
            }
        }
    }
    found
}

#[test]
fn deadlines_are_named_as_in_the_code() {
    let sources = repository::texts(&["rs", "md"]);
    let table = sources.iter().find(|s| s.path.ends_with("8-deadlines.md")).expect("the table of deadlines");
    let rows = table.text.lines().filter(|line| line.starts_with('|'));
    let found: Vec<String> = rows.flat_map(|row| strayed(row, &sources)).collect();
    assert!(found.is_empty(), "{}: {}", table.path, found.join(", "));
    let wrong = "| a | 1 s | `deadline.rs` `FAR_BEATS`, `NEAR_BEATS`; `claims.rs` `FAR_BEATS` |";
    assert_eq!(strayed(wrong, &sources), ["deadline.rs defines no NEAR_BEATS", "claims.rs defines no FAR_BEATS"]);
}

#[test]
fn all_citations_lead_somewhere() {
    let sources = repository::texts(&["rs", "md", "toml", "py"]);
    let sections = sections(&sources).unwrap();
    assert!(sections.contains_key("4.8.2") && sections.len() > 100, "the specification is found");
    let root = repository::root();
    let of = |source| complaints(source, &sections, |path| root.join(path).is_file());
    // This file itself names the missing pages.
    let found: Vec<String> = sources.iter().filter(|s| !s.path.ends_with("tests/citations.rs")).flat_map(of).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[cfg(test)]
mod injected {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    fn found(path: &str, text: &str) -> Vec<String> {
        let chapter = source("docs/protocol/4-agreement.md", "# 4 Agreement\n\n## 4.1 Quorum\n\n### 4.1.2 Half\n");
        let sections = sections(&[chapter]).unwrap();
        complaints(&source(path, text), &sections, |path| path == "docs/protocol/4-agreement.md")
    }

    #[test]
    fn a_section_that_is_not_there() {
        let text = "//! (`docs/protocol/4-agreement.md` \u{a7}4.1, \u{a7}4.1.2).\n// \u{a7}4.7 and \u{a7} alone\n";
        assert_eq!(found("node/src/a.rs", text), ["node/src/a.rs:2: no section 4.7 in docs/protocol/"]);
    }

    #[test]
    fn a_section_of_another_file() {
        assert_eq!(
            found("docs/a.md", "([x](protocol/4-agreement.md) \u{a7}4.1) and 2-records.md \u{a7}4.1"),
            ["docs/a.md:1: section 4.1 is in 4-agreement.md, not in 2-records.md"]
        );
    }

    #[test]
    fn a_page_that_is_gone() {
        assert_eq!(
            found("node/src/a.rs", "// `protocol.md`, *Gossip*; my-protocol.md\n"),
            ["node/src/a.rs:1: protocol.md is not in the repository: cite docs/protocol/, or a paper"]
        );
    }

    #[test]
    fn files_and_links_that_are_not_there() {
        assert_eq!(
            found(
                "docs/a.md",
                "docs/protocol/9-more.md, [x](protocol/4-agreement.md#half), [y](../docs/b.md), [z](https://a/c.md)"
            ),
            ["docs/a.md:1: no file docs/protocol/9-more.md", "docs/a.md:1: no file ../docs/b.md"]
        );
    }

    #[test]
    fn headings_without_a_number_of_their_chapter_or_with_one_twice() {
        let wrong = |text| sections(&[source("docs/protocol/3-reduction.md", text)]).unwrap_err();
        assert!(wrong("# 3 Reduction\n## 2.1 Codecs\n").contains("no number of chapter 3"));
        assert!(wrong("# 3 Reduction\n## Codecs\n").contains("no number of chapter 3"));
        assert!(wrong("# 3 Reduction\n## 3.1 Codecs\n## 3.1 Ring\n").contains("two headings"));
        assert_eq!(sections(&[source("docs/protocol/reasons.md", "# Reasons\n## Why\n")]).unwrap().len(), 0);
    }
}
