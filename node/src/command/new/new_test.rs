use super::*;
use crate::cli::{Cli, Command};
use clap::Parser;
use tempfile::TempDir;

/// A folder with a text, and a place for a node's folder.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("text.txt"), "word ".repeat(100_000)).expect("written");
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_string_lossy().into_owned()
    }

    /// Runs `starling new` with these flags besides; `typed` is what a person types, if there is one.
    fn new_run(&self, flags: &[&str], typed: Option<&str>) -> Result<String, Failure> {
        let (home, file) = (self.path("home"), self.path("run.toml"));
        let line = ["starling", "new", file.as_str(), "--home", home.as_str()];
        let cli = Cli::parse_from(line.iter().chain(flags).copied());
        let Command::New(args) = cli.command else { panic!("another command") };
        let (mut typed, mut out) = (typed.map(str::as_bytes), Vec::new());
        let person = typed.as_mut().map(|typed| typed as &mut dyn BufRead);
        written_by(&args, &mut Asker::new(person, &mut out))
    }

    fn written(&self) -> RunFile {
        RunFile::load(self.path("run.toml").as_ref()).unwrap_or_else(|failure| panic!("{}", failure.error))
    }
}

#[test]
fn flags_alone_write_a_file_that_a_start_takes() {
    let place = Place::new();
    let text = place.path("text.txt");
    let said = place.new_run(&["--data", &text], None).unwrap_or_else(|failure| panic!("{}", failure.error));
    let file = place.written();
    assert_eq!((file.name.as_str(), file.model.preset.as_str()), ("run", "0.1m"), "the text is short");
    assert_eq!(file.data.sources, [text]);
    // 500 kB of text in bytes, of which one in a hundred is held out; shown with one digit after the point.
    assert_eq!((file.budget.tokens, file.admission.mode), (495_000, AdmissionName::Open));
    crate::runtime::check_run_file(&file).unwrap_or_else(|failure| panic!("{}", failure.error));
    for words in ["wrote ", "starling doctor --run ", "starling train --run ", "starling invite --run ", "--home "] {
        assert!(said.contains(words), "`{words}` is missing in: {said}");
    }
}

#[test]
fn a_file_that_is_there_stays_unless_it_is_forced_away() {
    let place = Place::new();
    let text = place.path("text.txt");
    let flags = ["--data", text.as_str(), "--size", "1m", "--tokens", "20k"];
    place.new_run(&flags, None).unwrap_or_else(|failure| panic!("{}", failure.error));
    let before = std::fs::read(place.path("run.toml")).expect("it is there");
    let refused = place.new_run(&["--data", &text], None).expect_err("it is there already");
    assert_eq!(refused.code, Code::Usage);
    assert!(refused.error.to_string().contains("--force"), "{}", refused.error);
    assert_eq!(std::fs::read(place.path("run.toml")).expect("it is there"), before);
    let forced = ["--data", text.as_str(), "--size", "3m", "--force"];
    place.new_run(&forced, None).unwrap_or_else(|failure| panic!("{}", failure.error));
    assert_eq!(place.written().model.preset, "3m");
    let entries = std::fs::read_dir(place.0.path()).expect("a folder").flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, ["run.toml", "text.txt"], "nothing is left beside it");
}

#[test]
fn a_file_that_cannot_be_written_is_told_with_the_reason_and_what_fits_it() {
    let place = Place::new();
    let gone = write(place.path("gone/run.toml").as_ref(), "a", false).expect_err("no such folder");
    assert!(gone.error.to_string().ends_with("no such file or folder; name another file"), "{}", gone.error);
    assert_eq!(gone.code, Code::Refused);
    let there = write(place.path("text.txt").as_ref(), "a", false).expect_err("it is there");
    assert_eq!(there.code, Code::Usage);
    if cfg!(target_os = "linux") {
        let full = write(Path::new("/dev/full"), "a", true).expect_err("it is always full");
        assert_eq!(full.code, Code::DiskFull);
        assert!(full.error.to_string().ends_with("the disk is full; free some space"), "{}", full.error);
    }
}

#[test]
fn a_person_is_asked_what_the_flags_do_not_say() {
    let place = Place::new();
    let typed = format!("nowhere.txt\n{}\n\n7b\n1m\n30k\nlist\n\n", place.path("text.txt"));
    place.new_run(&["--name", "ours"], Some(&typed)).unwrap_or_else(|failure| panic!("{}", failure.error));
    let file = place.written();
    assert_eq!((file.name.as_str(), file.model.preset.as_str(), file.budget.tokens), ("ours", "1m", 30_000));
    let me = identity::load(place.path("home/key").as_ref()).expect("the key is made").node_id();
    assert_eq!((file.admission.mode, file.admission.allow), (AdmissionName::List, vec![me.to_string()]));
    assert_eq!(file.creator, None);
}

#[test]
fn with_tickets_this_machine_signs_them_unless_another_is_named() {
    let place = Place::new();
    let text = place.path("text.txt");
    let flags = ["--data", text.as_str(), "--admission", "tickets"];
    place.new_run(&flags, None).unwrap_or_else(|failure| panic!("{}", failure.error));
    let me = identity::load(place.path("home/key").as_ref()).expect("the key is made").node_id();
    assert_eq!(place.written().creator, Some(me.to_string()));
    let other = "07".repeat(32);
    let flags = ["--data", text.as_str(), "--admission", "ticket", "--creator", other.as_str(), "--force"];
    place.new_run(&flags, None).unwrap_or_else(|failure| panic!("{}", failure.error));
    assert_eq!(place.written().creator, Some(other));
}

#[test]
fn wrong_flags_are_named_and_write_nothing() {
    let place = Place::new();
    let text = place.path("text.txt");
    let rows: [(&[&str], &str); 6] = [
        (&["--data", "nowhere.txt"], "--data"),
        (&["--data", &text, "--size", "7b"], "--size 7b: there are 0.1m, 1m"),
        (&["--data", &text, "--tokens", "many"], "--tokens many"),
        (&["--data", &text, "--admission", "friends"], "--admission friends"),
        (&["--data", &text, "--allow", "07"], "--allow goes with --admission list"),
        (&["--data", &text, "--name", "Our Run"], "--name Our Run: give 1 to 64 of a-z, 0-9 and -, such as our-run"),
    ];
    for (flags, words) in rows {
        let refused = place.new_run(flags, None).expect_err(words);
        let said = refused.error.to_string();
        assert!(refused.code == Code::Usage && said.contains(words), "{said}");
        assert!(!Path::new(&place.path("run.toml")).exists(), "{words}");
    }
}

#[test]
fn names_and_paths_are_made_fit_for_the_file() {
    assert_eq!(plain("Our Corpus (2)"), "our-corpus--2");
    assert_eq!(plain("--"), "");
    assert_eq!(as_in(Path::new("run.toml"), "text"), "text");
    assert_eq!(as_in(Path::new("elsewhere/run.toml"), "@crates"), "@crates");
    let moved = as_in(Path::new("elsewhere/run.toml"), "text");
    assert!(Path::new(&moved).is_absolute() && moved.ends_with("/text"), "{moved}");
    assert_eq!((quoted(Path::new("a/b.toml")), quoted(Path::new("it's"))), ("a/b.toml".into(), "'it'\\''s'".into()));
}
