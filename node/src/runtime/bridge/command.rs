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
/// The variable that names the folder of the run's files, if it has some.
pub const FILES_VARIABLE: &str = "STARLING_FILES";
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

/// A place that the command is told, by its variable.
type Place = (&'static str, PathBuf);

/// A command that runs beside the node, and ends when this is dropped.
pub struct TrainerCommand {
    is_over: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl TrainerCommand {
    /// Starts the command, with the node's socket and the folder of the run's files; later, as long as `waits_for` gives
    /// a reason to wait.
    ///
    /// # Errors
    /// There is no such program.
    pub fn start(
        command: &[String],
        (socket, files): (&Path, Option<&Path>),
        waits_for: impl Fn() -> Option<&'static str> + Send + 'static,
    ) -> Result<Self, Failure> {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let files = files.map(|files| (FILES_VARIABLE, absolute(files)));
        let places: Vec<Place> = [(SOCKET_VARIABLE, absolute(socket))].into_iter().chain(files).collect();
        let first = if waits_for().is_some() { None } else { Some(launched(command, &places)?) };
        let is_over = Arc::new(AtomicBool::new(false));
        let (command, over) = (command.to_vec(), is_over.clone());
        let watching = move || {
            if first.is_some() || has_waited(&waits_for, &over) {
                watch(first, &command, &places, &over);
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

fn launched(command: &[String], places: &[Place]) -> Result<Child, Failure> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::message(Code::Usage, "name the trainer's command after --, such as `-- python train.py`"));
    };
    let mut prepared = Command::new(program);
    prepared.args(arguments).env_remove(FILES_VARIABLE).envs(places.iter().map(|(variable, place)| (variable, place)));
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

/// Waits as long as there is a reason, which is told; false if it is over meanwhile.
fn has_waited(waits_for: &dyn Fn() -> Option<&'static str>, over: &AtomicBool) -> bool {
    let mut told = None;
    while let Some(why) = waits_for() {
        if told.replace(why) != Some(why) {
            tracing::info!("{why}");
        }
        if over.load(Ordering::Acquire) {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// Keeps the command running until it is over.
fn watch(first: Option<Child>, command: &[String], places: &[Place], over: &AtomicBool) {
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
        match launched(command, places) {
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
    while lives(group) {
        if Instant::now() >= until {
            let _ = kill_process_group(group, Signal::KILL);
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether a process of the group has not ended. One that has, and that nobody buries, as in a container without a process
/// for that, is none.
#[cfg(target_os = "linux")]
fn lives(group: Pid) -> bool {
    if test_kill_process_group(group).is_err() {
        return false;
    }
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    let group = group.as_raw_nonzero().to_string();
    processes.flatten().any(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // Behind the name, which may hold anything: state, parent, group.
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let state = fields.next().filter(|state| !matches!(*state, "" | "Z" | "X"));
        state.is_some() && fields.nth(1) == Some(group.as_str())
    })
}

#[cfg(not(target_os = "linux"))]
fn lives(group: Pid) -> bool {
    test_kill_process_group(group).is_ok()
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
        let said = "echo \"$STARLING_TRAINER $STARLING_FILES\"";
        let script = format!("{said} > '{0}.new' && mv '{0}.new' '{0}'; sleep 600", told.display());
        let command = ["sh", "-c", &script].map(str::to_owned);
        let running =
            TrainerCommand::start(&command, (&socket, Some(folder.path())), || None).expect("there is a shell");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !told.exists() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        let said = std::fs::read_to_string(&told).expect("the command has run");
        assert_eq!(said.trim(), format!("{} {}", socket.display(), folder.path().display()));
        let before = Instant::now();
        drop(running);
        assert!(before.elapsed() < Duration::from_secs(30), "it does not wait for the command's own end");
        assert!(TrainerCommand::start(&["no-such-program-anywhere".to_owned()], (&socket, None), || None).is_err());
        assert!(TrainerCommand::start(&[], (&socket, None), || None).is_err());
    }

    #[test]
    fn what_a_command_leaves_ends_before_it_is_started_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let told = folder.path().join("told");
        let script = format!("sleep 600 & echo $! > '{0}.new' && mv '{0}.new' '{0}'; exit 3", told.display());
        let command = ["sh", "-c", &script].map(str::to_owned);
        let left = launched(&command, &[]).expect("there is a shell");
        let group = Pid::from_child(&left);
        assert!(ended(left, &AtomicBool::new(false)).is_some_and(|how| how.contains('3')));
        let pid: i32 = std::fs::read_to_string(&told).expect("it ran").trim().parse().expect("a number");
        let deadline = Instant::now() + Duration::from_secs(20);
        // The process that adopts it may take a while to bury it.
        while runs(pid) && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        assert!(!runs(pid), "{group:?}");
    }

    /// A process that has ended and is not buried, as every orphan in some containers, is not waited for.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_group_of_the_dead_does_not_live() {
        let mut child = Command::new("sh").args(["-c", "read line"]).stdin(Stdio::piped()).process_group(0).spawn();
        let child = child.as_mut().expect("there is a shell");
        let group = Pid::from_child(child);
        assert!(lives(group));
        drop(child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(20);
        while lives(group) && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        assert!(!lives(group) && test_kill_process_group(group).is_ok(), "it is not buried yet");
        child.wait().expect("it has ended");
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
        let waits_for = move || {
            looks.store(true, Ordering::Release);
            theirs.load(Ordering::Acquire).then_some("a trainer is there")
        };
        let running = TrainerCommand::start(&command, (&socket, None), waits_for).expect("nothing is started yet");
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
