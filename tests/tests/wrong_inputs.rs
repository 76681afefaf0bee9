//! A table of wrong inputs, `wrong_inputs.txt`: each is answered within a second, with its exit code, in words from
//! which a person knows what is wrong, where, and what to do.

use starling_tests::flock::built_binaries;
use starling_tests::process::{run_fed, run_in};
use starling_tests::skips::skipped;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const TABLE: &str = include_str!("wrong_inputs.txt");
/// A row's file that the call reads from its standard input, which is empty otherwise.
const INPUT: &str = "stdin";
/// Fewer rows would not cover what people do.
const ROWS_MIN: usize = 80;
/// An answer takes less than this.
const SOON: Duration = Duration::from_secs(1);
/// Calls of a row by itself, if it was slow beside others on a busy machine; the best one counts.
const REPETITIONS: usize = 3;
/// A call that takes so long hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Calls at a time.
const WORKERS: usize = 4;
/// Words of Rust, of the system and of libraries, which no message has.
const FOREIGN: [&str; 12] = [
    "os error",
    "i/o error",
    "panicked",
    "invalid digit",
    "invalid float",
    "invalid type",
    "expected u32",
    "expected struct",
    "Error(",
    "Err(",
    "Some(",
    "::",
];
const RUN_TOML: &str = "name = \"bad\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\n\
                        holdout = 0.1\n[inner]\nsteps = 2\nbatch = 2\n[budget]\nrounds = 2\n";
const SENTENCE: &str = "All happy families are alike.\n";

/// One call, and what is expected of it.
#[derive(Debug, Default)]
struct Row {
    say: String,
    /// Names and contents as the table has them.
    files: Vec<(String, String)>,
    /// None: any but 0.
    code: Option<i32>,
    words: Vec<String>,
}

/// Reads the table.
fn rows(table: &str) -> Vec<Row> {
    let (mut rows, mut row) = (Vec::new(), Row::default());
    for line in table.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        if let Some(say) = line.strip_prefix("$ ") {
            row.say = say.to_owned();
        } else if let Some(file) = line.strip_prefix("> ") {
            let (name, content) = file.split_once(' ').unwrap_or_else(|| panic!("a file without content: {line}"));
            row.files.push((name.to_owned(), content.to_owned()));
        } else {
            let mut parts = line.split(" | ");
            let code = parts.next().unwrap_or_default();
            row.code = (code != "!").then(|| code.parse().unwrap_or_else(|_| panic!("no exit code: {line}")));
            row.words = parts.map(str::to_owned).collect();
            rows.push(std::mem::take(&mut row));
        }
    }
    rows
}

/// Makes a file of a row.
fn make(folder: &Path, name: &str, content: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("it is below the folder")).expect("a folder");
    let (kind, text) = content.split_at(1);
    let text = text.strip_prefix(' ').unwrap_or(text).replace("\\n", "\n").replace("\\0", "\0");
    let bytes = match kind {
        "/" => return std::fs::create_dir_all(&path).expect("a folder"),
        "%" => vec![0xff, 0xfe, 0xff],
        "*" => SENTENCE.repeat(text.parse().expect("a number of sentences")).into_bytes(),
        "+" => format!("{RUN_TOML}{text}").into_bytes(),
        ":" => text.into_bytes(),
        "~" => {
            let (before, after) = text.split_once(" => ").expect("A => B");
            assert_eq!(RUN_TOML.matches(before).count(), 1, "{before} is once in the run file");
            RUN_TOML.replace(before, after).into_bytes()
        }
        other => panic!("{name}: no content is written with {other}"),
    };
    std::fs::write(path, bytes).expect("written");
}

/// The arguments of a call: `train` gets the flags that every test needs, unless the row has them.
fn arguments(say: &str) -> Vec<String> {
    let mut arguments: Vec<String> = say.split_whitespace().map(|word| word.replace("''", "")).collect();
    if arguments[0] == "=" {
        arguments.remove(0);
        return arguments;
    }
    arguments.push("--no-mdns".to_owned());
    for (flag, value) in [
        ("--run", "run.toml"),
        ("--home", "home"),
        ("--cache", "cache"),
        ("--metrics", "off"),
        ("--listen", "/ip4/127.0.0.1/tcp/0"),
        ("--device", "cpu"),
        ("--threads", "1"),
    ] {
        let instead = match flag {
            "--run" => "--join",
            "--threads" => "--config",
            _ => flag,
        };
        let given = |argument: &String| argument == flag || argument == instead;
        if !arguments.iter().any(given) {
            arguments.extend([flag.to_owned(), value.to_owned()]);
        }
    }
    arguments
}

/// Why the program's answer is not the one of the row, if so, and the time that it took.
fn answer(row: &Row, port: &str) -> (Result<(), String>, Duration) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("run.toml"), RUN_TOML).expect("written");
    std::fs::write(folder.path().join("text.txt"), SENTENCE.repeat(6000)).expect("written");
    for (name, content) in &row.files {
        make(folder.path(), name, content);
    }
    let program = built_binaries().expect("the folder of this test").join("starling");
    let input = File::open(folder.path().join(INPUT)).map_or_else(|_| Stdio::null(), Stdio::from);
    let from = Instant::now();
    let finished = run_fed(folder.path(), &program, &arguments(&row.say.replace("PORT", port)), input, LIMIT);
    let took = from.elapsed();
    let finished = match finished {
        Ok(finished) => finished,
        Err(why) => return (Err(why.to_string()), took),
    };
    let said = &finished.stderr;
    let wrong = |what: String| Err(format!("{what}; it said: {said}"));
    let code_fits = row.code.map_or(finished.code != Some(0) && finished.code.is_some(), |c| finished.code == Some(c));
    if !code_fits {
        return (wrong(format!("exit code {:?}", finished.code)), took);
    }
    let missing = row.words.iter().map(|words| words.replace("PORT", port)).find(|words| !said.contains(words));
    if let Some(words) = missing {
        return (wrong(format!("`{words}` is missing")), took);
    }
    match FOREIGN.iter().find(|words| said.contains(*words)) {
        Some(words) => (wrong(format!("`{words}` is no word for people")), took),
        None => (Ok(()), took),
    }
}

/// The best time of a call that took `first`, and is repeated while it has taken too long.
fn best(first: Duration, mut again: impl FnMut() -> Duration) -> Duration {
    let mut best = first;
    for _ in 0..REPETITIONS {
        if best < SOON {
            break;
        }
        best = best.min(again());
    }
    best
}

#[test]
fn each_wrong_input_is_answered_in_plain_words_and_soon() {
    let rows = rows(TABLE);
    assert!(rows.len() >= ROWS_MIN, "{} rows", rows.len());
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port().to_string();
    let (next, answers) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let answered = answer(row, &port);
                    answers.lock().expect("no worker panicked").push((row, answered));
                }
            });
        }
    });
    let (mut wrong, mut times) = (Vec::new(), Vec::new());
    for (row, (answered, took)) in answers.into_inner().expect("no worker panicked") {
        times.push((took, row.say.as_str()));
        let late = || {
            let best = best(took, || answer(row, &port).1);
            (best >= SOON).then(|| format!("it takes {:.2} s by itself", best.as_secs_f64()))
        };
        if let Some(why) = answered.err().or_else(late) {
            wrong.push(format!("starling {} {:?}\n  {why}", row.say, row.files));
        }
    }
    assert_eq!(times.len(), rows.len());
    times.sort_unstable();
    for (took, say) in times.iter().rev().take(3) {
        println!("{:.2} s: starling {say}", took.as_secs_f64());
    }
    assert!(wrong.is_empty(), "{} of {} answers:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

#[test]
fn only_slow_calls_are_repeated_and_the_best_counts() {
    let timed = |first: u64, later: [u64; REPETITIONS]| {
        let mut calls = 0;
        let best = best(Duration::from_millis(first), || {
            calls += 1;
            Duration::from_millis(later[calls - 1])
        });
        (best.as_millis(), calls)
    };
    assert_eq!(timed(999, [1; REPETITIONS]), (999, 0));
    assert_eq!(timed(4000, [2000, 300, 100]), (300, 2));
    assert_eq!(timed(4000, [2000, 1000, 5000]), (1000, 3));
}

/// Files that are there and that this user may not read.
#[test]
fn files_without_permission_say_so() {
    if rustix::process::geteuid().is_root() {
        return skipped("files without permission are not tested: root may read everything");
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (name, flag) in [("locked.toml", "--run"), ("node.toml", "--config")] {
        let path = folder.path().join(name);
        std::fs::write(&path, RUN_TOML).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).expect("its owner may");
        let program = built_binaries().expect("the folder of this test").join("starling");
        let call = arguments(&format!("train {flag} {name}"));
        let finished = run_in(folder.path(), &program, &call, LIMIT).expect("it ends in time");
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        assert!(finished.stderr.contains(name) && finished.stderr.contains("no permission"), "{}", finished.stderr);
    }
}

/// A table that is read wrongly would prove nothing.
#[test]
fn the_table_is_read_as_it_is_written() {
    let read = rows("# a comment\n\n$ train --x\n> a.toml ~ b => c\n> d /\n2 | e f | g\n$ = status\n! | h\n");
    let [first, second] = &read[..] else { panic!("{read:?}") };
    assert_eq!((first.say.as_str(), first.files.len(), first.code), ("train --x", 2, Some(2)));
    assert_eq!(first.words, ["e f", "g"]);
    assert_eq!((second.code, second.files.len()), (None, 0));
    assert_eq!(arguments("= status"), ["status"]);
    let train = arguments("train --join '' --device tpu");
    assert!(train[2].is_empty() && !train.contains(&"--run".to_owned()) && !train.contains(&"cpu".to_owned()));
}
