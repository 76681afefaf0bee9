//! Rules for every source file. Each check is a function from a source to complaints, and has a test that shows it a
//! bad snippet.

mod repository;

use repository::Source;
use repository::code::{code_of, fields_of, without_tests};

/// Lines of a file, tests included.
const LINES_MAX: usize = 500;

/// Most fields of the engine and of its round, and most files with methods of the engine itself.
const ENGINE_FIELDS_MAX: usize = 13;
const ROUND_FIELDS_MAX: usize = 12;
const ENGINE_FILES_MAX: usize = 3;
/// Most fields of the node's driver, which leaves to its parts what it does not own.
const DRIVER_FIELDS_MAX: usize = 24;

/// The only files of the engine that compare anything with the time.
const CLOCKS: &[&str] = &["protocol/src/engine/due.rs", "protocol/src/engine/clock.rs"];

/// File names that say nothing about the contents.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "manager", "base", "misc"];

/// Banned everywhere: pattern in the code, and the advice.
const UNFINISHED: &[(&str, &str)] = &[
    ("todo!", "finish it, or leave it out"),
    ("unimplemented!", "finish it, or leave it out"),
    ("dbg!", "use tracing"),
];

/// Banned outside tests: queues that a fast sender fills until memory ends.
const UNBOUNDED: &[(&str, &str)] = &[
    ("unbounded_channel", "use a bounded channel with a named capacity"),
    ("unbounded()", "use a bounded channel with a named capacity"),
    ("mpsc::unbounded", "use a bounded channel with a named capacity"),
    ("mpsc::channel()", "use sync_channel with a named capacity"),
];

/// Banned in the node: these end with a panic when the reader of standard output has gone.
const PRINTS: &[(&str, &str)] = &[
    ("println!", "use watch::terminal::put, which minds no reader that went away"),
    ("print!", "use watch::terminal::put, which minds no reader that went away"),
];

/// Banned in the pure crate: things that differ between two machines, or two runs.
const IMPURE: &[(&str, &str)] = &[
    ("std::time", "time is an argument"),
    ("Instant::now", "time is an argument"),
    ("SystemTime", "time is an argument"),
    ("std::thread", "protocol has no threads"),
    ("std::sync::mpsc", "protocol has no threads"),
    ("std::fs", "protocol does no I/O"),
    ("std::net", "protocol does no I/O"),
    ("std::io", "protocol does no I/O"),
    ("std::env", "protocol reads no environment"),
    ("std::process", "protocol does no I/O"),
    ("HashMap", "iteration differs between runs: use BTreeMap"),
    ("HashSet", "iteration differs between runs: use BTreeSet"),
    ("RandomState", "differs between runs"),
    ("OsRng", "randomness is an argument"),
    ("getrandom", "randomness is an argument"),
    ("mul_add", "fused products give other bits than the specification"),
    ("unsafe", "protocol needs none"),
];

/// Banned in code that handles peers' bytes: things that can end a node.
const PANICS: &[(&str, &str)] = &[
    (".unwrap()", "return an error"),
    (".unwrap_err()", "return an error"),
    (".expect(", "return an error"),
    (".expect_err(", "return an error"),
    ("panic!", "return an error"),
    ("unreachable!", "return an error, or shape the type so that it cannot be"),
];

/// Allowed uses of `.expect`, which no bytes can make fail: file, and message. Each was checked by hand; an entry
/// without a use in the code must go.
const PROVEN: &[(&str, &str)] = &[
    ("bootstrap/src/identity.rs", "36 bytes fit a multihash of 64"),
    ("bootstrap/src/identity.rs", "an identity multihash of at most 42 bytes is a peer id"),
    ("protocol/src/wire/binary.rs", "wire types always encode"),
];

/// Banned in text of any kind, comments and strings too.
fn unprintable() -> [(String, &'static str); 3] {
    // Assembled here, so that the check finds no pattern in this file.
    [
        (["FIX", "ME"].concat(), "fix it, or open an issue"),
        (["/ro", "ot/"].concat(), "a path of one machine"),
        (["index.", "crates.io"].concat(), "a registry's host"),
    ]
}

fn complaints(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    found.extend(long_file(source));
    found.extend(empty_name(source));
    found.extend(banned_text(source));
    let code = code_of(&source.text);
    found.extend(banned_code(source, &code, UNFINISHED));
    if source.path.ends_with("_test.rs") || source.path.starts_with("tests/tests/") {
        return found;
    }
    let product = without_tests(&code);
    found.extend(banned_code(source, &product, UNBOUNDED));
    if source.path.starts_with("protocol/src/") {
        found.extend(banned_code(source, &product, IMPURE));
    }
    if source.path.starts_with("node/src/") {
        found.extend(banned_code(source, &product, PRINTS));
    }
    if ["protocol/src/", "bootstrap/src/"].iter().any(|p| source.path.starts_with(p)) {
        found.extend(banned_code(source, &without_proven(source, product), PANICS));
    }
    found
}

/// Blanks the `.expect` of lines that are [`PROVEN`].
fn without_proven(source: &Source, code: String) -> String {
    let mut messages = PROVEN.iter().filter(|(path, _)| *path == source.path).map(|(_, message)| *message).peekable();
    if messages.peek().is_none() {
        return code;
    }
    let messages: Vec<String> = messages.map(|message| format!(".expect(\"{message}\")")).collect();
    let proven = |line: &str| messages.iter().any(|message| line.contains(message));
    let lines = code.lines().zip(source.text.lines());
    lines.map(|(code, text)| if proven(text) { code.replace(".expect(", "") } else { code.to_owned() } + "\n").collect()
}

/// The entries of [`PROVEN`] without a use in the sources.
fn stale_proofs(sources: &[Source]) -> Vec<String> {
    let stands = |path: &str, message: &str| sources.iter().any(|s| s.path == path && s.text.contains(message));
    let stale = PROVEN.iter().filter(|(path, message)| !stands(path, message));
    stale.map(|(path, message)| format!("{path}: {message:?} is gone: take it out of PROVEN")).collect()
}

fn long_file(source: &Source) -> Option<String> {
    let lines = source.text.lines().count();
    (lines > LINES_MAX).then(|| format!("{}: {lines} lines, at most {LINES_MAX}: split it", source.path))
}

fn empty_name(source: &Source) -> Option<String> {
    let mut parts = source.path.split('/').map(|part| part.trim_end_matches(".rs"));
    let part = parts.find(|part| EMPTY_NAMES.contains(part))?;
    Some(format!("{}: {part:?} says nothing: name it by what it holds", source.path))
}

fn banned_text(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        for (pattern, advice) in unprintable().iter().filter(|(pattern, _)| line.contains(pattern)) {
            found.push(format!("{}:{}: {pattern}: {advice}", source.path, number + 1));
        }
    }
    found
}

fn banned_code(source: &Source, code: &str, patterns: &[(&str, &str)]) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        for (pattern, advice) in patterns.iter().filter(|(pattern, _)| holds(line, pattern)) {
            found.push(format!("{}:{}: {pattern}: {advice}", source.path, number + 1));
        }
    }
    found
}

/// Whether the line holds the pattern, not as part of a longer name.
fn holds(line: &str, pattern: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(pattern).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(in_name);
        let after = line[at + pattern.len()..].chars().next().is_some_and(in_name);
        !(before && pattern.starts_with(in_name) || after && pattern.ends_with(in_name))
    })
}

/// A complaint if the struct in this file has more than `most` fields, or is not there.
fn wide(sources: &[Source], (path, name): (&str, &str), most: usize) -> Option<String> {
    let source = sources.iter().find(|source| source.path == path);
    match source.and_then(|source| fields_of(&without_tests(&code_of(&source.text)), name)) {
        None => Some(format!("{path}: no struct {name}: say here where it is")),
        Some(fields) => (fields > most).then(|| format!("{path}: {name} has {fields} fields, at most {most}")),
    }
}

/// Checks that the engine is made of parts that own their data.
fn knots(sources: &[Source]) -> Vec<String> {
    let engine = sources.iter().filter(|s| s.path.starts_with("protocol/src/engine/"));
    let codes: Vec<(&str, String)> = engine.map(|s| (s.path.as_str(), without_tests(&code_of(&s.text)))).collect();
    let mut found: Vec<String> = [
        wide(sources, ("protocol/src/engine/mod.rs", "Engine"), ENGINE_FIELDS_MAX),
        wide(sources, ("protocol/src/engine/round.rs", "Round"), ROUND_FIELDS_MAX),
    ]
    .into_iter()
    .flatten()
    .collect();
    let homes: Vec<&str> = codes.iter().filter(|(_, code)| holds(code, "impl Engine")).map(|(path, _)| *path).collect();
    if homes.len() > ENGINE_FILES_MAX {
        found.push(format!(
            "impl Engine is in {} files, at most {ENGINE_FILES_MAX}: {}",
            homes.len(),
            homes.join(", ")
        ));
    }
    let zipped = codes
        .iter()
        .filter(|(_, code)| code.lines().any(|l| l.contains("round") && l.contains(".zip(") && l.contains("head")));
    found.extend(zipped.map(|(path, _)| format!("{path}: a round has its head: no zip of the two")));
    found
}

/// Statements of the engine that compare something with the time by themselves: a node would not wake up for them.
fn deadlines_apart(sources: &[Source]) -> Vec<String> {
    let here = |s: &&Source| s.path.starts_with("protocol/src/engine/") && !s.path.ends_with("_test.rs");
    let mut found = Vec::new();
    for source in sources.iter().filter(here).filter(|s| !CLOCKS.contains(&s.path.as_str())) {
        let code = without_tests(&code_of(&source.text));
        let timed = |part: &&str| {
            let compares = [" < ", " > ", " <= ", " >= "].iter().any(|sign| part.contains(sign));
            part.contains(".passed(") || compares && (holds(part, "now") || part.contains(".since("))
        };
        let parts = code.split([';', '{', '}']).filter(timed);
        found.extend(parts.map(|part| format!("{}: {}: ask `due.rs`", source.path, part.trim())));
    }
    found
}

#[test]
fn only_one_file_compares_with_the_time() {
    let found = deadlines_apart(&repository::sources());
    assert!(found.is_empty(), "{}", found.join("\n"));
    let text = "fn f() {\n    let late = ctx.now.since(at) >= PAUSE;\n    if at.passed(ctx.now) && now < x {\n    }\n    a(now) + b;\n}\n";
    let of = |path: &str| deadlines_apart(&[Source { path: path.to_owned(), text: text.to_owned() }]).len();
    assert_eq!((of("protocol/src/engine/a.rs"), of(CLOCKS[0]), of("protocol/src/a.rs")), (2, 0, 0));
}

#[test]
fn the_engine_stays_apart() {
    let found = knots(&repository::sources());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_driver_hands_out_what_it_does_not_own() {
    let found = wide(&repository::sources(), ("node/src/runtime/driver.rs", "Driver"), DRIVER_FIELDS_MAX);
    assert_eq!(found, None);
}

#[test]
fn all_sources_keep_the_style() {
    let sources = repository::sources();
    assert!(sources.iter().any(|s| s.path == "protocol/src/lib.rs"), "the sources are found");
    let mut found: Vec<String> = sources.iter().flat_map(complaints).collect();
    found.extend(stale_proofs(&sources));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[cfg(test)]
mod injected {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        complaints(&Source { path: path.to_owned(), text: text.to_owned() })
    }

    #[test]
    fn long_files() {
        assert_eq!(found("node/src/a.rs", &"//\n".repeat(501)), ["node/src/a.rs: 501 lines, at most 500: split it"]);
        assert!(found("node/src/a.rs", &"//\n".repeat(500)).is_empty());
    }

    #[test]
    fn an_engine_that_grows_together() {
        let source =
            |file: &str, text: &str| Source { path: format!("protocol/src/engine/{file}"), text: text.to_owned() };
        let fields = |name: &str, count| {
            format!("struct {name} {{\n{}}}\n", "    /// A field.\n    a: B<C, D>,\n".repeat(count))
        };
        let sound = |fields_of_engine| {
            vec![
                source("mod.rs", &fields("Engine", fields_of_engine)),
                source("round.rs", &fields("Round", ROUND_FIELDS_MAX)),
            ]
        };
        assert!(knots(&sound(ENGINE_FIELDS_MAX)).is_empty());
        assert_eq!(knots(&sound(ENGINE_FIELDS_MAX + 1)).len(), 1);
        assert_eq!(knots(&sound(1)[..1]).len(), 1, "no round");
        let mut spread = sound(1);
        spread.extend((0..=ENGINE_FILES_MAX).map(|n| source(&format!("{n}.rs"), "impl Engine {\n}\n")));
        assert_eq!(knots(&spread).len(), 1);
        let mut zipped = sound(1);
        zipped.push(source(
            "a.rs",
            "let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };\n",
        ));
        assert_eq!(knots(&zipped).len(), 1);
    }

    #[test]
    fn names_that_say_nothing() {
        assert_eq!(
            found("node/src/net/util.rs", ""),
            ["node/src/net/util.rs: \"util\" says nothing: name it by what it holds"]
        );
        assert_eq!(found("node/src/common/mod.rs", "").len(), 1);
        assert!(found("node/src/utility.rs", "").is_empty());
    }

    #[test]
    fn unfinished_code() {
        let text = "fn a() {\n    todo!()\n}\nfn b() { unimplemented!(\"later\") }\nfn c() { dbg!(1); }\n";
        assert_eq!(
            found("kernels/src/a.rs", text),
            [
                "kernels/src/a.rs:2: todo!: finish it, or leave it out",
                "kernels/src/a.rs:4: unimplemented!: finish it, or leave it out",
                "kernels/src/a.rs:5: dbg!: use tracing",
            ]
        );
        let note = ["// FIX", "ME later"].concat();
        assert_eq!(
            found("kernels/src/a.rs", &note),
            [["kernels/src/a.rs:1: FIX", "ME: fix it, or open an issue"].concat()]
        );
        assert!(found("kernels/src/a.rs", "// a todo! in words\nlet s = \"dbg!\"; my_dbg!(s);").is_empty());
    }

    #[test]
    fn unbounded_channels() {
        let text = "use tokio::sync::mpsc::unbounded_channel;\nlet (a, b) = std::sync::mpsc::channel();\n\
                    let c = futures::channel::mpsc::unbounded();\nlet d = mpsc::channel(CAPACITY);\n";
        let lines: Vec<String> = found("node/src/a.rs", text);
        assert_eq!(
            lines,
            [
                "node/src/a.rs:1: unbounded_channel: use a bounded channel with a named capacity",
                "node/src/a.rs:2: mpsc::channel(): use sync_channel with a named capacity",
                "node/src/a.rs:3: unbounded(): use a bounded channel with a named capacity",
                "node/src/a.rs:3: mpsc::unbounded: use a bounded channel with a named capacity",
            ]
        );
    }

    #[test]
    fn prints_that_panic_without_a_reader() {
        let text = "fn f() {\n    println!(\"a\");\n    print!(\"b\");\n    eprintln!(\"c\");\n}\n";
        let lines = found("node/src/a.rs", text);
        assert!(matches!(&lines[..], [line, word] if line.contains(":2: println!: ") && word.contains(":3: print!: ")));
        assert!(found("bootstrap/src/main.rs", text).is_empty());
    }

    #[test]
    fn machines_in_text() {
        let text = ["let home = \"/ro", "ot/data\";\n// https://index.", "crates.io\n"].concat();
        assert_eq!(found("node/src/a.rs", &text).len(), 2);
    }

    #[test]
    fn impure_protocol() {
        let text = "use std::collections::HashMap;\nlet now = std::time::Instant::now();\nstd::thread::spawn(f);\n";
        assert_eq!(
            found("protocol/src/a.rs", text),
            [
                "protocol/src/a.rs:1: HashMap: iteration differs between runs: use BTreeMap",
                "protocol/src/a.rs:2: std::time: time is an argument",
                "protocol/src/a.rs:2: Instant::now: time is an argument",
                "protocol/src/a.rs:3: std::thread: protocol has no threads",
            ]
        );
        assert!(found("node/src/a.rs", text).is_empty(), "elsewhere these are fine");
        assert!(found("protocol/src/a_test.rs", text).is_empty(), "and in tests");
        assert!(found("protocol/src/a.rs", "struct InstantOfNow; fn my_getrandom_free() {}").is_empty());
    }

    #[test]
    fn panics_where_bytes_arrive() {
        let text = "fn f() {\n    a.unwrap();\n    b.expect(\"why\");\n    panic!(\"no\");\n    c.unwrap_or(1);\n}\n";
        for path in ["protocol/src/a.rs", "bootstrap/src/a.rs"] {
            assert_eq!(
                found(path, text),
                [
                    format!("{path}:2: .unwrap(): return an error"),
                    format!("{path}:3: .expect(: return an error"),
                    format!("{path}:4: panic!: return an error"),
                ]
            );
        }
        assert!(found("tests/src/a.rs", text).is_empty());
    }

    #[test]
    fn proofs_excuse_one_message_only() {
        let (path, message) = PROVEN[0];
        let text = format!("a.expect(\"{message}\");\nb.expect(\"other\");\n");
        assert_eq!(found(path, &text), [format!("{path}:2: .expect(: return an error")]);
        assert_eq!(found("protocol/src/other.rs", &text).len(), 2);
        let sources = [Source { path: path.to_owned(), text }];
        assert_eq!(stale_proofs(&sources).len(), PROVEN.len() - 1);
    }

    #[test]
    fn tests_and_comments_are_no_product() {
        let text = "/// let x = a.unwrap();\nfn f<'a>(x: &'a str) -> char { '\"' }\n#[cfg(test)]\nmod tests {\n    \
                    fn g() { a.unwrap(); if b { panic!() } }\n}\nfn h() { r#\"a.unwrap()\"#; /* panic! /* */ */ }\n\
                    fn i() {\n    b.unwrap();\n}\n";
        assert_eq!(found("protocol/src/a.rs", text), ["protocol/src/a.rs:9: .unwrap(): return an error"]);
        let only_import = "#[cfg(test)]\nuse x::y;\nfn i() { '\\''; b.unwrap(); }\n";
        assert_eq!(found("protocol/src/a.rs", only_import).len(), 1);
    }
}
