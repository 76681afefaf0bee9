//! Peers are tried by themselves, and say what they can of the way to this machine.

use crate::flock::{DEADLINE, node};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::checkup::{Answer, Outside, answers, visit};
use starling_bootstrap::discovery::reason::Reason;
use starling_bootstrap::swarm::SwarmOptions;
use std::time::Duration;

fn at(peer: PeerId, port: u16) -> PeerAddress {
    PeerAddress { peer, address: format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap() }
}

/// A loopback port on which nobody listens.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn each_address_is_judged_by_itself() {
    let mut server = node(vec![], None, SwarmOptions::default());
    let here = server.address().await;
    tokio::spawn(server.serve());
    let elsewhere = PeerAddress { peer: PeerId::random(), ..here.clone() };
    let closed = at(here.peer, free_port());
    let relayed = PeerAddress { peer: PeerId::random(), address: here.full().with(Protocol::P2pCircuit) };
    let found = answers(&[here.clone(), elsewhere, closed, relayed], DEADLINE).await.unwrap();
    assert!(matches!(found[0], Answer::Here(_)), "{found:?}");
    let rest =
        [Answer::Failed(Reason::WrongPeer { found: here.peer }), Answer::Failed(Reason::Refused), Answer::NotTried];
    assert_eq!(found[1..], rest);
}

#[tokio::test]
async fn a_silent_address_is_waited_for_no_longer_than_told() {
    // The system accepts the connection, and nobody speaks.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let named = at(PeerId::random(), silent.local_addr().unwrap().port());
    let found = answers(&[named], Duration::from_millis(200)).await.unwrap();
    assert_eq!(found, [Answer::Failed(Reason::TimedOut)]);
}

#[tokio::test]
async fn a_peer_that_tests_nobody_is_told_from_one_that_is_not_there() {
    let mut server = node(vec![], None, SwarmOptions::default());
    let here = server.address().await;
    tokio::spawn(server.serve());
    let listen = || -> Vec<Multiaddr> { vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()] };
    let met = visit(listen(), &[here], DEADLINE).await.unwrap();
    assert_eq!(met.outside(), Outside::NobodyTests);
    assert!(met.strangers.is_empty(), "{met:?}");
    let alone = visit(listen(), &[at(PeerId::random(), free_port())], DEADLINE).await.unwrap();
    assert_eq!(alone.outside(), Outside::NobodyMet);
}
