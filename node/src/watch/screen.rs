//! The output of a running node: JSON for programs, plain lines, or a block that is renewed in place on a terminal.
//!
//! The driver never waits for a terminal that shows the block: a thread of its own draws, a few times a second at most
//! and only when something has changed. For a reader of JSON or plain lines it does wait.

use super::event::{Event, Line};
use super::names::Names;
use super::picture::{FIRST_STEP, Glance, Picture};
use super::words::{self, Weight, tame};
use super::{block, terminal};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use super::figures::bytes;

/// Time between two drawings of the block.
const RENEW_EVERY: Duration = Duration::from_millis(250);
/// Time after which the block is looked at even if nothing was told: ages and estimates change by themselves.
const TICK: Duration = Duration::from_secs(1);
/// Time between two plain lines that only tell how far something is.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// Time between two looks at the engine.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time that the thread that draws has for its end: a terminal that is stopped (Ctrl-S) takes nothing.
const CLOSING: Duration = Duration::from_secs(1);
/// Time between two looks at whether it has ended.
const CLOSING_LOOK: Duration = Duration::from_millis(5);
/// Lines that wait to be drawn; the oldest go first.
const ABOVE_MAX: usize = 256;

/// Shows events to a person or a program.
pub struct Screen {
    shared: Arc<Shared>,
    /// The thread that draws the block.
    thread: Option<JoinHandle<()>>,
    looked: Option<Instant>,
}

/// Tells a screen from another thread how far something is.
#[derive(Clone)]
pub struct Teller(Arc<Shared>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Json,
    Lines,
    Block,
}

struct Shared {
    mode: Mode,
    board: Mutex<Board>,
    /// Rings when the board has changed.
    bell: Condvar,
}

/// The content of the screen, shown and waiting.
struct Board {
    picture: Picture,
    /// Lines that are to be written above the block.
    above: VecDeque<String>,
    /// The times at which an event's line that tells how far something is was last written, and a line of the whole
    /// progress.
    told: Option<Instant>,
    progress: Option<Instant>,
    /// The node has said that it begins to train.
    begun: bool,
    changed: bool,
    closed: bool,
    /// The thread that draws has ended, so that lines are written as they come.
    ended: bool,
}

impl Screen {
    /// `node` is the full id.
    pub fn new(node: String, name: Option<&str>, json: bool) -> Self {
        let picture = || {
            let mut picture = Picture::new(node.clone());
            if let Some(name) = name {
                picture.names.note(&node, name);
            }
            picture
        };
        let plain = if json { Mode::Json } else { Mode::Lines };
        let mode = if !json && terminal::shows_block() { Mode::Block } else { plain };
        let mut shared = Arc::new(Shared::new(picture(), mode));
        let mut thread = None;
        if mode == Mode::Block {
            let drawn = shared.clone();
            match std::thread::Builder::new().name("screen".into()).spawn(move || keep_drawn(&drawn)) {
                Ok(started) => thread = Some(started),
                Err(e) => {
                    let why = starling_words::of(&e);
                    tracing::warn!("the terminal gets plain lines: no thread starts that could draw: {why}");
                    shared = Arc::new(Shared::new(picture(), plain));
                }
            }
        }
        Self { shared, thread, looked: None }
    }

    /// Names the run and its budget in rounds and tokens, of which 0 is no bound, and says whether it learns from text.
    pub fn fly(&mut self, run: &str, budget: (u64, u64), of_text: bool) {
        let mut board = self.shared.board();
        (board.picture.run, board.picture.budget, board.picture.of_text) = (run.to_owned(), budget, of_text);
    }

    /// Shows one event.
    pub fn show(&mut self, event: &Event) {
        let mut board = self.shared.board();
        if self.shared.mode == Mode::Json {
            if let Ok(line) = serde_json::to_string(&Line::now(&board.picture.node, event)) {
                terminal::put(&format!("{line}\n"));
            }
            return;
        }
        let lines = board.take(event, self.shared.mode, Instant::now());
        self.shared.write(board, lines);
    }

    /// Shows what the node does before it flies; nothing in JSON mode.
    pub fn stage(&self, text: &str) {
        let mut board = self.shared.board();
        board.picture.stage = Some((text.to_owned(), Instant::now()));
        let lines = if self.shared.mode == Mode::Lines { vec![tame(text)] } else { Vec::new() };
        self.shared.write(board, lines);
    }

    /// A line for a person; nothing in JSON mode.
    pub fn line(&self, text: &str) {
        if self.shared.mode != Mode::Json {
            self.shared.write(self.shared.board(), vec![tame(text)]);
        }
    }

    pub fn teller(&self) -> Teller {
        Teller(self.shared.clone())
    }

    /// Whether it is time for the next [`Self::look`].
    pub fn wants_look(&self, now: Instant) -> bool {
        let is_old = |at: Instant| now.saturating_duration_since(at) >= LOOK_EVERY;
        self.shared.mode != Mode::Json && self.looked.is_none_or(is_old)
    }

    /// Takes in what the engine and the network know now.
    pub fn look(&mut self, glance: Glance, now: Instant) {
        self.looked = Some(now);
        let mut board = self.shared.board();
        board.picture.look(glance, now);
        self.shared.write(board, Vec::new());
    }

    /// The names of nodes that are known.
    pub fn names(&self) -> Names {
        self.shared.board().picture.names.clone()
    }

    /// Notes a node's name before a look brings it.
    pub fn note_name(&mut self, id: &str, name: &str) {
        self.shared.board().picture.names.note(id, name);
    }

    /// Takes the block away, and writes what still waits. Later lines are written as they come, unless the terminal is
    /// stopped: then they are dropped, and the thread that draws is let go.
    pub fn close(&mut self) {
        self.shared.board().closed = true;
        self.shared.bell.notify_all();
        let Some(thread) = self.thread.take() else { return };
        let deadline = Instant::now() + CLOSING;
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(CLOSING_LOOK);
        }
        if thread.is_finished() && thread.join().is_err() {
            self.shared.board().ended = true;
            terminal::erase();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.close();
    }
}

impl Teller {
    /// Shows how far the work before the flight is; only some of what it is told.
    pub fn progress(&self, text: impl FnOnce() -> String) {
        let (mut board, now) = (self.0.board(), Instant::now());
        let every = match self.0.mode {
            Mode::Json => return,
            Mode::Lines => PROGRESS_EVERY,
            Mode::Block => RENEW_EVERY,
        };
        if !is_due(&mut board.told, now, every) {
            return;
        }
        let text = text();
        let lines = if self.0.mode == Mode::Lines { vec![tame(&text)] } else { Vec::new() };
        board.picture.stage = Some((text, now));
        self.0.write(board, lines);
    }
}

impl Shared {
    fn new(picture: Picture, mode: Mode) -> Self {
        Self { mode, board: Mutex::new(Board::new(picture)), bell: Condvar::new() }
    }

    /// A board is only shown, so one that a panic left half-changed is good enough.
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes lines, or leaves them to the thread that draws.
    fn write(&self, mut board: MutexGuard<'_, Board>, lines: Vec<String>) {
        if self.mode != Mode::Block || board.ended {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            if !text.is_empty() {
                terminal::put(&text);
            }
            return;
        }
        board.above.extend(lines);
        let beyond = board.above.len().saturating_sub(ABOVE_MAX);
        board.above.drain(..beyond);
        board.changed = true;
        drop(board);
        self.bell.notify_all();
    }

    /// Waits while the condition holds, at most for this time.
    fn wait<'a>(
        &self,
        board: MutexGuard<'a, Board>,
        time: Duration,
        holds: impl Fn(&Board) -> bool,
    ) -> MutexGuard<'a, Board> {
        let waited = self.bell.wait_timeout_while(board, time, |board| holds(board));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Draws the block until the screen is closed.
fn keep_drawn(shared: &Shared) {
    let mut board = shared.board();
    loop {
        board = shared.wait(board, TICK, |board| !board.changed && !board.closed);
        board.changed = false;
        let closed = board.closed;
        let above: Vec<String> = board.above.drain(..).collect();
        let (columns, rows) = terminal::size();
        let block = if closed { Vec::new() } else { block::lines(&board.picture, columns, rows, Instant::now()) };
        // The driver must not wait for the terminal.
        drop(board);
        terminal::renew(&above, block, columns);
        board = shared.board();
        if closed && board.above.is_empty() {
            board.ended = true;
            return;
        }
        board = shared.wait(board, RENEW_EVERY, |board| !board.closed);
    }
}

/// Whether a line may be written again; if so, the time is noted.
fn is_due(last: &mut Option<Instant>, now: Instant, every: Duration) -> bool {
    let due = last.is_none_or(|at| now.saturating_duration_since(at) >= every);
    if due {
        *last = Some(now);
    }
    due
}

impl Board {
    fn new(picture: Picture) -> Self {
        Self {
            picture,
            above: VecDeque::new(),
            told: None,
            progress: None,
            begun: false,
            changed: true,
            closed: false,
            ended: false,
        }
    }

    /// Takes an event in; returns the lines that it is worth.
    fn take(&mut self, event: &Event, mode: Mode, now: Instant) -> Vec<String> {
        self.picture.take(event, now);
        let mut lines = Vec::new();
        if matches!(event, Event::Finished { .. }) && self.picture.committed.is_some() {
            lines.push(block::progress(&self.picture, now));
        }
        let may_tell = mode == Mode::Lines;
        match words::line(event, &self.picture.names) {
            Some((Weight::Notable, line)) => {
                self.picture.last = Some((line.clone(), now));
                lines.push(line);
            }
            Some((Weight::Progress, line)) if may_tell && is_due(&mut self.told, now, PROGRESS_EVERY) => {
                lines.push(line);
            }
            _ => {}
        }
        let trains = matches!(event, Event::Phase { phase, .. } if phase == "training");
        if trains && may_tell && !std::mem::replace(&mut self.begun, true) {
            lines.push(format!("begins to train: {FIRST_STEP}"));
        }
        let is_progress = matches!(event, Event::Step { .. } | Event::Committed(_));
        if is_progress && may_tell && is_due(&mut self.progress, now, PROGRESS_EVERY) {
            lines.push(block::progress(&self.picture, now));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u32, loss: f64) -> Event {
        Event::Step { round: 1, step, steps: 100, loss, tokens_per_second: 500.0 }
    }

    #[test]
    fn a_pipe_gets_progress_every_few_seconds_and_every_notable_event() {
        let (mut board, start) = (Board::new(Picture::new("1a2b".into())), Instant::now());
        let mut lines = Vec::new();
        let begins = Event::Phase { phase: "training".into(), round: 1 };
        assert!(board.take(&begins, Mode::Lines, start)[0].starts_with("begins to train: "));
        assert!(board.take(&begins, Mode::Lines, start).is_empty(), "that is said once");
        for n in 0..100u32 {
            let now = start + n * Duration::from_millis(200);
            lines.extend(board.take(&step(n + 1, 3.0), Mode::Lines, now));
            if n % 50 == 0 {
                lines.extend(board.take(&Event::PeerUp { peer: format!("{n:08}") }, Mode::Lines, now));
            }
            let wait = Event::Waiting { on: Vec::new(), why: "a thing".into() };
            lines.extend(board.take(&wait, Mode::Lines, now));
        }
        let count = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
        assert_eq!((count("this node's step"), count("waiting: a thing"), count("is here")), (4, 4, 2), "{lines:?}");
    }

    #[test]
    fn a_terminal_gets_notable_events_only_and_shows_the_last() {
        let (mut board, now) = (Board::new(Picture::new("1a2b".into())), Instant::now());
        assert!(board.take(&step(1, 3.0), Mode::Block, now).is_empty());
        let wait = Event::Waiting { on: Vec::new(), why: "a thing".into() };
        assert!(board.take(&wait, Mode::Block, now).is_empty());
        let line = board.take(&Event::PeerUp { peer: "0".repeat(64) }, Mode::Block, now);
        assert_eq!(line, ["peer 00000000 is here"]);
        assert_eq!(board.picture.last, Some((line[0].clone(), now)));
    }

    #[test]
    fn lines_wait_for_a_terminal_within_a_limit() {
        let shared = Shared::new(Picture::new("1a2b".into()), Mode::Block);
        for n in 0..2 * ABOVE_MAX {
            shared.write(shared.board(), vec![n.to_string()]);
        }
        let board = shared.board();
        assert_eq!((board.above.len(), board.changed), (ABOVE_MAX, true));
        assert_eq!(board.above.back(), Some(&(2 * ABOVE_MAX - 1).to_string()), "the oldest went");
    }

    #[test]
    fn a_closed_screen_ends_its_thread() {
        let shared = Arc::new(Shared::new(Picture::new("1a2b".into()), Mode::Block));
        shared.board().closed = true;
        // It draws nothing: there is neither a line nor a block.
        let drawn = shared.clone();
        let thread = std::thread::spawn(move || keep_drawn(&drawn));
        let deadline = Instant::now() + Duration::from_secs(10);
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(thread.is_finished() && thread.join().is_ok());
        let board = shared.board();
        assert!(!board.changed && board.ended);
    }

    #[test]
    fn a_terminal_that_is_stopped_holds_up_no_end() {
        let shared = Arc::new(Shared::new(Picture::new("1a2b".into()), Mode::Block));
        let (go_on, stopped) = std::sync::mpsc::sync_channel::<()>(1);
        let thread = Some(std::thread::spawn(move || {
            let _ = stopped.recv();
        }));
        let mut screen = Screen { shared, thread, looked: None };
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let closing = std::thread::spawn(move || {
            screen.close();
            // Nobody writes it: its thread would wait for the terminal.
            screen.line("too late");
            tell.send(screen.shared.board().above.len())
        });
        assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(1));
        drop(go_on);
        assert!(closing.join().is_ok_and(|sent| sent.is_ok()));
    }
}
