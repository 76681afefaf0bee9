//! The order in which one member's writers work. Each begins with another member than its neighbours do, so when each serves
//! one at a time, all links carry one stream either way; with all streams at once some are slower than others, and every
//! sum waits for the slowest of its parts.
//!
//! A member that takes nothing must not hold up the others: whoever cannot write for a while lets the next begin.

use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A frame that does not leave within this time does not keep others from leaving: at 100 Mbit/s it takes 3 ms, and a
/// window's round trip on a long way takes more.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 40 });

/// One pass of all writers.
pub(super) struct Turns(Vec<CancellationToken>);

impl Turns {
    /// Of so many writers; the first may begin.
    pub fn new(writers: usize) -> Self {
        let turns: Vec<CancellationToken> = (0..writers).map(|_| CancellationToken::new()).collect();
        if let Some(first) = turns.first() {
            first.cancel();
        }
        Self(turns)
    }

    /// The turn of `writer`, which lasts until it is dropped.
    pub fn of(&self, writer: usize) -> Turn<'_> {
        Turn { mine: self.0.get(writer), next: self.0.get(writer + 1) }
    }
}

/// A writer's turn.
pub(super) struct Turn<'a> {
    mine: Option<&'a CancellationToken>,
    next: Option<&'a CancellationToken>,
}

impl Turn<'_> {
    /// Waits for it.
    pub async fn begin(&self) {
        if let Some(mine) = self.mine {
            mine.cancelled().await;
        }
    }

    /// Does what comes before the turn. Should the turn come meanwhile, the next writer does not wait for long.
    pub async fn before<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let late = async {
            self.begin().await;
            tokio::time::sleep(PATIENCE).await;
        };
        tokio::select! {
            biased;
            done = &mut work => done,
            () = late => {
                self.pass();
                work.await
            }
        }
    }

    /// Does one step of the turn's work; the next writer may begin meanwhile if it takes long.
    pub async fn step<T>(&self, step: impl Future<Output = T>) -> T {
        let mut step = std::pin::pin!(step);
        match tokio::time::timeout(PATIENCE, &mut step).await {
            Ok(done) => done,
            Err(_) => {
                self.pass();
                step.await
            }
        }
    }

    fn pass(&self) {
        if let Some(next) = self.next {
            next.cancel();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pass();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Whether a writer hangs, and where.
    #[derive(Clone, Copy, PartialEq)]
    enum Stuck {
        No,
        Before,
        Within,
    }

    #[test]
    fn writers_follow_each_other_and_a_stuck_one_holds_up_nobody() {
        for stuck in [Stuck::Before, Stuck::Within] {
            crate::reduce::harness::runtime().block_on(async {
                let turns = Turns::new(4);
                let order = Mutex::new(Vec::new());
                let (turns, order) = (&turns, &order);
                let write = |writer: usize, stuck: Stuck| async move {
                    let turn = turns.of(writer);
                    if stuck == Stuck::Before {
                        turn.before(std::future::pending::<()>()).await;
                    }
                    turn.begin().await;
                    order.lock().unwrap().push(writer);
                    if stuck == Stuck::Within {
                        turn.step(std::future::pending::<()>()).await;
                    }
                    turn.step(tokio::task::yield_now()).await;
                    order.lock().unwrap().push(writer);
                };
                let no = Stuck::No;
                let all = futures::future::join4(write(3, no), write(2, no), write(1, stuck), write(0, no));
                let expected: &[usize] =
                    if stuck == Stuck::Within { &[0, 0, 1, 2, 2, 3, 3] } else { &[0, 0, 2, 2, 3, 3] };
                let rest = async {
                    while order.lock().unwrap().len() < expected.len() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                tokio::select! {
                    _ = all => unreachable!("one never ends"),
                    done = tokio::time::timeout(Duration::from_secs(20), rest) => done.expect("the others end"),
                }
                assert_eq!(*order.lock().unwrap(), expected);
            });
        }
    }
}
