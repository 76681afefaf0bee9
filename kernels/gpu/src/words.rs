//! The words of a device's failures: its runtime's errors, and the panics of its thread, which the runtime only logs.

use std::cell::Cell;
use std::panic;
use std::sync::{Mutex, Once, PoisonError};

/// The last panic of a device's thread.
static LAST: Mutex<Option<String>> = Mutex::new(None);
static WATCH: Once = Once::new();

/// Letters of an error that are told; runtimes append whole programs to theirs.
const LETTERS: usize = 300;

/// The words of a device that did not give memory.
pub const NO_MEMORY: &str = "it does not give the memory that is asked for";
/// Words of runtimes about such memory. cubecl 0.10 tells of memory that it did not get as of a page that is not there.
const MEMORY: [&str; 5] = ["BufferTooBig", "can't allocate", "Memory page", "out of memory", "Out of Memory"];

/// Errors of CUDA's driver that end a step, and what happened then.
const DRIVER: [(&str, &str); 7] = [
    ("OUT_OF_MEMORY", NO_MEMORY),
    ("ECC_UNCORRECTABLE", "its memory has an error that cannot be corrected"),
    ("LAUNCH_FAILED", "a kernel ended with an error, and all that was on the device is lost"),
    ("ILLEGAL_ADDRESS", "a kernel read or wrote beyond its memory, and all that was on the device is lost"),
    ("LAUNCH_TIMEOUT", "a kernel took longer than its system allows, and all that was on the device is lost"),
    ("UNSUPPORTED_PTX_VERSION", "its driver is older than the compiler of its kernels"),
    ("UNKNOWN", "it does not answer any more, as if it had been removed or reset"),
];
/// The start of the names of these errors.
const NAMES: &str = "CUDA_ERROR_";

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
                *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(plain(&text(info.payload())));
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
    let said = plain(&error.to_string());
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
        None => plain(&text(&*payload)),
    })
}

fn text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    text.unwrap_or("it stopped without a message").to_string()
}

/// A device's words as one line of bounded length: what happened, where CUDA's driver gave an error that has a name, or
/// memory is missing. Runtimes wrap such an error in many others.
pub fn plain(text: &str) -> String {
    let Some((_, after)) = text.split_once(NAMES) else {
        return if MEMORY.iter().any(|words| text.contains(words)) { NO_MEMORY.into() } else { short(text) };
    };
    let end = after.find(|letter: char| !(letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_'));
    let name = &after[..end.unwrap_or(after.len())];
    let known = DRIVER.iter().find(|(known, _)| *known == name);
    format!("{} ({NAMES}{name})", known.map_or("its driver ended a call with an error", |(_, words)| words))
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
        let said = guarded(|| panic!("no place\n  for {} bytes", 7)).unwrap_err();
        assert_eq!(said, "no place for 7 bytes");
        assert_eq!(guarded(|| 5), Ok(5));
        assert_eq!(short(&"x".repeat(1000)).len(), LETTERS + 3);
    }

    #[test]
    fn a_drivers_error_is_told_without_what_is_wrapped_around_it() {
        let wrapped =
            "ServerUnhealthy { errors: [Launch(DriverError(CUDA_ERROR_ECC_UNCORRECTABLE, \"x\")), Io(None)] }";
        let words = "its memory has an error that cannot be corrected (CUDA_ERROR_ECC_UNCORRECTABLE)";
        assert_eq!(plain(wrapped), words);
        assert_eq!(plain(&format!("3 of 7 kernels ran: {words}")), words);
        assert_eq!(plain("an error: Memory page 0 doesn't exist\nBacktrace"), NO_MEMORY);
        assert_eq!(plain("CUDA_ERROR_NEW"), "its driver ended a call with an error (CUDA_ERROR_NEW)");
        assert_eq!(guarded(|| panic!("{wrapped}")), Err::<(), _>(words.into()));
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
