//! Asking sources for their newest snapshot, with the path to it and the records after it. A member whose newest one is
//! old writes another first, and says meanwhile that it is busy.

use super::sources::Begun;
use crate::net::NetHandle;
use crate::net::fetch::{self, Expect, FetchError, FetchRefusal, FetchRequest, Patience};
use futures::future::join_all;
use starling_protocol::NodeId;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long a source may be busy, and how often it is asked meanwhile: longer than a source says so of a snapshot that it writes.
const BUSY_MAX: Duration = Duration::from_secs(12);
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Sources that are asked beside the first, so that they have a snapshot of the same head, and how long that may take.
const PREPARED: usize = 3;
const PREPARED_WITHIN: Duration = Duration::from_secs(1);

/// Has the first of these sources write a snapshot of their head, if their newest is old. Asked one after another they
/// would have different ones, and each chunk could be had from a single source.
pub async fn prepare(net: &NetHandle, sources: &[NodeId], request: &FetchRequest) {
    let ask = |source: &NodeId| {
        let source = *source;
        async move {
            let mut stream = net.open_fetch(source).await?;
            // Only the answer's length is read.
            fetch::begin(&mut stream, request, Expect::of(request), Patience::default()).await
        }
    };
    // A source that does not answer now is asked again, or not at all.
    drop(timeout(PREPARED_WITHIN, join_all(sources.iter().take(PREPARED).map(ask))).await);
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
