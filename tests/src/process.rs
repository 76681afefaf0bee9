//! One observed process: its JSON events are collected, and it never outlives this one.

use anyhow::{Context, bail};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A started program with `--json` events on its standard output.
pub struct Process {
    pub name: String,
    child: Child,
    seen: Arc<Seen>,
    log: PathBuf,
    exited: Option<ExitStatus>,
}

/// Events so far, and a signal for new ones.
#[derive(Default)]
struct Seen {
    events: Mutex<Vec<Value>>,
    more: Condvar,
}

impl Process {
    /// Starts `program`. Its events also go to `FOLDER/NAME.jsonl` and its standard error to `FOLDER/NAME.log`.
    pub fn start<S: AsRef<OsStr>>(name: &str, program: &Path, arguments: &[S], folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments);
        Self::spawn(name, command, folder)
    }

    /// Like [`Self::start`], with a prepared command. Each event gets a field `seen`: the time at which it was read
    /// here, in seconds since the Unix epoch.
    pub fn spawn(name: &str, mut command: Command, folder: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let append = |extension: &str| {
            let path = folder.join(format!("{name}.{extension}"));
            let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
            file.with_context(|| format!("cannot write {}", path.display())).map(|file| (path, file))
        };
        let (log, log_file) = append("log")?;
        let (_, mut event_file) = append("jsonl")?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
        die_with_parent(&mut command);
        let program = PathBuf::from(command.get_program());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}: build first (`make build`)", program.display()))?;
        let seen = Arc::new(Seen::default());
        let collected = seen.clone();
        let stdout = child.stdout.take().context("standard output is piped")?;
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                match serde_json::from_str::<Value>(&line) {
                    Ok(Value::Object(mut event)) => {
                        event.insert("seen".into(), seconds_since_epoch().into());
                        let event = Value::Object(event);
                        let _ = writeln!(event_file, "{event}");
                        collected.events.lock().unwrap_or_else(|p| p.into_inner()).push(event);
                    }
                    _ => drop(writeln!(event_file, "{line}")),
                }
                collected.more.notify_all();
            }
            collected.more.notify_all();
        });
        Ok(Self { name: name.into(), child, seen, log, exited: None })
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Value> {
        self.seen.events.lock().unwrap_or_else(|p| p.into_inner()).clone()
    }

    /// Events after the mark.
    pub fn events_since(&self, mark: usize) -> Vec<Value> {
        self.seen.events.lock().unwrap_or_else(|p| p.into_inner()).get(mark..).unwrap_or_default().to_vec()
    }

    /// Number of events so far: a mark after which [`Self::wait_since`] looks.
    pub fn mark(&self) -> usize {
        self.seen.events.lock().unwrap_or_else(|p| p.into_inner()).len()
    }

    /// Waits for an event of that name that satisfies `accept`.
    ///
    /// # Errors
    /// If none came within `limit`, or the process ended; the error shows the last lines of its log.
    pub fn wait(&mut self, limit: Duration, event: &str, accept: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        self.wait_since(0, limit, event, accept)
    }

    /// Like [`Self::wait`], for events after the mark.
    pub fn wait_since(
        &mut self,
        mark: usize,
        limit: Duration,
        event: &str,
        accept: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        let deadline = Instant::now() + limit;
        let mut next = mark;
        loop {
            let ended = self.has_exited();
            let events = self.seen.events.lock().unwrap_or_else(|p| p.into_inner());
            while let Some(candidate) = events.get(next) {
                next += 1;
                if candidate["event"] == event && accept(candidate) {
                    return Ok(candidate.clone());
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || ended {
                drop(events);
                let what = if ended { "the process ended" } else { "time is up" };
                bail!("{}: no `{event}` event as expected, {what}\n{}", self.name, self.last_words());
            }
            // The wait is bounded, so that the end of the process is noticed too.
            drop(self.seen.more.wait_timeout(events, left.min(Duration::from_millis(200))));
        }
    }

    /// Whether the process has ended.
    pub fn has_exited(&mut self) -> bool {
        if self.exited.is_none() {
            self.exited = self.child.try_wait().ok().flatten();
        }
        self.exited.is_some()
    }

    /// Its exit status, if it has ended.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.has_exited();
        self.exited
    }

    /// Process id, for signals.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        if let Ok(status) = self.child.wait() {
            self.exited = Some(status);
        }
    }

    /// Sends SIGTERM, which asks the process to finish.
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Sends any signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Waits for the process to end by itself.
    pub fn wait_exit(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if self.has_exited() {
                return self.exited.context("the process has ended");
            }
            if Instant::now() >= deadline {
                bail!("{} still runs after {} s\n{}", self.name, limit.as_secs(), self.last_words());
            }
            let events = self.seen.events.lock().unwrap_or_else(|p| p.into_inner());
            drop(self.seen.more.wait_timeout(events, Duration::from_millis(50)));
        }
    }

    /// The last events and the last lines of its log, for error messages.
    pub fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().map(String::from).collect();
        let events: Vec<_> = self.events().iter().map(ToString::to_string).collect();
        let last = |lines: &[String]| lines[lines.len().saturating_sub(15)..].join("\n");
        format!("last events:\n{}\nlast lines of {}:\n{}", last(&events), self.log.display(), last(&lines))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The time by this machine's clock.
pub fn seconds_since_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Runs a program to its end and returns its status, standard output and standard error.
///
/// # Errors
/// If it cannot be started, or does not end within `limit` (it is killed then).
pub fn run<S: AsRef<OsStr>>(program: &Path, arguments: &[S], limit: Duration) -> anyhow::Result<Finished> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    finish(command, program, limit)
}

/// The same in a folder, in which the program also finds its default folders.
///
/// # Errors
/// As [`run`].
pub fn run_in<S: AsRef<OsStr>>(
    folder: &Path,
    program: &Path,
    arguments: &[S],
    limit: Duration,
) -> anyhow::Result<Finished> {
    run_fed(folder, program, arguments, Stdio::null(), limit)
}

/// The same with a standard input.
///
/// # Errors
/// As [`run`].
pub fn run_fed<S: AsRef<OsStr>>(
    folder: &Path,
    program: &Path,
    arguments: &[S],
    input: impl Into<Stdio>,
    limit: Duration,
) -> anyhow::Result<Finished> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).stdin(input);
    command.env("XDG_DATA_HOME", folder.join("data")).env("XDG_CACHE_HOME", folder.join("cache"));
    finish(command, program, limit)
}

fn finish(mut command: Command, program: &Path, limit: Duration) -> anyhow::Result<Finished> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    die_with_parent(&mut command);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let drain = |stream: Option<Box<dyn std::io::Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(mut stream) = stream {
                let _ = stream.read_to_end(&mut text);
            }
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = drain(child.stdout.take().map(|s| Box::new(s) as _));
    let err = drain(child.stderr.take().map(|s| Box::new(s) as _));
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            bail!("{} did not end within {} s", program.display(), limit.as_secs());
        }
        std::thread::park_timeout(Duration::from_millis(20));
    };
    let text = |handle: std::thread::JoinHandle<String>| handle.join().unwrap_or_default();
    Ok(Finished { code: status.code(), stdout: text(out), stderr: text(err) })
}

/// The result of a program that ended.
#[derive(Debug)]
pub struct Finished {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// On Linux, makes the kernel end the child when this process ends, in any way.
pub(crate) fn die_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system call.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(Into::into)
        });
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}
