//! The order in which one member's writers work: in turns, a slice each.
//!
//! Members share links. If each member were served whole before the next, two nodes that serve the same one at a time
//! would halve each other's rate and leave another link idle, and neither would ever catch up. If all streams ran
//! freely, some would be faster than others, and every sum waits for the slowest of its parts. Slices are short enough
//! that a few of them at once fit in a link's queue.
//!
//! A slow member must not hold up the others: a writer that cannot write for a while writes beside the turns, until a
//! frame leaves in time again.

use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Time after which a frame no longer keeps others from leaving. At 100 Mbit/s a frame takes 3 ms; a window's round
/// trip on a long path takes more.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 40 });
/// Bytes of a slice: 10 ms at 100 Mbit/s, so that slices of four senders fit in a queue of 50 ms.
const SLICE_BYTES: usize = 128 << 10;

/// The turns of all writers, first come, first served.
pub(super) struct Turns(Semaphore);

impl Turns {
    pub fn new() -> Self {
        Self(Semaphore::new(1))
    }

    /// A writer that takes part in the turns.
    pub fn join(&self) -> Turn<'_> {
        Turn { turns: self, permit: None, written: 0, beside: false }
    }
}

/// A writer, and whether it has the turn.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    permit: Option<SemaphorePermit<'a>>,
    /// Bytes written in this slice.
    written: usize,
    /// The last frame took too long, so this writer writes beside the turns.
    beside: bool,
}

impl Turn<'_> {
    /// Writes this many bytes when the turn comes. If they do not leave for a while, the others go on meanwhile.
    pub async fn write<T>(&mut self, bytes: usize, write: impl Future<Output = T>) -> T {
        if self.permit.is_none() && !self.beside {
            // The semaphore is never closed; if it were, all would write at once.
            self.permit = self.turns.0.acquire().await.ok();
            self.written = 0;
        }
        let mut write = std::pin::pin!(write);
        let in_time = tokio::time::timeout(PATIENCE, &mut write).await;
        self.beside = in_time.is_err();
        self.written += bytes;
        if self.beside || self.written >= SLICE_BYTES {
            self.rest();
        }
        match in_time {
            Ok(done) => done,
            Err(_) => write.await,
        }
    }

    /// Gives the turn back: there is nothing to write for now.
    pub fn rest(&mut self) {
        self.permit = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// The order in which the writers write their slices, if each writes `frames` frames of half a slice and `stuck`
    /// hangs in its first.
    fn order(writers: usize, frames: usize, stuck: Option<usize>) -> Vec<usize> {
        crate::reduce::harness::runtime().block_on(async {
            let (turns, order) = (Turns::new(), Mutex::new(Vec::new()));
            let (turns, order) = (&turns, &order);
            let write = |writer: usize| async move {
                let mut turn = turns.join();
                for _ in 0..frames {
                    let frame = async {
                        tokio::task::yield_now().await;
                        if stuck == Some(writer) {
                            std::future::pending::<()>().await;
                        }
                        order.lock().unwrap().push(writer);
                    };
                    turn.write(SLICE_BYTES / 2, frame).await;
                }
            };
            let all = futures::future::join_all((0..writers).map(write));
            let expected = (writers - usize::from(stuck.is_some())) * frames;
            let enough = async {
                while order.lock().unwrap().len() < expected {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! {
                biased;
                _ = all => assert!(stuck.is_none(), "one never ends"),
                done = tokio::time::timeout(Duration::from_secs(20), enough) => done.expect("the others end"),
            }
            order.lock().unwrap().clone()
        })
    }

    #[test]
    fn writers_take_turns_by_slices() {
        assert_eq!(order(3, 4, None), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn a_stuck_one_holds_up_nobody() {
        assert_eq!(order(3, 4, Some(0)), [1, 1, 2, 2, 1, 1, 2, 2]);
        assert_eq!(order(3, 4, Some(1)), [0, 0, 2, 2, 0, 0, 2, 2]);
    }
}
