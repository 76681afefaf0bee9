//! The choice among sources, some of which may keep silent.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use starling_protocol::NodeId;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Time in which a source must begin its answer before the next one is asked beside it.
const BEGINS_WITHIN: Duration = Duration::from_secs(2);

/// A sender that reports that an answer has begun.
pub struct Begun(oneshot::Sender<()>);

impl Begun {
    pub fn tell(self) {
        // If another source has answered meanwhile, the receiver is gone.
        let _ = self.0.send(());
    }
}

/// Sources of the same things; the one that answered last is first.
pub struct Sources(Mutex<Vec<NodeId>>);

impl Sources {
    pub fn new(sources: &[NodeId]) -> Self {
        Self(Mutex::new(sources.to_vec()))
    }

    /// No statement leaves the list half-changed, so a poisoned lock is still good.
    fn order(&self) -> MutexGuard<'_, Vec<NodeId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the first good answer. The next source is asked when one has failed, and beside one that has not begun
    /// its answer in time. So many silent sources cost a moment each, and only once, since the source that answers is
    /// asked first from then on. An answer that has begun may take the time that it needs.
    ///
    /// # Errors
    /// No answer is good; the last reason.
    pub async fn first<T, F>(&self, ask: impl Fn(NodeId, Begun) -> F) -> Result<T, String>
    where
        F: Future<Output = Result<T, String>>,
    {
        // A copy, so that the lock is not held during the wait.
        let order = self.order().clone();
        let (mut asked, mut why) = (FuturesUnordered::new(), "no peer to fetch from".to_owned());
        for source in order {
            let (begun, begins) = oneshot::channel();
            let answer = ask(source, Begun(begun));
            asked.push(async move { (source, answer.await) });
            let silent = async {
                if matches!(timeout(BEGINS_WITHIN, begins).await, Ok(Ok(()))) {
                    // The wait ends with the source's answer or failure.
                    std::future::pending::<()>().await;
                }
            };
            let answered = async { asked.next().await };
            tokio::select! {
                biased;
                Some(answer) = answered => match self.judged(answer) {
                    Ok(answer) => return Ok(answer),
                    Err(reason) => why = reason,
                },
                () = silent => {}
            }
        }
        while let Some(answer) = asked.next().await {
            match self.judged(answer) {
                Ok(answer) => return Ok(answer),
                Err(reason) => why = reason,
            }
        }
        Err(why)
    }

    fn judged<T>(&self, (source, answer): (NodeId, Result<T, String>)) -> Result<T, String> {
        let answer = answer.map_err(|why| format!("{}: {why}", source.short()))?;
        let mut order = self.order();
        if let Some(at) = order.iter().position(|other| *other == source) {
            order[..=at].rotate_right(1);
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn ids(numbers: std::ops::Range<u8>) -> Vec<NodeId> {
        numbers.map(|n| NodeId([n; 32])).collect()
    }

    #[tokio::test]
    async fn silent_sources_cost_a_moment_and_only_once() {
        let sources = Sources::new(&ids(0..4));
        let asked = AtomicUsize::new(0);
        let ask = async |source: NodeId, begun: Begun| {
            asked.fetch_add(1, Ordering::Relaxed);
            match source.0[0] {
                0 => {
                    let _held = begun;
                    std::future::pending().await
                }
                1 => Err("it has none".to_owned()),
                n => Ok(n),
            }
        };
        assert_eq!(sources.first(&ask).await, Ok(2));
        assert_eq!(asked.swap(0, Ordering::Relaxed), 3);
        assert_eq!(sources.first(&ask).await, Ok(2));
        assert_eq!(asked.load(Ordering::Relaxed), 1, "it is asked first from now on");
        assert_eq!(sources.order()[1..], [ids(0..2), ids(3..4)].concat());
    }

    #[tokio::test]
    async fn an_answer_that_has_begun_is_not_asked_for_twice() {
        let sources = Sources::new(&ids(0..2));
        let ask = async |source: NodeId, begun: Begun| {
            assert_eq!(source.0[0], 0, "nobody else is asked");
            begun.tell();
            tokio::time::sleep(BEGINS_WITHIN + BEGINS_WITHIN / 4).await;
            Ok(source)
        };
        assert_eq!(sources.first(ask).await, Ok(NodeId([0; 32])));
        let none = sources.first(async |_, _| Err::<(), _>("it is busy".to_owned())).await;
        assert!(none.unwrap_err().ends_with("it is busy"));
        assert!(Sources::new(&[]).first(async |_, _| Ok(())).await.is_err());
    }
}
