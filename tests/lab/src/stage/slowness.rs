//! A slower processor for a process: the process is stopped for most of the time, in short turns. It needs no rights
//! and works on every Unix.

use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Length of one turn.
const TURN: Duration = Duration::from_millis(50);

/// Slows a process down until it is dropped.
pub struct Slowness {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Slowness {
    /// Lets the process run for that share of the time.
    pub fn of(pid: u32, share: f64) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        let thread = Pid::from_raw(pid as i32).map(|pid| {
            std::thread::spawn(move || {
                while !told.load(Ordering::Relaxed) {
                    for (signal, share) in [(Signal::STOP, 1.0 - share), (Signal::CONT, share)] {
                        if kill_process(pid, signal).is_err() {
                            return;
                        }
                        std::thread::sleep(TURN.mul_f64(share));
                    }
                }
                let _ = kill_process(pid, Signal::CONT);
            })
        });
        Self { over, thread }
    }
}

impl Drop for Slowness {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
