//! A process that takes and answers lines of JSON, here or in a network namespace.

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process, killed when dropped.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts `command`; its standard error is shown if `loud`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start<S: AsRef<OsStr>>(command: &[S], loud: bool) -> Result<Self> {
        let (program, arguments) = command.split_first().context("no command")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(if loud { Stdio::inherit() } else { Stdio::null() })
            .spawn()
            .with_context(|| format!("cannot start {}", program.as_ref().display()))?;
        let (input, output) = (child.stdin.take().context("no pipe")?, child.stdout.take().context("no pipe")?);
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    /// Sends one line.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}").context("a process of the bench has ended; see above for why")
    }

    /// Reads one line.
    ///
    /// # Errors
    /// If the process has ended, or the line does not parse.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                bail!("a process of the bench has ended; see above for why");
            }
            // Libraries print other lines on their standard output.
            if line.starts_with('{') {
                return serde_json::from_str(&line).with_context(|| format!("it says {}", line.trim()));
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
