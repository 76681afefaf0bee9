//! The pages for users: they are few and short, their index names all of them, and the programs take their commands.

mod repository;

use clap::Parser;
use clap::error::ErrorKind;
use repository::Source;
use starling_bootstrap::service::Flags;
use starling_node::cli::Cli;

const FOLDER: &str = "docs/user/";
const INDEX: &str = "docs/user/README.md";
/// The most pages beside the index, and lines of a page.
const PAGES_MAX: usize = 10;
const LINES_MAX: usize = 80;
/// With fewer the pages would not be read as they are written.
const COMMANDS_MIN: usize = 40;

/// The words of a line as a shell takes them, up to a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word = Some(word.unwrap_or_default());
            }
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Whether a program of Starling takes this line; none if the line calls another program.
fn command(line: &str) -> Option<Result<(), String>> {
    let line = line.trim_start().trim_start_matches("ExecStart=");
    let skipped = if line.starts_with("sudo -u ") { 3 } else { 0 };
    let words: Vec<String> = words(line).into_iter().skip(skipped).collect();
    let error = match words.first()?.trim_start_matches("/usr/local/bin/") {
        "starling" => Cli::try_parse_from(&words).err(),
        "starling-bootstrap" => Flags::try_parse_from(&words).err(),
        _ => return None,
    };
    // A call for help is no mistake.
    let wrong = error.filter(|e| !matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion));
    Some(wrong.map_or(Ok(()), |e| Err(e.to_string())))
}

fn pages() -> Vec<Source> {
    repository::texts(&["md"]).into_iter().filter(|page| page.path.starts_with(FOLDER)).collect()
}

#[test]
fn the_programs_take_every_command() {
    let (mut taken, mut found) = (0, Vec::new());
    let front = repository::texts(&["md"]).into_iter().filter(|page| page.path == "README.md");
    for page in pages().into_iter().chain(front) {
        for line in page.text.lines().filter_map(|line| line.strip_prefix("    ")) {
            match command(line) {
                Some(Ok(())) => taken += 1,
                Some(Err(why)) => found.push(format!("{}: {line}\n{why}", page.path)),
                None => {}
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(taken >= COMMANDS_MIN, "only {taken} commands are found");
}

#[test]
fn pages_are_few_and_short_and_in_the_index() {
    let pages = pages();
    let index = pages.iter().find(|page| page.path == INDEX).expect("the index is there");
    assert!((2..=PAGES_MAX + 1).contains(&pages.len()), "{} pages", pages.len());
    for page in &pages {
        let lines = page.text.lines().count();
        assert!(lines <= LINES_MAX, "{}: {lines} lines, at most {LINES_MAX}", page.path);
        let link = format!("]({})", &page.path[FOLDER.len()..]);
        assert!(page.path == INDEX || index.text.contains(&link), "{INDEX} lacks {}", page.path);
    }
}

#[test]
fn a_command_that_is_wrong_is_found() {
    let takes = |line: &str| command(line).map(|taken| taken.is_ok());
    for right in ["starling new --help", " starling status # --wrong", "sudo -u a starling eval --home 'b c' d"] {
        assert_eq!(takes(right), Some(true), "{right}");
    }
    for wrong in ["starling trian", "ExecStart=/usr/local/bin/starling train", "starling-bootstrap --init"] {
        assert_eq!(takes(wrong), Some(false), "{wrong}");
    }
    assert_eq!((takes("make demo"), takes("# starling trian"), takes("A=/b/starling")), (None, None, None));
    assert_eq!(words("a \"b # c\" '' d#e #f"), ["a", "b # c", "", "d#e"]);
}
