//! The words of a device's failures: its runtime's errors, and the panics of its thread, which the runtime only logs.

use std::cell::Cell;
use std::panic;
use std::sync::{Mutex, Once, PoisonError};

/// The last panic of a device's thread.
static LAST: Mutex<Option<String>> = Mutex::new(None);
static WATCH: Once = Once::new();

/// Letters of an error that are told; runtimes append whole programs to theirs.
const LETTERS: usize = 300;

/// The names of cubecl's device threads begin so.
const THREADS: [&str; 2] = ["DSU-", "DSD-"];

thread_local! {
    /// Whether this thread asks a device, so that a panic is one of its errors.
    static ASKS: Cell<bool> = const { Cell::new(false) };
}

/// From now on a panic of a device's thread, or within [`guarded`], is kept for [`last`] instead of being printed.
pub fn watch() {
    WATCH.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let here = std::thread::current();
            let device = here.name().is_some_and(|name| THREADS.iter().any(|start| name.starts_with(start)));
            if device {
                *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(short(&text(info.payload())));
            } else if !ASKS.get() {
                before(info);
            }
        }));
    });
}

/// Takes the last panic of a device's thread.
pub fn last() -> Option<String> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The words of a runtime's error, and of the panic behind it if there was one.
pub fn of(error: &dyn std::fmt::Display) -> String {
    let said = short(&error.to_string());
    match last() {
        Some(panic) => format!("{panic}; {said}"),
        None => said,
    }
}

/// Runs `f`; a panic becomes its words.
///
/// # Errors
/// The panic's words.
pub fn guarded<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    let outer = ASKS.replace(true);
    let done = panic::catch_unwind(panic::AssertUnwindSafe(f));
    ASKS.set(outer);
    done.map_err(|payload| match last() {
        Some(panic) => panic,
        None => short(&text(&*payload)),
    })
}

fn text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    text.unwrap_or("it stopped without a message").to_string()
}

/// One line of bounded length.
fn short(text: &str) -> String {
    let line = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LETTERS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_one_short_line() {
        let said = guarded(|| panic!("no memory\n  for {} bytes", 7)).unwrap_err();
        assert_eq!(said, "no memory for 7 bytes");
        assert_eq!(guarded(|| 5), Ok(5));
        assert_eq!(short(&"x".repeat(1000)).len(), LETTERS + 3);
    }

    #[test]
    fn a_panic_of_a_devices_thread_is_kept() {
        watch();
        let name = format!("{}0-0", THREADS[0]);
        let thread = std::thread::Builder::new().name(name).spawn(|| panic!("the device is gone")).unwrap();
        assert!(thread.join().is_err());
        assert_eq!(of(&"read failed"), "the device is gone; read failed");
        assert_eq!(last(), None);
    }
}
