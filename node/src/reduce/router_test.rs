use super::*;
use tokio::io::{AsyncWriteExt, DuplexStream};

const RUN: Digest = Digest([1; 32]);
const PEER: NodeId = NodeId([9; 32]);

fn key(attempt: u32) -> AttemptKey {
    AttemptKey { lineage: Digest([2; 32]), seq: 3, attempt, set: Digest([4; 32]) }
}

async fn opened(router: &BulkRouter, run: Digest, key: AttemptKey) -> DuplexStream {
    let (mut near, far) = tokio::io::duplex(1024);
    near.write_all(&opening::encode(&run, &key)).await.unwrap();
    router.route(PEER, BulkStream::new(far));
    near
}

/// Ends when the router has dropped the other end.
async fn dropped(mut near: DuplexStream) {
    assert_eq!(near.read(&mut [0; 8]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_stream_finds_its_attempt_in_either_order() {
    let router = BulkRouter::new(RUN);
    let accept = tokio::spawn({
        let router = router.clone();
        async move { router.accept(key(0), PEER).await }
    });
    let mut early = opened(&router, RUN, key(1)).await;
    let mut near = opened(&router, RUN, key(0)).await;
    near.write_all(b"zero").await.unwrap();
    early.write_all(b"one!").await.unwrap();
    for (stream, expected) in [(accept.await.unwrap(), b"zero"), (router.accept(key(1), PEER).await, b"one!")] {
        let mut bytes = [0; 4];
        stream.unwrap().read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, expected);
    }
}

#[tokio::test]
async fn an_attempt_that_was_left_stays_left() {
    let router = BulkRouter::new(RUN);
    let waiting = tokio::spawn({
        let router = router.clone();
        async move { router.accept(key(0), PEER).await }
    });
    // Once the stream of another attempt has been handed over, the waiter above is registered or will find it left.
    let _other = opened(&router, RUN, key(7)).await;
    router.accept(key(7), PEER).await.unwrap();
    router.leave(key(0));
    assert_eq!(waiting.await.unwrap().unwrap_err(), RouterError::Left);
    assert_eq!(router.accept(key(0), PEER).await.unwrap_err(), RouterError::Left);
    dropped(opened(&router, RUN, key(0)).await).await;
    // The next attempt is untouched.
    let _near = opened(&router, RUN, key(1)).await;
    router.accept(key(1), PEER).await.unwrap();
}

#[tokio::test]
async fn garbage_truncation_silence_and_other_runs_are_dropped() {
    let router = BulkRouter::new(RUN);
    dropped(opened(&router, Digest([8; 32]), key(0)).await).await;
    let (mut near, far) = tokio::io::duplex(1024);
    near.write_all(&[0xff; OPENING_BYTES]).await.unwrap();
    router.route(PEER, BulkStream::new(far));
    dropped(near).await;
    let (mut near, far) = tokio::io::duplex(1024);
    near.write_all(&[0x53, 0x42]).await.unwrap();
    near.shutdown().await.unwrap();
    router.route(PEER, BulkStream::new(far));
    dropped(near).await;
    let mut router = router;
    router.patience.opening = Duration::from_millis(5);
    let (silent, far) = tokio::io::duplex(1024);
    router.route(PEER, BulkStream::new(far));
    dropped(silent).await;
    assert_eq!(router.streams.available_permits(), STREAMS_CAP);
}

#[tokio::test]
async fn parked_streams_are_few_and_do_not_stay() {
    let router = BulkRouter::new(RUN);
    let mut parked = Vec::new();
    for attempt in 0..PARKED_PER_PEER as u32 {
        parked.push(opened(&router, RUN, key(attempt)).await);
    }
    // A second stream for a parked slot, and one slot too many.
    let twice = opened(&router, RUN, key(0)).await;
    let more = opened(&router, RUN, key(99)).await;
    dropped(twice).await;
    dropped(more).await;
    assert_eq!(router.streams.available_permits(), STREAMS_CAP - PARKED_PER_PEER);
    router.leave(key(0));
    dropped(parked.remove(0)).await;
    assert_eq!(router.streams.available_permits(), STREAMS_CAP - PARKED_PER_PEER + 1);
    let mut hasty = BulkRouter::new(RUN);
    hasty.patience.parked = Duration::from_millis(5);
    dropped(opened(&hasty, RUN, key(0)).await).await;
    assert_eq!(hasty.streams.available_permits(), STREAMS_CAP);
}
