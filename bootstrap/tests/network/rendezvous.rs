//! Nodes that know only one well-known peer find and connect each other.

use crate::flock::{Node, TOPIC, node};
use libp2p::PeerId;
use libp2p::gossipsub::MessageAcceptance;
use libp2p::swarm::{ListenError, SwarmEvent};
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::discovery::{NetEvent, Origin};
use starling_bootstrap::swarm::{BehaviourEvent, SwarmOptions};
use starling_protocol::Digest;
use std::collections::BTreeSet;
use std::time::Duration;

fn run(name: &str) -> Option<Digest> {
    Some(Digest::of("starling test run", &[name.as_bytes()]))
}

async fn well_known() -> PeerAddress {
    let mut node = node(vec![], None, SwarmOptions { relay_server: true, ..SwarmOptions::default() });
    let address = node.address().await;
    tokio::spawn(node.serve());
    address
}

fn others_of(nodes: &[Node], me: PeerId) -> BTreeSet<PeerId> {
    nodes.iter().map(Node::id).filter(|id| *id != me).collect()
}

async fn meet_all(nodes: Vec<Node>) -> Vec<Node> {
    let others: Vec<_> = nodes.iter().map(|n| others_of(&nodes, n.id())).collect();
    let tasks: Vec<_> = nodes
        .into_iter()
        .zip(others)
        .map(|(mut node, others)| {
            tokio::spawn(async move {
                node.meet(&others).await;
                node
            })
        })
        .collect();
    let mut met = Vec::new();
    for task in tasks {
        // A node that is done stays, unpolled, until all are: its connections do not close.
        met.push(task.await.unwrap());
    }
    met
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_that_know_one_peer_find_each_other() {
    let known = well_known().await;
    let start = |_| node(vec![known.clone()], run("a"), SwarmOptions::default());
    let began = std::time::Instant::now();
    let nodes = meet_all((0..3).map(start).collect()).await;
    println!("three nodes met in {:?}", began.elapsed());
    assert_eq!(nodes.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_another_run_are_not_found() {
    let known = well_known().await;
    let mut stranger = node(vec![known.clone()], run("other"), SwarmOptions::default());
    stranger.meet(&BTreeSet::from([known.peer])).await;
    let stranger_id = stranger.id();
    tokio::spawn(stranger.serve());
    let mut first = node(vec![known.clone()], run("mine"), SwarmOptions::default());
    let second = node(vec![known.clone()], run("mine"), SwarmOptions::default());
    let second_id = second.id();
    tokio::spawn(second.serve());
    let found = first
        .until(|event| match event {
            NetEvent::Found { peers } => Some(peers.clone()),
            _ => None,
        })
        .await;
    assert_eq!(found, [second_id]);
    assert!(!found.contains(&stranger_id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_node_finds_the_flock_through_a_member_alone() {
    let known = well_known().await;
    let nodes = (0..2).map(|_| node(vec![known.clone()], run("b"), SwarmOptions::default())).collect();
    let mut nodes = meet_all(nodes).await;
    let ids: BTreeSet<PeerId> = nodes.iter().map(Node::id).collect();
    let member = starling_bootstrap::addresses::split(&nodes[0].discovery.addresses(&nodes[0].swarm)[0]).unwrap();
    for node in nodes.drain(..) {
        tokio::spawn(node.serve());
    }
    let mut late = node(vec![member], run("b"), SwarmOptions::default());
    late.meet(&ids).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gossip_passes_between_nodes_and_is_judged_first() {
    let options = SwarmOptions { gossip: Some(TOPIC.into()), ..SwarmOptions::default() };
    let mut first = node(vec![], None, options.clone());
    let address = first.address().await;
    let mut second = node(vec![address], None, options);
    let second_id = second.id();
    let receiver = tokio::spawn(async move {
        let message = first
            .until(|event| match event {
                NetEvent::Gossip { id, from, author, data } => Some((id.clone(), *from, *author, data.clone())),
                _ => None,
            })
            .await;
        first.discovery.judge(&mut first.swarm, &message.0, &message.1, MessageAcceptance::Accept);
        message
    });
    let mut receiver = std::pin::pin!(receiver);
    let (_, from, author, data) = loop {
        // Subscriptions travel first; until then there is no peer to publish to.
        let _ = second.discovery.publish(&mut second.swarm, b"head".to_vec());
        tokio::select! {
            message = &mut receiver => break message.unwrap(),
            _ = tokio::time::timeout(Duration::from_millis(50), second.next()) => {}
        }
    };
    assert_eq!((from, author, data.as_slice()), (second_id, second_id, b"head".as_slice()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_peer_is_disconnected_and_kept_out() {
    let known = well_known().await;
    let mut first = node(vec![], None, SwarmOptions::default());
    let address = first.address().await;
    let second = node(vec![address, known], None, SwarmOptions::default());
    let second_id = second.id();
    tokio::spawn(second.serve());
    first.meet(&BTreeSet::from([second_id])).await;
    first.discovery.exclude(&mut first.swarm, second_id, Duration::from_secs(3600));
    first.discovery.disconnect(&mut first.swarm, second_id);
    first
        .until(|event| {
            matches!(event, NetEvent::Disconnected { peer, last: true, .. } if *peer == second_id).then_some(())
        })
        .await;
    first.discovery.want(&mut first.swarm, second_id, &[], Origin::Gossip);
    // The peer dials again; its connection is denied before anything else sees it.
    let denied = |event: &SwarmEvent<BehaviourEvent>| match event {
        SwarmEvent::ConnectionEstablished { peer_id, .. } => {
            assert_ne!(*peer_id, second_id, "it is back");
            false
        }
        SwarmEvent::IncomingConnectionError { peer_id, error: ListenError::Denied { .. }, .. } => {
            *peer_id == Some(second_id)
        }
        _ => false,
    };
    first.until_swarm(denied).await;
    assert!(!first.swarm.is_connected(&second_id));
}
