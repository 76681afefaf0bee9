//! How the process ends: one message and one of the documented exit codes.

use starling_data::DataError;
use starling_kernels::OpenError;
use starling_store::StoreError;
use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::process::ExitCode;

/// Exit codes. `starling --help` and `docs/user/errors.md` have the same table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    Refused = 1,
    Usage = 2,
    ConfigMismatch = 3,
    StoreDamaged = 4,
    DiskFull = 5,
    IdentityInUse = 6,
    Diverged = 7,
}

impl Code {
    /// All codes but that of success, in order.
    pub const ALL: [Self; 7] = [
        Self::Refused,
        Self::Usage,
        Self::ConfigMismatch,
        Self::StoreDamaged,
        Self::DiskFull,
        Self::IdentityInUse,
        Self::Diverged,
    ];

    /// The meaning of the code, as tables have it.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Refused => "it cannot start or go on: a port in use, no permission, no node to ask, a failed check",
            Self::Usage => "what you gave is wrong: a flag, a file, a text, a tokenizer, a device",
            Self::ConfigMismatch => "the folder, the flock or the checkpoint belongs to another run or release",
            Self::StoreDamaged => "a file of the node or of a checkpoint is damaged",
            Self::DiskFull => "the disk is full, or too small for the run",
            Self::IdentityInUse => "another process uses the folder or the key",
            Self::Diverged => "the training diverged: the losses are far too high, or the model is worse than guessing",
        }
    }

    /// The code of an error that names none itself.
    fn of(error: &anyhow::Error) -> Self {
        if let Some(error) = error.downcast_ref::<StoreError>() {
            return Self::of_store(error);
        }
        if let Some(error) = error.downcast_ref::<DataError>() {
            return Self::of_data(error);
        }
        if error.is::<OpenError>() {
            Self::Usage
        } else if error.chain().any(is_full_disk) {
            Self::DiskFull
        } else {
            Self::Refused
        }
    }

    fn of_store(error: &StoreError) -> Self {
        Self::numbered(error.exit_code()).unwrap_or(Self::Refused)
    }

    /// The code of this number.
    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u8 == number)
    }

    /// Problems with the text are for the user to solve.
    fn of_data(error: &DataError) -> Self {
        if error.is_disk_full() {
            Self::DiskFull
        } else if error.is_of_the_text() {
            Self::Usage
        } else {
            Self::Refused
        }
    }
}

/// Whether the error is the system's word that a disk, or this user's part of it, is full.
pub fn is_full_disk(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
}

/// The table of exit codes below `starling --help`.
pub fn table() -> String {
    let row = |code: Code| format!("\n  {}  {}", code as u8, code.meaning());
    let rows: String = Code::ALL.into_iter().map(row).collect();
    format!("Exit codes:\n  0  done{rows}")
}

/// An error with the exit code it leads to.
#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    pub error: anyhow::Error,
}

impl Failure {
    pub fn new(code: Code, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: error.into() }
    }

    pub fn message(code: Code, message: impl fmt::Display) -> Self {
        Self { code, error: anyhow::anyhow!("{message}") }
    }

    /// Prints the message to standard error and turns into the exit code.
    pub fn report(&self) -> ExitCode {
        // A reader that went away does not change the code.
        let _ = writeln!(io::stderr(), "starling: {}", harmless(&self.words()));
        ExitCode::from(self.code as u8)
    }

    /// The error and its causes. A cause that the text before already states is left out.
    fn words(&self) -> String {
        starling_words::of_chain(self.error.chain())
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    /// An error without a code of its own is a plain refusal, but for those of which [`Code::of`] knows better.
    fn from(error: E) -> Self {
        let error = error.into();
        Self { code: Code::of(&error), error }
    }
}

/// The text with `?` for characters that a terminal would obey. Values of files and names of files may hold them.
fn harmless(text: &str) -> String {
    let shown = |c| if starling_words::is_obeyed(c) && !matches!(c, '\n' | '\t') { '?' } else { c };
    text.chars().map(shown).collect()
}

/// Ends the process for a command line that does not parse, or that asks for help.
pub fn of_command_line(error: &clap::Error) -> ExitCode {
    if let Some(why) = no_number(error) {
        return Failure::message(Code::Usage, why).report();
    }
    // A reader that went away needs no help.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(Code::Usage as u8) } else { ExitCode::SUCCESS }
}

/// The message for a value that is no number, where the parser has the words of Rust.
fn no_number(error: &clap::Error) -> Option<String> {
    let source = error.source()?;
    let wanted = if let Some(error) = source.downcast_ref::<ParseIntError>() {
        match error.kind() {
            IntErrorKind::PosOverflow => "that is more than there can be; give a smaller whole number",
            _ => "give a whole number of 0 or more",
        }
    } else if source.is::<ParseFloatError>() {
        "give a number, such as 0.8"
    } else {
        return None;
    };
    let said = |kind| match error.get(kind) {
        Some(clap::error::ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let flag = said(clap::error::ContextKind::InvalidArg)?.split(' ').next()?;
    let value = said(clap::error::ContextKind::InvalidValue)?;
    Some(format!("{flag} {value}: {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use anyhow::Context;
    use clap::{CommandFactory, Parser};
    use std::path::PathBuf;

    #[test]
    fn causes_are_said_once_and_without_numbers_of_the_system() {
        let gone = || std::io::Error::from_raw_os_error(2);
        let silent = Err::<(), _>(gone()).context("cannot read it").unwrap_err();
        assert_eq!(Failure::new(Code::Refused, silent).words(), "cannot read it: no such file or folder");
        let telling = "cannot read it: no such file or folder; check the path";
        let failure = Failure::new(Code::Refused, Err::<(), _>(gone()).context(telling).unwrap_err());
        assert_eq!(failure.words(), telling);
    }

    #[test]
    fn no_message_moves_the_cursor_or_turns_letters_round() {
        assert_eq!(harmless("say which:\n  --home a\x1b[2Jb\rc\u{9b}d"), "say which:\n  --home a?[2Jb?c?d");
        assert_eq!(harmless("a\tb\u{202e}c\u{2066}d\u{200f}"), "a\tb?c?d?");
    }

    #[test]
    fn a_full_disk_has_its_code_wherever_it_is_met() {
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            let error = Err::<(), _>(io::Error::from(kind)).context("cannot write it").unwrap_err();
            assert_eq!(Failure::from(error).code, Code::DiskFull);
            assert_eq!(Failure::from(io::Error::from(kind)).code, Code::DiskFull);
        }
        assert_eq!(Failure::from(io::Error::from(ErrorKind::PermissionDenied)).code, Code::Refused);
    }

    /// Every code stands in the help and in the documentation, with the same meaning.
    #[test]
    fn both_tables_have_every_code() {
        let help = Cli::command().render_help().to_string();
        let docs = include_str!("../../docs/user/errors.md");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (help, docs) = (words(&help), words(docs));
        for code in Code::ALL {
            let (number, meaning) = (code as u8, code.meaning());
            assert!(help.contains(&format!("{number} {meaning}")), "{code:?} is not in: {help}");
            assert!(docs.contains(&format!("| {number} | {meaning} |")), "user/errors.md lacks {number}, {meaning}");
        }
        let next = Code::ALL.len() + 1;
        assert!(!docs.contains(&format!("| {next} | ")), "user/errors.md has a code that there is not");
        assert!(Code::ALL.into_iter().enumerate().all(|(at, code)| code as usize == at + 1), "in order, without gaps");
    }

    #[test]
    fn what_the_user_gave_is_wrong_usage() {
        let code = |error: DataError| Failure::from(error).code;
        assert_eq!(code(DataError::NotFound { path: PathBuf::from("text") }), Code::Usage);
        assert_eq!(code(DataError::Empty { files: 1 }), Code::Usage);
        let cache = |kind: ErrorKind| DataError::Cache { what: "write", path: "c".into(), source: kind.into() };
        assert_eq!(code(cache(ErrorKind::StorageFull)), Code::DiskFull);
        assert_eq!(code(cache(ErrorKind::PermissionDenied)), Code::Refused);
        let device = OpenError::Device(starling_kernels::DeviceError::WithoutCuda);
        assert_eq!(Failure::from(device).code, Code::Usage);
        assert_eq!(Failure::from(StoreError::NoChain).code, Code::Refused);
        assert_eq!(Failure::from(StoreError::InUse { path: "h".into(), pid: None }).code, Code::IdentityInUse);
    }

    #[test]
    fn values_that_are_no_numbers_are_answered_without_words_of_rust() {
        let said = |arguments: &[&str]| {
            let error = Cli::try_parse_from(["starling", "train", "--run", "r.toml"].iter().chain(arguments));
            no_number(&error.expect_err("it does not parse")).unwrap_or_default()
        };
        assert_eq!(said(&["--threads", "four"]), "--threads four: give a whole number of 0 or more");
        assert!(said(&["--threads", "99999999999999999999999"]).ends_with("give a smaller whole number"));
        assert_eq!(said(&["--thredas", "4"]), "", "the parser's own words are plain");
    }
}
