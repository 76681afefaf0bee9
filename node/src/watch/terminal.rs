//! The terminal of this process: whether it can show the block, its size, and the order of everything that is written
//! to it. Log lines and the message of a panic come above the block, and never into it.

use super::canvas::Canvas;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};

/// A terminal with at most so many columns, or fewer rows, gets plain lines.
const COLUMNS_FEW: usize = 40;
const ROWS_MIN: usize = 6;
/// The size of a terminal that does not tell it: columns and rows.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// The block on standard output. Whoever writes to the terminal holds it meanwhile.
static CANVAS: Mutex<Canvas> = Mutex::new(Canvas::new());
static HOOK: Once = Once::new();

/// No statement leaves the canvas half-changed, so the content of a poisoned lock is still good.
fn canvas() -> MutexGuard<'static, Canvas> {
    CANVAS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether standard output is a terminal that can show the block.
pub fn shows_block() -> bool {
    let text = |name| std::env::var(name).ok();
    let size = stdout().is_terminal().then(size);
    may_show_block(size, text("TERM").as_deref(), text("NO_COLOR").as_deref())
}

/// `size` is none if the output is no terminal.
fn may_show_block(size: Option<(usize, usize)>, term: Option<&str>, no_color: Option<&str>) -> bool {
    let has_room = size.is_some_and(|(columns, rows)| columns > COLUMNS_FEW && rows >= ROWS_MIN);
    let is_able = term.is_some_and(|term| !term.is_empty() && term != "dumb");
    has_room && is_able && no_color.is_none_or(str::is_empty)
}

/// Columns and rows.
pub fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => USUAL_SIZE,
    }
}

/// Writes lines above the block, and renews the block.
pub fn renew(above: &[String], block: Vec<String>, columns: usize) {
    HOOK.call_once(erase_before_panics);
    let mut canvas = canvas();
    if let Some(bytes) = canvas.renew(above, block, columns) {
        put(&bytes);
    }
}

/// Takes the block away.
pub fn erase() {
    let mut canvas = canvas();
    let bytes = canvas.erase(size().0);
    put(&bytes);
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

/// Standard error, for logs: what is written comes above the block if both are on the terminal.
pub struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let canvas = canvas();
        let is_shared = canvas.is_drawn() && stderr().is_terminal();
        if is_shared {
            put(&canvas.covered(size().0));
        }
        let written = stderr().lock().write_all(bytes);
        if is_shared {
            put(&canvas.again());
        }
        written.map(|()| bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
