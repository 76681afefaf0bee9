//! A program on a terminal of its own, as a person would see it.

use crate::process::die_with_parent;
use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A kind of terminal, as `TERM` names it, and its size.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    pub term: &'static str,
    pub columns: u16,
    pub rows: u16,
}

impl Terminal {
    /// Runs a program with its output on such a terminal. Returns its exit code, none if a signal ended it, and all
    /// that came to the terminal.
    ///
    /// # Errors
    /// If there is no terminal, or the program does not start or does not end within `limit` (it is killed then).
    pub fn run(self, program: &Path, arguments: &[String], limit: Duration) -> anyhow::Result<(Option<i32>, String)> {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).context("no terminal")?;
        grantpt(&near)?;
        unlockpt(&near)?;
        let name = ptsname(&near, Vec::<u8>::new())?;
        let far = rustix::fs::open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
        tcsetwinsize(&far, Winsize { ws_row: self.rows, ws_col: self.columns, ws_xpixel: 0, ws_ypixel: 0 })?;
        let mut command = Command::new(program);
        command.args(arguments).env("TERM", self.term).env_remove("NO_COLOR");
        command.stdin(Stdio::null()).stdout(far.try_clone()?).stderr(far);
        die_with_parent(&mut command);
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        // The terminal ends when nobody holds its far end any more.
        drop(command);
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // The end of a terminal is an error of the system; what came before it counts.
            let _ = File::from(near).read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                let _ = child.kill();
                let _ = child.wait();
                bail!("{} did not end within {} s: {:?}", program.display(), limit.as_secs(), reader.join());
            }
            std::thread::park_timeout(Duration::from_millis(20));
        };
        Ok((status.code(), reader.join().unwrap_or_default()))
    }
}
