//! A socket that takes faults while a scenario runs: each line is a fault as in `[[faults]]`, in JSON and without a
//! time. It begins at once.

use crate::scenario::{Fault, FaultEntry, Topology};
use anyhow::Context;
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most bytes of a line.
const LINE_MAX: u64 = 64 << 10;
/// The time in which a client that has connected must send its line: the scenario waits meanwhile.
const PATIENCE: Duration = Duration::from_millis(200);

/// The listening end; its file is removed with it.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// `None` if the path is too long for a socket, or the system has no sockets: the scenario runs without it.
    pub fn listen(path: &Path) -> Option<Self> {
        let listener = UnixListener::bind(path).ok()?;
        listener.set_nonblocking(true).ok()?;
        Some(Self { listener, path: path.into() })
    }

    /// The faults that were requested since the last look.
    pub fn asked(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults = Vec::new();
        while let Ok((stream, _)) = self.listener.accept() {
            let asked = read(&stream).and_then(|line| parse(&line, topology));
            let answer = match &asked {
                Ok(fault) => json!({"ok": true, "fault": fault.what}),
                Err(why) => json!({"ok": false, "why": starling_words::of_chain(why.chain())}),
            };
            // A client that has gone needs no answer.
            let _ = writeln!(&stream, "{answer}");
            faults.extend(asked);
        }
        faults
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn read(stream: &UnixStream) -> anyhow::Result<String> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut line).context("no line came in time")?;
    Ok(line)
}

fn parse(line: &str, topology: &Topology) -> anyhow::Result<Fault> {
    let mut entry: FaultEntry = serde_json::from_str(line).context("that is no fault")?;
    anyhow::ensure!(entry.at_s.is_none() && entry.at_round.is_none(), "it begins at once: leave at_s and at_round out");
    entry.at_s = Some(0.0);
    entry.asked(topology)
}

/// Requests a fault of a running scenario; returns whether it was accepted, and the answer.
///
/// # Errors
/// If no scenario listens there, or it does not answer.
pub fn ask(path: &Path, fault: &str) -> anyhow::Result<(bool, String)> {
    let mut stream = UnixStream::connect(path)
        .with_context(|| format!("no scenario listens at {} (OUT/SCENARIO/control)", path.display()))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    writeln!(stream, "{}", fault.trim())?;
    let mut answer = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut answer).context("the scenario does not answer")?;
    let said: serde_json::Value = serde_json::from_str(&answer).context("the scenario answers nonsense")?;
    Ok((said["ok"] == true, answer.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Plan, Scenario};

    #[test]
    fn faults_by_socket_are_checked_like_those_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let text = "end_s = 1\n[[nodes]]\nname = \"a\"\ncount = 2\n";
        let topology = Scenario::parse(text, Path::new("x.toml")).unwrap().topology;
        let path = folder.path().join("control");
        let control = Control::listen(&path).expect("a socket");
        for (line, fine) in [
            ("{\"kind\": \"kill\", \"nodes\": [\"a-1\"]}", true),
            ("{\"kind\": \"kill\", \"nodes\": [\"a-3\"]}", false),
            ("{\"kind\": \"kill\", \"nodes\": [\"a-1\"], \"at_s\": 3}", false),
            ("nonsense", false),
        ] {
            let (path, line) = (path.clone(), line.to_owned());
            let asking = std::thread::spawn(move || ask(&path, &line).unwrap());
            let mut found = Vec::new();
            while !asking.is_finished() {
                found.extend(control.asked(&topology));
            }
            let (ok, answer) = asking.join().unwrap();
            assert_eq!(ok, fine, "{answer}");
            assert_eq!(found.len(), usize::from(fine));
            assert!(found.iter().all(|f| f.plan == Plan::Kill { silent: false } && f.nodes == [0]));
        }
        drop(control);
        assert!(!path.exists());
    }
}
