//! The trainer's command (`starling train ... -- CMD`): it runs as long as the node does, and is started again when it
//! ends, after pauses that grow.

use super::said::shown;
use crate::exit::{Code, Failure};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The variable that names the node's socket to the command.
pub const SOCKET_VARIABLE: &str = "STARLING_TRAINER";
/// With this variable the lines of a script in Python come as they are written.
const UNBUFFERED: &str = "PYTHONUNBUFFERED";
/// The pause before the command is started again: it doubles from the first to the last with each end that comes
/// soon after its start.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// An end after this time is not soon.
const SOON: Duration = Duration::from_secs(60);
/// Interval at which the command is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Time in which the command has to end when it is asked to.
const ENDS: Duration = Duration::from_secs(5);
/// Bytes of a line that are shown at a time.
const LINE_BYTES_MAX: usize = 2048;

/// A command that runs beside the node, and ends when this is dropped.
pub struct TrainerCommand {
    is_over: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl TrainerCommand {
    /// Starts the command; later, as long as `is_busy` says that another trainer is here or may come.
    ///
    /// # Errors
    /// There is no such program.
    pub fn start(
        command: &[String],
        socket: &Path,
        is_busy: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self, Failure> {
        let first = if is_busy() { None } else { Some(launched(command, socket)?) };
        let is_over = Arc::new(AtomicBool::new(false));
        let (command, socket, over) = (command.to_vec(), socket.to_path_buf(), is_over.clone());
        let watching = move || {
            if first.is_some() || has_waited(&is_busy, &over) {
                watch(first, &command, &socket, &over);
            }
        };
        let watcher = std::thread::Builder::new().name("trainer-command".into()).spawn(watching)?;
        Ok(Self { is_over, watcher: Some(watcher) })
    }
}

impl Drop for TrainerCommand {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

fn launched(command: &[String], socket: &Path) -> Result<Child, Failure> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::message(Code::Usage, "name the trainer's command after --, such as `-- python train.py`"));
    };
    let socket = std::path::absolute(socket).unwrap_or_else(|_| PathBuf::from(socket));
    let mut prepared = Command::new(program);
    prepared.args(arguments).env(SOCKET_VARIABLE, socket);
    if std::env::var_os(UNBUFFERED).is_none() {
        prepared.env(UNBUFFERED, "1");
    }
    // A group of its own: the node ends all that the command has started, and Ctrl-C asks the node alone.
    prepared.process_group(0);
    prepared.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = prepared.spawn().map_err(|e| {
        let why = format!("the trainer's command `{program}` cannot be started: {}", starling_words::of(&e));
        Failure::message(Code::Usage, why)
    })?;
    relay(child.stdout.take());
    relay(child.stderr.take());
    Ok(child)
}

/// Shows what the command writes as lines of the node's log, so that they do not mix with its own.
fn relay(output: Option<impl Read + Send + 'static>) {
    let Some(mut output) = output else { return };
    let relaying = move || {
        let (mut line, mut piece) = (Vec::new(), [0; 1024]);
        while let Ok(read) = output.read(&mut piece) {
            if read == 0 {
                break;
            }
            for byte in piece.iter().take(read) {
                match *byte {
                    b'\n' | b'\r' => show(&mut line),
                    _ if line.len() >= LINE_BYTES_MAX => {
                        show(&mut line);
                        line.push(*byte);
                    }
                    _ => line.push(*byte),
                }
            }
        }
        show(&mut line);
    };
    if let Err(e) = std::thread::Builder::new().name("trainer-lines".into()).spawn(relaying) {
        tracing::warn!("what the trainer writes is not shown: {}", starling_words::of(&e));
    }
}

fn show(line: &mut Vec<u8>) {
    if !line.is_empty() {
        tracing::info!("trainer: {}", shown(&String::from_utf8_lossy(line)));
    }
    line.clear();
}

/// Waits as long as another trainer is here or may come; false if it is over meanwhile.
fn has_waited(is_busy: &dyn Fn() -> bool, over: &AtomicBool) -> bool {
    tracing::info!("a trainer of a node before this one may be there: the trainer's command waits for its end");
    while is_busy() {
        if over.load(Ordering::Acquire) {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// Keeps the command running until it is over.
fn watch(first: Option<Child>, command: &[String], socket: &Path, over: &AtomicBool) {
    let (mut child, mut pause) = (first, Duration::ZERO);
    loop {
        let started = Instant::now();
        if let Some(running) = child.take() {
            let Some(how) = ended(running, over) else { return };
            pause = next_pause(pause, started.elapsed());
            tracing::warn!("the trainer's command has ended ({how}); it is started again in {} s", pause.as_secs());
        }
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if over.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(LOOK);
        }
        match launched(command, socket) {
            Ok(again) => child = Some(again),
            Err(failure) => {
                pause = next_pause(pause, Duration::ZERO);
                tracing::warn!("{}", failure.error);
            }
        }
    }
}

/// The pause after an end, so long after the start, that comes after another pause.
fn next_pause(last: Duration, ran: Duration) -> Duration {
    let [least, most] = PAUSES;
    if ran >= SOON { least } else { (2 * last).clamp(least, most) }
}

/// Waits for the end of the command, and tells how it was; none if the node has ended it.
fn ended(mut child: Child, over: &AtomicBool) -> Option<String> {
    let mut asked: Option<Instant> = None;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                end_group(Pid::from_child(&child));
                return asked.is_none().then(|| status.to_string());
            }
            Ok(None) => {}
            Err(e) => return Some(starling_words::of(&e)),
        }
        match asked {
            None if over.load(Ordering::Acquire) => {
                let _ = kill_process_group(Pid::from_child(&child), Signal::TERM);
                asked = Some(Instant::now());
            }
            Some(asked) if asked.elapsed() >= ENDS => {
                let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            }
            _ => {}
        }
        std::thread::sleep(LOOK);
    }
}

/// Ends what a command has left when it ended, such as the workers of a launcher: they would hold the device, and the
/// place of the trainer.
fn end_group(group: Pid) {
    let until = Instant::now() + ENDS;
    let _ = kill_process_group(group, Signal::TERM);
    while test_kill_process_group(group).is_ok() {
        if Instant::now() >= until {
            let _ = kill_process_group(group, Signal::KILL);
            return;
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_ends_come_soon() {
        let seconds = Duration::from_secs;
        let mut pause = seconds(0);
        let grown: Vec<u64> = (0..8)
            .map(|_| {
                pause = next_pause(pause, seconds(3));
                pause.as_secs()
            })
            .collect();
        assert_eq!(grown, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(next_pause(pause, seconds(61)), seconds(1), "it ran for long");
    }

    #[test]
    fn a_command_gets_the_socket_and_ends_with_the_node() {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, told) = (folder.path().join("trainer.sock"), folder.path().join("told"));
        let script = format!("echo \"$STARLING_TRAINER\" > '{0}.new' && mv '{0}.new' '{0}'; sleep 600", told.display());
        let command = ["sh", "-c", &script].map(str::to_owned);
        let running = TrainerCommand::start(&command, &socket, || false).expect("there is a shell");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !told.exists() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        let said = std::fs::read_to_string(&told).expect("the command has run");
        assert_eq!(said.trim(), socket.to_string_lossy());
        let before = Instant::now();
        drop(running);
        assert!(before.elapsed() < Duration::from_secs(30), "it does not wait for the command's own end");
        assert!(TrainerCommand::start(&["no-such-program-anywhere".to_owned()], &socket, || false).is_err());
        assert!(TrainerCommand::start(&[], &socket, || false).is_err());
    }

    #[test]
    fn what_a_command_leaves_ends_before_it_is_started_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let told = folder.path().join("told");
        let script = format!("sleep 600 & echo $! > '{0}.new' && mv '{0}.new' '{0}'; exit 3", told.display());
        let command = ["sh", "-c", &script].map(str::to_owned);
        let left = launched(&command, &folder.path().join("trainer.sock")).expect("there is a shell");
        let group = Pid::from_child(&left);
        assert!(ended(left, &AtomicBool::new(false)).is_some_and(|how| how.contains('3')));
        let pid: i32 = std::fs::read_to_string(&told).expect("it ran").trim().parse().expect("a number");
        let deadline = Instant::now() + Duration::from_secs(20);
        // Whoever adopts it may take a while to bury it.
        while runs(pid) && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        assert!(!runs(pid), "{group:?}");
    }

    /// Whether a process is there, and is more than the mark of one that has ended.
    fn runs(pid: i32) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    }

    #[test]
    fn a_command_waits_for_the_end_of_a_trainer_that_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, told) = (folder.path().join("trainer.sock"), folder.path().join("told"));
        let command = ["sh", "-c", &format!("touch '{}'; sleep 600", told.display())].map(str::to_owned);
        let (busy, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let (theirs, looks) = (busy.clone(), asked.clone());
        let is_busy = move || {
            looks.store(true, Ordering::Release);
            theirs.load(Ordering::Acquire)
        };
        let running = TrainerCommand::start(&command, &socket, is_busy).expect("nothing is started yet");
        let deadline = Instant::now() + Duration::from_secs(20);
        // It looks at the trainer again and again, and starts nothing.
        for _ in 0..2 {
            asked.store(false, Ordering::Release);
            while !asked.load(Ordering::Acquire) && Instant::now() < deadline {
                std::thread::sleep(LOOK);
            }
        }
        assert!(!told.exists());
        busy.store(false, Ordering::Release);
        while !told.exists() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        assert!(told.exists(), "it is started once nobody is there");
        drop(running);
    }
}
