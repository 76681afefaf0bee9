//! Checks the files in `configs/`: each loads as the kind that its name says; the reference files list every key with
//! its default and a comment; and a key that does not exist is refused with the nearest right one.

mod repository;

use serde::Serialize;
use serde::de::DeserializeOwned;
use starling_bootstrap::config_file::{self, ConfigError};
use starling_bootstrap::service::BootstrapConfig;
use starling_node::config::node_file::NodeFile;
use starling_node::config::run_file::RunFile;
use starling_protocol::Digest;
use starling_protocol::run::DataSpec;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A key that no file knows, and that is near no known key.
const NOBODYS_KEY: &str = "qqqqqqqqqqqqqqqq";
/// The least run file.
const MINIMAL_RUN: &str = "name = \"my-run\"\n";

fn config(name: &str) -> (PathBuf, String) {
    let path = repository::root().join("configs").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (path, text)
}

/// All TOML files in `configs/`, by name.
fn names() -> Vec<String> {
    let folder = fs::read_dir(repository::root().join("configs")).expect("configs/ is there");
    let names = folder.map(|entry| entry.expect("configs/ can be read").file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".toml")).collect();
    names.sort();
    names
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    config_file::parse(text, Path::new("FILE"))
}

/// The keys that a table of `T` knows, from the error for an unknown one; `None` if it is no table.
fn known<T: DeserializeOwned>(before: &str, table: &str) -> Option<Vec<String>> {
    let header = if table.is_empty() { String::new() } else { format!("[{table}]\n") };
    match parse::<T>(&format!("{before}{header}{NOBODYS_KEY} = 1\n")) {
        Err(ConfigError::UnknownKey { key, hint, .. }) if key == NOBODYS_KEY => {
            let keys = hint.strip_prefix("known here: ").expect("nothing is near that key");
            Some(keys.split(", ").map(str::to_owned).collect())
        }
        _ => None,
    }
}

/// Keys of a file, `table.key` below a table, active or commented out; each with whether its paragraph has a comment
/// about it.
fn keys(text: &str) -> Vec<(String, bool)> {
    let (mut found, mut table, mut explained) = (Vec::new(), String::new(), false);
    for line in text.lines() {
        let bare = line.trim().trim_start_matches(['#', ' ']);
        let key = bare.split_once(" = ").map(|(key, _)| key).filter(|key| is_key(key));
        if line.trim().is_empty() {
            explained = false;
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            table = format!("{name}.");
        } else if let Some(key) = key {
            found.push((format!("{table}{key}"), explained || line.contains(" # ")));
        } else if line.starts_with('#') {
            explained = true;
        }
    }
    found
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// The errors of a reference file: keys that it leaves out, that do not exist, or that it does not explain.
fn complaints<T: DeserializeOwned>(text: &str, before: &str) -> Vec<String> {
    let mut expected = BTreeSet::new();
    for key in known::<T>(before, "").expect("the top of a file is a table") {
        match known::<T>(before, &key) {
            Some(inner) => expected.extend(inner.iter().map(|inner| format!("{key}.{inner}"))),
            None => drop(expected.insert(key)),
        }
    }
    let mut found = Vec::new();
    let listed = keys(text);
    for key in &expected {
        if !listed.iter().any(|(listed, _)| listed == key) {
            found.push(format!("{key} is left out"));
        }
    }
    for (key, explained) in listed {
        if !expected.contains(&key) {
            found.push(format!("{key} does not exist"));
        } else if !explained {
            found.push(format!("{key} stands without a word"));
        }
    }
    found
}

/// Checks a reference file: complete, explained, and showing the defaults.
fn check_reference<T: DeserializeOwned + Serialize>(name: &str, before: &str) {
    let (_, text) = config(name);
    assert_eq!(complaints::<T>(&text, before), Vec::<String>::new(), "configs/{name}");
    let shown = |text: &str| {
        let file: T = parse(text).unwrap_or_else(|error| panic!("configs/{name}: {error}"));
        toml::to_string(&file).expect("settings can be written")
    };
    assert_eq!(shown(&text), shown(before), "configs/{name} shows the defaults");
}

#[test]
fn every_file_loads() {
    let names = names();
    for reference in ["bootstrap.toml", "node.toml", "run.toml"] {
        assert!(names.iter().any(|name| name == reference), "configs/{reference} is there");
    }
    for name in names {
        let (path, text) = config(&name);
        let loads = if name.starts_with("bootstrap") {
            parse::<BootstrapConfig>(&text).map(drop).map_err(|error| error.to_string())
        } else if name.starts_with("node") {
            NodeFile::load(&path).map(drop).map_err(|error| format!("{error:?}"))
        } else {
            check_run(&path)
        };
        assert_eq!(loads, Ok(()), "configs/{name}");
        let wrong = format!("{NOBODYS_KEY} = 1\n{text}");
        let refused = if name.starts_with("bootstrap") {
            parse::<BootstrapConfig>(&wrong).is_err()
        } else if name.starts_with("node") {
            parse::<NodeFile>(&wrong).is_err()
        } else {
            parse::<RunFile>(&wrong).is_err()
        };
        assert!(refused, "configs/{name} with a key too many");
    }
}

/// Loads a run file and makes a specification of it, as if its data were prepared.
fn check_run(path: &Path) -> Result<(), String> {
    let file = RunFile::load(path).map_err(|error| format!("{error:?}"))?;
    let data = DataSpec { manifest: Digest::of("test", &[]), tokenizer: Digest::of("test", &[]) };
    file.spec(data, 256).map(drop).map_err(|error| format!("{error:?}"))
}

#[test]
fn reference_files_are_complete() {
    check_reference::<BootstrapConfig>("bootstrap.toml", "");
    check_reference::<NodeFile>("node.toml", "");
    check_reference::<RunFile>("run.toml", MINIMAL_RUN);
}

#[test]
fn gaps_in_a_reference_are_found() {
    let (_, text) = config("run.toml");
    let without = text.replace("warmup_steps = ", "warm_up_steps = ");
    assert_eq!(
        complaints::<RunFile>(&without, MINIMAL_RUN),
        ["inner.warmup_steps is left out", "inner.warm_up_steps does not exist"]
    );
    let silent = text.replace("# Root of every random stream", "\nseed = 1\n\n# Root of every random stream");
    assert_eq!(complaints::<RunFile>(&silent, MINIMAL_RUN), ["seed stands without a word"]);
}

/// The nodes of one person vote at once; the nodes of an open run do not.
#[test]
fn probation_is_for_open_runs_and_not_for_the_demo() {
    let probation = |text: &str| parse::<RunFile>(text).expect("it parses").admission.probation();
    assert_eq!(probation(&config("run.toml").1), 8);
    assert_eq!(probation(&config("demo.toml").1), 0);
    let data = || DataSpec { manifest: Digest::of("test", &[]), tokenizer: Digest::of("test", &[]) };
    let refused = |table: &str| {
        let file: RunFile = parse(&format!("{MINIMAL_RUN}[admission]\n{table}\n")).expect("it parses");
        file.spec(data(), 256).map(drop).map_err(|error| format!("{error:?}")).expect_err("it is refused")
    };
    let listed = refused(&format!("mode = \"list\"\nallow = [\"{}\"]\nprobation = 3", "01".repeat(32)));
    assert!(listed.contains("admission.probation = 3: must be 0"), "{listed}");
    assert!(refused("probation = 5000").contains("between 0 and 4096"));
}

#[test]
fn a_misspelt_key_is_answered_with_the_right_one() {
    let (_, text) = config("run.toml");
    let error = parse::<RunFile>(&text.replace("warmup_steps", "warmup_step")).expect_err("no such key").to_string();
    assert!(error.contains("did you mean `warmup_steps`?"), "{error}");
    let (_, text) = config("node.toml");
    let error = parse::<NodeFile>(&text.replace("listen =", "lissen =")).expect_err("no such key").to_string();
    assert!(error.contains("did you mean `listen`?"), "{error}");
}
