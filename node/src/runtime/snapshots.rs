//! Asking sources for their newest snapshot, with the path to it and the records after it. A member whose newest one is
//! old writes another first, and says meanwhile that it is busy.

use super::sources::Begun;
use crate::net::NetHandle;
use crate::net::fetch::{self, Expect, FetchError, FetchRefusal, FetchRequest, Patience};
use futures::future::join_all;
use starling_protocol::NodeId;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// How long a source may be busy, and how often it is asked meanwhile: longer than a source says so of a snapshot that it writes.
const BUSY_MAX: Duration = Duration::from_secs(12);
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Sources that are asked beside the first, so that they have a snapshot of the same head, and how long that may take.
const PREPARED: usize = 3;
const PREPARED_WITHIN: Duration = Duration::from_secs(1);

/// Has some sources beside the first write a snapshot of their head, if their newest is old. Asked one after another they
/// would have different ones, and each chunk could be had from a single source. A newcomer often meets one source a moment
/// before the others, so that `fellows` are asked as well, as they come.
pub async fn prepare(
    net: &NetHandle,
    sources: &[NodeId],
    fellows: watch::Receiver<Vec<NodeId>>,
    request: &FetchRequest,
) {
    let ask = |source| async move {
        let mut stream = net.open_fetch(source).await?;
        // Only the answer's length is read.
        fetch::begin(&mut stream, request, Expect::of(request), Patience::default()).await
    };
    // A source that does not answer now is asked again, or not at all.
    beside_the_first(sources, fellows, |source| async move { drop(timeout(PREPARED_WITHIN, ask(source)).await) }).await;
}

/// Asks sources, then fellows as they come, but for the first source, until so many were asked.
async fn beside_the_first<F: Future<Output = ()>>(
    sources: &[NodeId],
    mut fellows: watch::Receiver<Vec<NodeId>>,
    ask: impl Fn(NodeId) -> F,
) {
    let (first, mut known) = (sources.first().copied(), sources.to_vec());
    let mut asked = BTreeSet::new();
    loop {
        let more = PREPARED - asked.len();
        let others = known.iter().copied().filter(|id| Some(*id) != first && !asked.contains(id));
        let others: Vec<NodeId> = others.take(more).collect();
        asked.extend(others.iter().copied());
        join_all(others.into_iter().map(&ask)).await;
        if asked.len() >= PREPARED || fellows.changed().await.is_err() {
            return;
        }
        known = fellows.borrow_and_update().clone();
    }
}

/// The start that a source has, once it is not busy any more.
pub async fn of(net: &NetHandle, source: NodeId, request: &FetchRequest, begun: Begun) -> Result<Vec<u8>, FetchError> {
    let (until, mut begun) = (Instant::now() + BUSY_MAX, Some(begun));
    loop {
        let begins = || begun.take().into_iter().for_each(Begun::tell);
        let answer = net.fetch_telling(source, request.clone(), Expect::of(request), begins, |_| ()).await;
        match answer {
            Err(FetchError::Refused(FetchRefusal::Busy)) if Instant::now() < until => sleep(ASK_EVERY).await,
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[tokio::test]
    async fn sources_that_are_met_a_moment_later_are_asked_as_well() {
        let ids = |numbers: &[u8]| numbers.iter().map(|n| NodeId([*n; 32])).collect::<Vec<_>>();
        let (list, asked) = (watch::Sender::new(Vec::new()), Mutex::new(Vec::new()));
        let known = ids(&[1]);
        let asking = beside_the_first(&known, list.subscribe(), |source| {
            asked.lock().expect("nobody panics").push(source.0[0]);
            std::future::ready(())
        });
        let telling = async {
            for fellows in [ids(&[1]), ids(&[2, 1]), ids(&[2]), ids(&[3, 1, 2, 4, 5])] {
                list.send_replace(fellows);
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(asking, telling);
        assert_eq!(*asked.lock().expect("nobody panics"), [2, 3, 4]);
        // It ends with the list.
        let alone = watch::Sender::new(Vec::new());
        let fellows = alone.subscribe();
        drop(alone);
        beside_the_first(&known, fellows, |source| async move { panic!("{source} is asked") }).await;
    }
}
