//! How the process ends: one message and one of the documented exit codes.

use std::fmt;
use std::process::ExitCode;

/// Exit codes, as `design.md` §6 fixes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    Refused = 1,
    Usage = 2,
    ConfigMismatch = 3,
    StoreDamaged = 4,
    DiskFull = 5,
    IdentityInUse = 6,
    Fenced = 7,
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
        eprintln!("starling: {:#}", self.error);
        ExitCode::from(self.code as u8)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    /// Anything without a code of its own is a plain refusal.
    fn from(error: E) -> Self {
        Self { code: Code::Refused, error: error.into() }
    }
}
