//! The signals by which a user asks a node to leave.

/// Waits for SIGTERM or Ctrl-C, from now on.
pub async fn asked_to_leave() {
    match Signals::new() {
        Ok(mut signals) => signals.recv().await,
        // Without them there is nothing to wait for.
        Err(_) => std::future::pending().await,
    }
}

/// SIGTERM and Ctrl-C.
pub struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// Signals from now on end the process no more.
    pub fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
