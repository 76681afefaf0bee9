//! How the process ends: one message and one of the documented exit codes.

use std::fmt;
use std::process::ExitCode;

/// Exit codes, as `docs/store.md` lists them.
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
        eprintln!("starling: {}", self.words());
        ExitCode::from(self.code as u8)
    }

    /// The error and its causes. A cause that the text before already states is left out.
    fn words(&self) -> String {
        let mut said = String::new();
        for link in self.error.chain().map(ToString::to_string) {
            if said.is_empty() {
                said = link;
            } else if !said.contains(&link) {
                said = format!("{said}: {link}");
            }
        }
        said
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    /// An error without a code of its own is a plain refusal.
    fn from(error: E) -> Self {
        Self { code: Code::Refused, error: error.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_are_said_once() {
        let gone = || std::io::Error::other("no such file");
        let silent = Err::<(), _>(gone()).context("cannot read it").unwrap_err();
        assert_eq!(Failure::new(Code::Refused, silent).words(), "cannot read it: no such file");
        let telling = Err::<(), _>(gone()).context("cannot read it: no such file; check the path").unwrap_err();
        assert_eq!(Failure::new(Code::Refused, telling).words(), "cannot read it: no such file; check the path");
    }
}
