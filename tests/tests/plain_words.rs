//! Messages have no words of the operating system's library: an error of `std::io` inside one of ours is told in the
//! words of `starling-words`, which is the only place that knows them.

mod repository;

use repository::Source;
use repository::code::without_tests;

/// The home of the words, where the library's own are cut out.
const HOME: &str = "words/src/lib.rs";

/// Variants of errors that hold an `io::Error` and print it as the library does.
fn complaints(source: &Source) -> Vec<String> {
    let (mut found, mut message) = (Vec::new(), String::new());
    let text = without_tests(&source.text);
    let mut open = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("#[error(") {
            (message, open) = (String::new(), true);
        }
        if open {
            message.push_str(line);
            open = !line.ends_with(")]");
        } else if holds_error(line) && !message.is_empty() {
            if !message.contains("starling_words::") {
                found.push(format!("{}:{}: print it with starling_words::of", source.path, number + 1));
            }
            message.clear();
        } else if line.ends_with(',') || line == "}" {
            message.clear();
        }
    }
    let said = text.lines().enumerate().filter(|(_, line)| line.contains("os error"));
    found.extend(said.map(|(n, _)| format!("{}:{}: `os error` is no word for people", source.path, n + 1)));
    found
}

/// Whether the line is a field, or a variant, with an error of the system in it.
fn holds_error(line: &str) -> bool {
    ["source: io::Error", "source: std::io::Error", "(io::Error)", "(std::io::Error)"].iter().any(|p| line.contains(p))
        || line.contains("#[from] io::Error")
        || line.contains("#[from] std::io::Error")
}

#[test]
fn errors_of_the_system_are_told_in_plain_words() {
    let product = |s: &&Source| {
        let in_product = s.path.contains("/src/") || s.path.starts_with("words/");
        in_product && s.path != HOME && !s.path.ends_with("_test.rs") && !s.path.starts_with("protocol/")
    };
    let sources = repository::sources();
    let found: Vec<String> = sources.iter().filter(product).flat_map(complaints).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn an_error_that_prints_the_librarys_words_is_found() {
    let of = |text: &str| complaints(&Source { path: "a.rs".to_owned(), text: text.to_owned() });
    let enumeration = |message: &str, field: &str| format!("enum E {{\n    {message}\n    {field}\n}}\n");
    for (message, field) in [
        ("#[error(\"cannot read {path}: {source}\")]", "Io { path: PathBuf, source: io::Error },"),
        ("#[error(transparent)]", "Io(#[from] std::io::Error),"),
        ("#[error(\"lost: {0}\")]", "Lost(io::Error),"),
        ("#[error(\n        \"cannot\",\n    )]", "Io { source: std::io::Error },"),
    ] {
        assert_eq!(of(&enumeration(message, field)).len(), 1, "{message}");
    }
    let fine = "#[error(\"lost: {}\", starling_words::of(.0))]";
    assert!(of(&enumeration(fine, "Lost(io::Error),")).is_empty());
    let silent = enumeration("#[error(\"no file\")]", "NoFile,\n    Io(io::Error),");
    assert!(of(&silent).is_empty(), "the error of the system has no message here");
    assert_eq!(of("let text = \"os error\";\n").len(), 1);
}
