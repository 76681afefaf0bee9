//! The ring over real networks on loopback.

mod flock;

use flock::{Node, RUN, start};
use starling_node::net::fetch::NothingToFetch;
use starling_node::net::{NetEvent, NetHandle};
use starling_node::reduce::{BulkRouter, NetLinks, ReduceEngine, ReduceError, ReduceJob, RingReducer};
use starling_protocol::engine::io::{AttemptKey, Contribution};
use starling_protocol::run::Codec;
use starling_protocol::update::Stated;
use starling_protocol::{Digest, NodeId, update};
use std::sync::Arc;

/// A network whose bulk streams go to a router.
struct Member {
    net: NetHandle,
    router: BulkRouter,
}

impl Member {
    /// From here on nobody looks at the node's events but for bulk streams.
    fn new(mut node: Node) -> Self {
        let (net, router) = (node.net.clone(), BulkRouter::new(RUN));
        let routing = router.clone();
        tokio::spawn(async move {
            while let Some(event) = node.events.recv().await {
                if let NetEvent::Bulk { from, stream } = event {
                    routing.route(from, stream);
                }
            }
        });
        Self { net, router }
    }
}

/// Networks that are all connected, in the order of their ids.
async fn members(count: usize) -> Vec<Member> {
    let mut nodes = vec![start(&[], NothingToFetch).await];
    while nodes.len() < count {
        let node = start(&[&nodes[0]], NothingToFetch).await;
        nodes.push(node);
    }
    let ids: Vec<_> = nodes.iter().map(Node::id).collect();
    for node in &mut nodes {
        node.wait_for_peers(&ids).await;
    }
    nodes.sort_by_key(Node::id);
    nodes.into_iter().map(Member::new).collect()
}

fn delta(member: usize, elements: usize) -> Arc<Vec<f32>> {
    Arc::new((0..elements).map(|e| ((e * (2 * member + 3)) % 2001) as f32 * 1e-6 - 1e-3).collect())
}

fn contributions(members: &[Member]) -> Vec<Contribution> {
    let stated = |i: usize| Stated { tokens: 1000 * (i as u64 + 1), steps: 1, norm: 1.0 };
    let one =
        |(i, m): (usize, &Member)| Contribution { member: m.net.me(), stated: stated(i), payload: Digest([0; 32]) };
    members.iter().enumerate().map(one).collect()
}

fn start_reduction(
    member: &Member,
    members: &[Contribution],
    attempt: u32,
    delta: Arc<Vec<f32>>,
) -> tokio::task::JoinHandle<Result<Vec<u8>, ReduceError>> {
    let key = AttemptKey { lineage: Digest([1; 32]), seq: 1, attempt, set: Digest([2; 32]) };
    let (me, members) = (member.net.me(), members.to_vec());
    let feedback = Arc::default();
    let (flock, grid, parts, sums) = (Vec::new(), Default::default(), Default::default(), Default::default());
    let job = ReduceJob { run: RUN, key, codec: Codec::Int8, members, flock, grid, me, delta, feedback, parts, sums };
    let engine = RingReducer::new(NetLinks::new(member.net.clone(), member.router.clone()));
    tokio::spawn(engine.run(job, Arc::new(|_| {})))
}

fn expected(members: &[Contribution], deltas: &[Arc<Vec<f32>>]) -> Vec<u8> {
    let weighted: Vec<Vec<f32>> = Contribution::weights(members)
        .into_iter()
        .zip(deltas)
        .map(|(weight, delta)| {
            let mut delta = delta.to_vec();
            update::apply_weight(weight, &mut delta);
            delta
        })
        .collect();
    let views: Vec<&[f32]> = weighted.iter().map(Vec::as_slice).collect();
    update::reduce(Codec::Int8, &views).unwrap()
}

/// What stands for the engine's deadline.
const ABANDON_AFTER: std::time::Duration = std::time::Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_networks_agree_on_the_specified_bytes() {
    let members = members(3).await;
    let ring = contributions(&members);
    // Far more than a stream's window, and a short last chunk.
    let deltas: Vec<_> = (0..3).map(|i| delta(i, 2_000_003)).collect();
    let expected = expected(&ring, &deltas);
    for attempt in 0..3 {
        let start = |i: usize| start_reduction(&members[i], &ring, attempt, Arc::clone(&deltas[i]));
        let running: Vec<_> = (0..3).map(start).collect();
        for result in running {
            assert!(result.await.unwrap().unwrap() == expected, "attempt {attempt}");
        }
    }
    let sent = members[0].net.counters().total.bulk.sent;
    // Two thirds of the update twice, three times; segments differ by a chunk.
    let floor = 3 * 2 * (expected.len() as u64 * 2 / 3);
    assert!(sent.abs_diff(floor) < floor / 50, "{sent} bytes where about {floor} carry the update");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survivors_of_a_lost_member_go_on_with_the_next_attempt() {
    let mut members = members(3).await;
    let ring = contributions(&members);
    let deltas: Vec<_> = (0..3).map(|i| delta(i, 3_000_000)).collect();
    let lost: NodeId = members[1].net.me();
    let start = |i: usize| start_reduction(&members[i], &ring, 0, Arc::clone(&deltas[i]));
    let running: Vec<_> = [0, 2].map(start).into();
    // Member 1 takes part for a moment, then its process is gone.
    let part = start(1);
    tokio::task::yield_now().await;
    part.abort();
    members[1].net.shutdown().await;
    for mut running in running {
        // A member that was lost before it opened its stream is missed by the engine, by its lost connection, not by
        // the ring: then the attempt is abandoned from outside.
        match tokio::time::timeout(ABANDON_AFTER, &mut running).await {
            Ok(result) => {
                let error = result.unwrap().unwrap_err();
                assert!(error.suspect().is_some() && error.refusal().is_none(), "{error}");
            }
            Err(_) => running.abort(),
        }
    }
    members.remove(1);
    let ring: Vec<_> = ring.into_iter().filter(|c| c.member != lost).collect();
    let deltas = [Arc::clone(&deltas[0]), Arc::clone(&deltas[2])];
    let expected = expected(&ring, &deltas);
    let start = |i: usize| start_reduction(&members[i], &ring, 1, Arc::clone(&deltas[i]));
    for result in [0, 1].map(start) {
        assert!(result.await.unwrap().unwrap() == expected);
    }
}
