//! Whole networks on loopback, in one process: meeting, talking, fetching, losing and finding each other again.

mod flock;

use flock::{Node, eventually, fresh_secret, identity, start, start_at};
use starling_bootstrap::addresses::split;
use starling_bootstrap::discovery::dialer::{Trouble, Wish};
use starling_bootstrap::identity::peer_id;
use starling_node::net::fetch::{
    Answer, Expect, FetchError, FetchRefusal, FetchRequest, FetchSource, Item, NothingToFetch,
};
use starling_node::net::{DownReason, Fetched, NetEvent};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// Serves an update of this many bytes, all of them the same.
struct Update(usize, u8);

impl FetchSource for Update {
    fn serve(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
        match request {
            FetchRequest::Update { .. } => Ok(vec![self.1; self.0].into()),
            _ => Err(FetchRefusal::NotFound),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_know_one_meet_all() {
    let mut a = start(&[], NothingToFetch).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(start(&[&a], NothingToFetch).await);
    }
    let all: Vec<_> = [&a].into_iter().chain(&others).map(Node::id).collect();
    for node in [&mut a].into_iter().chain(&mut others) {
        node.wait_for_peers(&all).await;
    }
    assert!(a.net.status().await.peers.iter().all(|peer| peer.up));
    assert!(a.net.addresses().iter().all(|address| split(address).is_ok()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_messages_arrive_in_order_both_ways() {
    let mut a = start(&[], NothingToFetch).await;
    let mut b = start(&[&a], NothingToFetch).await;
    a.wait_for_peers(&[b.id()]).await;
    b.wait_for_peers(&[a.id()]).await;
    a.net.set_standing(vec![b.id()], Vec::new());
    b.net.set_standing(vec![a.id()], Vec::new());
    // As many as a session's queue holds, at once.
    const MESSAGES: u16 = 500;
    for i in 0..MESSAGES {
        a.net.send_control(b.id(), i.to_le_bytes().repeat(1 + usize::from(i)));
        b.net.send_control(a.id(), i.to_le_bytes().to_vec());
    }
    for (node, longer) in [(&mut a, false), (&mut b, true)] {
        for i in 0..MESSAGES {
            let bytes = node.next_control().await;
            assert_eq!(bytes, i.to_le_bytes().repeat(if longer { 1 + usize::from(i) } else { 1 }));
        }
    }
    let (sent, received) = (a.net.counters().total.control.sent, b.net.counters().total.control.received);
    assert!(sent >= 500 * 501 && received >= 500 * 501, "{sent} sent, {received} received");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn things_are_fetched_from_one_and_from_many() {
    const BYTES: usize = 3 << 20;
    let mut a = start(&[], Update(BYTES, 7)).await;
    let mut b = start(&[&a], Update(BYTES, 7)).await;
    let mut liar = start(&[&a], Update(BYTES, 8)).await;
    let ids = [a.id(), b.id(), liar.id()];
    for node in [&mut a, &mut b, &mut liar] {
        node.wait_for_peers(&ids).await;
    }
    let update = FetchRequest::Update { seq: 1 };
    let exact = Expect::Exactly(BYTES as u64);
    assert!(b.net.fetch(a.id(), update.clone(), exact).await.unwrap() == vec![7; BYTES]);
    let short = b.net.fetch(a.id(), update.clone(), Expect::Exactly(1)).await.unwrap_err();
    assert!(matches!(short, FetchError::Length { .. }), "{short}");
    let two = [(update.clone(), exact), (FetchRequest::Update { seq: 2 }, exact)];
    let came = b.net.fetch_updates(a.id(), &two, || (), |_| ()).await.unwrap();
    assert!(came == vec![vec![7; BYTES]; 2]);
    let nothing = b.net.fetch(a.id(), FetchRequest::Spec, Expect::AtMost(1)).await.unwrap_err();
    assert!(matches!(nothing, FetchError::Refused(FetchRefusal::NotFound)), "{nothing}");

    let mut c = start(&[&a], NothingToFetch).await;
    c.wait_for_peers(&ids).await;
    let downloader = c.net.downloader(Arc::new(|_: &Item, bytes: &[u8]| bytes.iter().all(|byte| *byte == 7)));
    let items = (0..12).map(|index| Item { index, parts: vec![(update.clone(), exact)] }).collect();
    let (done, mut arrived) = mpsc::channel(2);
    let take = async {
        let mut indices = Vec::new();
        while let Some((index, _)) = arrived.recv().await {
            indices.push(index);
        }
        indices.sort_unstable();
        indices
    };
    let (report, indices) = tokio::join!(downloader.run(items, &ids, done), take);
    let report = report.unwrap();
    assert_eq!(indices, (0..12).collect::<Vec<_>>());
    assert!(report.liars.iter().all(|id| *id == ids[2]));
    assert_eq!(report.bytes.values().sum::<u64>(), 12 * BYTES as u64);
    // An update of one peer is counted by itself, and refusals are not; a report is counted when it is added.
    let alone = Fetched { state: 0, updates: 3 * BYTES as u64 };
    assert_eq!(b.net.fetched().take(), [(ids[0], alone)]);
    c.net.fetched().state(&report);
    let counted = c.net.fetched().take().into_iter().map(|(peer, bytes)| (peer, bytes.state));
    assert_eq!(counted.collect::<BTreeMap<_, _>>(), report.bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_back_is_found_again() {
    let mut a = start(&[], NothingToFetch).await;
    let secret = a.secret;
    let address = a.address.clone();
    let mut b = start(&[&a], NothingToFetch).await;
    a.wait_for_peers(&[b.id()]).await;
    b.wait_for_peers(&[a.id()]).await;
    let gone = a.id();
    // What is queued at the shutdown still arrives.
    a.net.send_control(b.id(), b"leaving".to_vec());
    a.net.shutdown().await;
    drop(a);
    assert_eq!(b.next_control().await, b"leaving");
    b.wait_for(|event| matches!(event, NetEvent::PeerDown { peer, .. } if *peer == gone)).await;
    assert!(b.net.peers().is_empty());
    // At the same address, as a restarted process: `b` dials it again by itself.
    let mut a = start_at(secret, &address, &[], NothingToFetch).await;
    b.wait_for(|event| matches!(event, NetEvent::PeerUp { peer } if *peer == gone)).await;
    a.wait_for_peers(&[b.id()]).await;
}

/// Whoever said that it was a node was wanted at all times, like a member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_wanted_at_all_times_and_strangers_are_not() {
    let mut a = start(&[], NothingToFetch).await;
    let (early, member) = (start(&[&a], NothingToFetch).await, start(&[&a], NothingToFetch).await);
    a.wait_for_peers(&[early.id(), member.id()]).await;
    a.net.set_standing(vec![a.id(), member.id()], Vec::new());
    let late = start(&[&a], NothingToFetch).await;
    a.wait_for_peers(&[late.id()]).await;
    let strangers = [early.id(), late.id()].map(|node| peer_id(&node));
    let wanted = peer_id(&member.id());
    for node in [early, late, member] {
        node.net.shutdown().await;
    }
    eventually(async || {
        let troubles = a.net.status().await.troubles;
        // Found under the run's key, a stranger may still be dialed for a while.
        let is_wanted = |trouble: &Trouble| strangers.contains(&trouble.peer) && trouble.wish > Wish::Candidate;
        assert!(!troubles.iter().any(is_wanted), "{troubles:?}");
        troubles.iter().any(|trouble| trouble.peer == wanted && trouble.wish == Wish::Wanted)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_peer_is_told_off_at_once() {
    let mut a = start(&[], NothingToFetch).await;
    let mut b = start(&[&a], NothingToFetch).await;
    a.wait_for_peers(&[b.id()]).await;
    b.wait_for_peers(&[a.id()]).await;
    // What was said before still arrives, so that the peer may find out why.
    a.net.send_control(b.id(), b"what I train".to_vec());
    a.net.refuse(b.id(), "it trains something else");
    assert!(a.net.peers().is_empty(), "nothing more is said to it");
    assert_eq!(b.next_control().await, b"what I train");
    a.wait_for(|event| {
        matches!(event, NetEvent::PeerDown { reason: DownReason::Refused(why), .. } if why == "it trains something else")
    })
    .await;
    b.wait_for(|event| matches!(event, NetEvent::PeerDown { reason: DownReason::Lost(_), .. })).await;
    eventually(async || a.net.status().await.peers.is_empty()).await;
    assert!(a.net.peers().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_said_so() {
    let a = start(&[], NothingToFetch).await;
    let options = flock::options(&[flock::bare(&a.address)], &[], NothingToFetch);
    let error = starling_node::net::Network::start(&flock::identity(flock::fresh_secret()), options).err().unwrap();
    assert!(error.to_string().contains("in use"), "{error}");
}

/// A process of this key, which knows `peer`.
async fn process_of(secret: [u8; 32], peer: &mut Node) -> Node {
    let anywhere = "/ip4/127.0.0.1/tcp/0".parse().unwrap();
    let mut node = start_at(secret, &anywhere, &[&*peer], NothingToFetch).await;
    node.wait_for_peers(&[peer.id()]).await;
    node
}

/// The first byte of the next bulk stream.
async fn next_bulk(node: &mut Node) -> u8 {
    match node.wait_for(|event| matches!(event, NetEvent::Bulk { .. })).await {
        NetEvent::Bulk { mut stream, .. } => stream.read_u8().await.unwrap(),
        other => unreachable!("{other:?}"),
    }
}

async fn guest(node: &mut Node, says: &[u8]) {
    node.wait_for(|event| matches!(event, NetEvent::Duplicate { hello, .. } if hello == says)).await;
}

/// Whichever of the two opens the control stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_with_a_peers_key_is_heard_beside_the_first() {
    for smaller in [true, false] {
        let mut a = start(&[], NothingToFetch).await;
        let fits = |secret: &[u8; 32]| (identity(*secret).node_id() < a.id()) == smaller;
        let secret = std::iter::repeat_with(fresh_secret).find(fits).unwrap();
        let mut older = process_of(secret, &mut a).await;
        let key = older.id();
        a.wait_for_peers(&[key]).await;
        let mut newer = process_of(secret, &mut a).await;
        newer.net.send_control(a.id(), b"newer".to_vec());
        guest(&mut a, b"newer").await;
        newer.net.send_control(a.id(), b"more".to_vec());
        guest(&mut a, b"newer").await;

        // All else is between the two that had met: control, and bulk both ways.
        older.net.send_control(a.id(), b"older".to_vec());
        assert_eq!(a.next_control().await, b"older");
        a.net.send_control(key, b"to the older".to_vec());
        assert_eq!(older.next_control().await, b"to the older");
        let mut refused = newer.net.open_bulk(a.id()).await.unwrap();
        let answer = async {
            refused.write_all(b"n").await?;
            refused.flush().await?;
            refused.read_u8().await
        };
        assert!(answer.await.is_err(), "it is reset");
        let mut taken = older.net.open_bulk(a.id()).await.unwrap();
        taken.write_all(b"o").await.unwrap();
        taken.flush().await.unwrap();
        assert_eq!(next_bulk(&mut a).await, b'o');
        for _ in 0..4 {
            let mut sent = a.net.open_bulk(key).await.unwrap();
            sent.write_all(b"a").await.unwrap();
            sent.flush().await.unwrap();
            assert_eq!(next_bulk(&mut older).await, b'a');
        }

        a.net.turn_away(key, Some(b"proof".to_vec()));
        assert_eq!(newer.next_control().await, b"proof");
        newer.wait_for(|event| matches!(event, NetEvent::PeerDown { .. })).await;
        newer.net.shutdown().await;
        a.net.send_control(key, b"still here".to_vec());
        assert_eq!(older.next_control().await, b"still here");

        // One more, which may have the place.
        let mut newest = process_of(secret, &mut a).await;
        newest.net.send_control(a.id(), b"newest".to_vec());
        guest(&mut a, b"newest").await;
        a.net.admit(key);
        let down = a.wait_for(|event| matches!(event, NetEvent::PeerDown { .. })).await;
        assert!(matches!(down, NetEvent::PeerDown { reason: DownReason::Displaced, .. }), "{down:?}");
        a.wait_for(|event| matches!(event, NetEvent::PeerUp { .. })).await;
        a.net.send_control(key, b"to the newest".to_vec());
        while newest.next_control().await != b"to the newest" {}
        // The first one is back at the door.
        older.wait_for(|event| matches!(event, NetEvent::PeerDown { .. })).await;
        older.net.shutdown().await;
    }
}
