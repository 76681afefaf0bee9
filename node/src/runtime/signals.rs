//! The end of the process: the signals that ask for it, and the threads that it waits for.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// How long the threads may take to notice the end and to do their last writes. The trainer of a node that leaves has
/// saved its moments beside the checkpoint by then.
const CLOSING: Duration = Duration::from_secs(7);

/// Waits for SIGTERM or Ctrl-C, from now on.
pub async fn asked_to_leave() {
    match Signals::new() {
        Ok(mut signals) => signals.recv().await,
        // Without them there is nothing to wait for.
        Err(_) => std::future::pending().await,
    }
}

/// SIGTERM and Ctrl-C, from now on.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Waits for threads whose jobs' queues are dropped: the trainer saves its moments, the ledger does its last write. The
/// store must be closed before the process ends, or RocksDB's own threads outlive the data that they use. What the
/// trainer still reports is read, or it would take its reader for gone and save nothing.
pub async fn end_of<T>(threads: Vec<JoinHandle<()>>, mut reports: mpsc::Receiver<T>) {
    let deadline = Instant::now() + CLOSING;
    for thread in threads {
        while !thread.is_finished() && Instant::now() < deadline {
            while reports.try_recv().is_ok() {}
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if !thread.is_finished() {
            tracing::warn!("the {} thread is busy: not waiting for it", thread.thread().name().unwrap_or("worker"));
        } else if thread.join().is_err() {
            tracing::error!("a thread of the node panicked; see the message before");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn a_thread_that_has_more_to_report_than_the_queue_holds_ends_in_order() {
        let (reports, queue) = mpsc::channel(1);
        let heard = Arc::new(AtomicBool::new(false));
        let told = heard.clone();
        let thread = std::thread::spawn(move || {
            told.store((0..3).all(|n| reports.blocking_send(n).is_ok()), Ordering::Release);
        });
        end_of(vec![thread], queue).await;
        assert!(heard.load(Ordering::Acquire), "its reader was there");
    }
}
