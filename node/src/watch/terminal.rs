//! The terminal of this process: whether it can show the block, its size, and the order of everything that is written
//! to it. Log lines and the message of a panic come above the block, and never into it.

use super::canvas::Canvas;
use std::collections::VecDeque;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};

/// A terminal with at most so many columns, or fewer rows, gets plain lines.
const COLUMNS_FEW: usize = 40;
const ROWS_MIN: usize = 6;
/// The size of a terminal that does not tell it: columns and rows.
const USUAL_SIZE: (usize, usize) = (80, 24);
/// Bytes of log lines that wait for the thread that draws; the oldest go first.
const LOGGED_MAX: usize = 256 << 10;

/// The block on standard output. The thread that draws holds it while it writes, and so while the terminal is stopped.
static CANVAS: Mutex<Canvas> = Mutex::new(Canvas::new());
/// Log lines that wait. Nobody holds it while writing.
static LOGGED: Mutex<Logged> = Mutex::new(Logged::new());
static HOOK: Once = Once::new();

/// No statement leaves the canvas half-changed, so the content of a poisoned lock is still good.
fn canvas() -> MutexGuard<'static, Canvas> {
    CANVAS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn logged() -> MutexGuard<'static, Logged> {
    LOGGED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A terminal that a stream goes to.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub columns: usize,
    pub rows: usize,
    pub has_colours: bool,
}

impl Shape {
    /// None if the stream goes elsewhere.
    pub fn of(stream: impl IsTerminal + AsFd) -> Option<Self> {
        if !stream.is_terminal() {
            return None;
        }
        let (columns, rows) = columns_and_rows(stream);
        let (term, no_color) = wishes();
        Some(Self { columns, rows, has_colours: may_colour(term.as_deref(), no_color.as_deref()) })
    }
}

/// The kind of the terminal, and the user's word against colours.
fn wishes() -> (Option<String>, Option<String>) {
    (std::env::var("TERM").ok(), std::env::var("NO_COLOR").ok())
}

/// Whether standard output is a terminal that can show the block.
pub fn shows_block() -> bool {
    let size = stdout().is_terminal().then(size);
    let (term, no_color) = wishes();
    may_show_block(size, term.as_deref(), no_color.as_deref())
}

/// `size` is none if the output is no terminal.
fn may_show_block(size: Option<(usize, usize)>, term: Option<&str>, no_color: Option<&str>) -> bool {
    let has_room = size.is_some_and(|(columns, rows)| columns > COLUMNS_FEW && rows >= ROWS_MIN);
    has_room && may_colour(term, no_color)
}

/// Whether such a terminal obeys more than letters, and its user wants that.
fn may_colour(term: Option<&str>, no_color: Option<&str>) -> bool {
    let is_able = term.is_some_and(|term| !term.is_empty() && term != "dumb");
    is_able && no_color.is_none_or(str::is_empty)
}

/// Columns and rows of standard output.
pub fn size() -> (usize, usize) {
    columns_and_rows(stdout())
}

fn columns_and_rows(stream: impl AsFd) -> (usize, usize) {
    match rustix::termios::tcgetwinsize(stream) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => USUAL_SIZE,
    }
}

/// Writes lines above the block, those of the log first, and renews the block. While there is one, other threads' log
/// lines wait for the next time.
pub fn renew(above: &[String], block: Vec<String>, columns: usize) {
    HOOK.call_once(erase_before_panics);
    let mut canvas = canvas();
    if !block.is_empty() && stderr().is_terminal() {
        logged().waits = true;
    }
    let lines = logged().take();
    if !lines.is_empty() {
        put(&canvas.erase(columns));
        log(&lines);
    }
    if let Some(bytes) = canvas.renew(above, block, columns) {
        put(&bytes);
    }
    if !canvas.is_drawn() {
        let rest = logged().end();
        log(&rest);
    }
}

/// Takes the block away.
pub fn erase() {
    let mut canvas = canvas();
    let bytes = canvas.erase(size().0);
    put(&bytes);
    let rest = logged().end();
    log(&rest);
}

/// Writes log lines to standard error.
fn log(lines: &[u8]) {
    let _ = stderr().lock().write_all(lines);
}

/// Writes to standard output; a reader that went away must not stop the training.
pub fn put(text: &str) {
    let mut out = stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The message of a panic must not run into the block. A thread that panics while it draws has the lock, and then the
/// message comes below what it has drawn.
fn erase_before_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let canvas = match CANVAS.try_lock() {
            Ok(canvas) => Some(canvas),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(mut canvas) = canvas {
            let bytes = canvas.erase(size().0);
            put(&bytes);
        }
        report(panic);
    }));
}

/// Log lines of threads that must not wait for the terminal.
struct Logged {
    /// There is a block on the terminal of standard error, so that lines wait for the thread that draws it.
    waits: bool,
    lines: VecDeque<Vec<u8>>,
    /// Bytes of all lines.
    bytes: usize,
    /// Lines that went because there were too many.
    lost: u64,
}

impl Logged {
    const fn new() -> Self {
        Self { waits: false, lines: VecDeque::new(), bytes: 0, lost: 0 }
    }

    /// Takes a line if it has to wait. If not, its own thread writes it.
    fn push(&mut self, line: &[u8]) -> bool {
        if !self.waits {
            return false;
        }
        self.bytes += line.len();
        self.lines.push_back(line.to_vec());
        while self.bytes > LOGGED_MAX
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= oldest.len();
            self.lost += 1;
        }
        true
    }

    /// All that waits, as it is to be written.
    fn take(&mut self) -> Vec<u8> {
        self.bytes = 0;
        let mut text = match std::mem::take(&mut self.lost) {
            0 => Vec::new(),
            lost => format!("({lost} older log lines were left out: the terminal did not take them)\n").into_bytes(),
        };
        self.lines.drain(..).for_each(|line| text.extend(line));
        text
    }

    /// The same at the end of the block: later lines wait no more.
    fn end(&mut self) -> Vec<u8> {
        self.waits = false;
        self.take()
    }
}

/// Standard error, for logs: what is written comes above the block if both are on the terminal. No thread that logs
/// waits for a terminal with a block.
pub struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if !logged().push(bytes) {
            stderr().lock().write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    #[test]
    fn no_log_line_waits_for_a_terminal_that_is_stopped() {
        // As the thread that draws does while the terminal takes nothing.
        let stopped = canvas();
        let (tell, told) = sync_channel(1);
        let thread = std::thread::spawn(move || tell.send(Log.write(b"").is_ok()));
        assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(true));
        drop(stopped);
        assert!(thread.join().is_ok_and(|sent| sent.is_ok()));
    }

    #[test]
    fn log_lines_wait_within_a_limit_while_there_is_a_block() {
        let mut logged = Logged::new();
        assert!(!logged.push(b"a\n"), "there is no block");
        logged.waits = true;
        assert!(logged.push(b"b\n") && logged.push(b"c\n"));
        assert_eq!((logged.take(), logged.take()), (b"b\nc\n".to_vec(), Vec::new()));
        let half = vec![b'x'; LOGGED_MAX / 2];
        for line in [b"oldest\n".as_slice(), &half, &half] {
            logged.push(line);
        }
        assert_eq!((logged.bytes, logged.lines.len()), (LOGGED_MAX, 2));
        let text = logged.end();
        assert!(text.starts_with(b"(1 older log lines") && text.ends_with(b"xxx"));
        assert!(!logged.push(b"d\n"), "the block is gone");
    }

    #[test]
    fn only_a_terminal_with_room_shows_the_block() {
        let large = Some((100, 30));
        assert!(may_show_block(large, Some("xterm-256color"), None));
        assert!(may_show_block(large, Some("xterm"), Some("")), "an empty NO_COLOR says nothing");
        assert!(!may_show_block(None, Some("xterm"), None), "a pipe");
        assert!(!may_show_block(large, Some("dumb"), None));
        assert!(!may_show_block(large, None, None) && !may_show_block(large, Some(""), None));
        assert!(!may_show_block(large, Some("xterm"), Some("1")));
        assert!(!may_show_block(Some((40, 30)), Some("xterm"), None), "narrow");
        assert!(may_show_block(Some((41, 6)), Some("xterm"), None));
        assert!(!may_show_block(Some((100, 5)), Some("xterm"), None), "low");
    }
}
