//! The events of a node that cannot reach a peer or must not be reached.

use crate::flock::node;
use libp2p::PeerId;
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::discovery::reason::Reason;
use starling_bootstrap::discovery::{NetEvent, Origin};
use starling_bootstrap::identity::Identity;
use starling_bootstrap::swarm::{self, ListenFailed, StartError, SwarmOptions};

async fn first_failure(target: PeerAddress) -> Reason {
    let mut node = node(vec![target], None, SwarmOptions::default());
    let reason = node
        .until(|event| match event {
            NetEvent::DialFailed { failures, .. } => failures.first().map(|(_, reason)| reason.clone()),
            _ => None,
        })
        .await;
    let troubles = node.discovery.troubles();
    assert_eq!(troubles.first().map(|t| &t.reason), Some(&reason));
    reason
}

fn at(address: &str) -> PeerAddress {
    PeerAddress { peer: PeerId::random(), address: address.parse().unwrap() }
}

/// A loopback port on which nobody listens.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn a_closed_port_is_refused() {
    assert_eq!(first_failure(at(&format!("/ip4/127.0.0.1/tcp/{}", free_port()))).await, Reason::Refused);
}

#[tokio::test]
async fn another_nodes_address_is_told_apart() {
    let mut other = node(vec![], None, SwarmOptions::default());
    let mut target = other.address().await;
    let found = target.peer;
    tokio::spawn(other.serve());
    target.peer = Identity::generate().unwrap().peer_id();
    assert_eq!(first_failure(target).await, Reason::WrongPeer { found });
}

#[tokio::test]
async fn something_that_is_no_node_breaks_the_handshake() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let reason = first_failure(at(&format!("/ip4/127.0.0.1/tcp/{port}"))).await;
    assert!(matches!(reason, Reason::Broken | Reason::Other(_)), "{reason:?}");
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_said_to_be_one() {
    let reason = first_failure(at("/dns4/no-such-host.invalid/tcp/7400")).await;
    assert!(matches!(reason, Reason::NoSuchName | Reason::Unsupported), "{reason:?}");
}

#[tokio::test]
async fn quic_takes_over_where_tcp_is_closed() {
    let quic =
        SwarmOptions { listen: vec!["/ip4/127.0.0.1/udp/0/quic-v1".parse().unwrap()], ..SwarmOptions::default() };
    let mut server = node(vec![], None, quic);
    let open = server.address().await;
    let peer = open.peer;
    tokio::spawn(server.serve());
    let closed = PeerAddress { peer, address: format!("/ip4/127.0.0.1/tcp/{}", free_port()).parse().unwrap() };
    let mut client = node(vec![closed, open.clone()], None, SwarmOptions::default());
    let address = client
        .until(|event| match event {
            NetEvent::Connected { peer: p, address, dialed: true, .. } if *p == peer => Some(address.clone()),
            _ => None,
        })
        .await;
    assert_eq!(address, open.address);
}

#[tokio::test]
async fn a_port_in_use_is_one_clear_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let start = |address: String| {
        let options = SwarmOptions { listen: vec![address.parse().unwrap()], mdns: false, ..SwarmOptions::default() };
        swarm::build(&Identity::generate().unwrap(), &options).map(drop)
    };
    let error = start(format!("/ip4/127.0.0.1/tcp/{port}")).unwrap_err();
    assert!(matches!(error, StartError::Listen(ListenFailed::InUse { .. })), "{error}");
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = start(format!("/ip4/127.0.0.1/udp/{port}/quic-v1")).unwrap_err();
    assert!(matches!(error, StartError::Listen(ListenFailed::InUse { .. })), "{error}");
    let error = start("/ip4/192.0.2.1/tcp/7400".into()).unwrap_err();
    assert!(matches!(error, StartError::Listen(ListenFailed::NotOurs { .. })), "{error}");
    let error = start("/dns4/localhost/tcp/7400".into()).unwrap_err();
    assert!(matches!(error, StartError::Listen(ListenFailed::Unsupported { .. })), "{error}");
}

#[tokio::test]
async fn a_name_that_a_peer_told_does_not_open_this_machine() {
    let mut node = node(vec![], None, SwarmOptions::default());
    let name = |port: u16| format!("/dns4/localhost/tcp/{port}").parse().unwrap();
    let taken = node.discovery.learn(PeerId::random(), PeerId::random(), &[name(22)], Origin::Gossip);
    node.discovery.want_address(&mut node.swarm, &at("/dns4/localhost/tcp/7400"), Origin::Configured);
    let allows = |port: u16| {
        let gate = node.swarm.behaviour().gate.gate();
        gate.allows(&format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap())
    };
    assert_eq!(taken, 1, "it is dialed where it leads elsewhere");
    assert!(!allows(22) && allows(7400));
}

/// An address of this node may be told as anybody's: two homes have the same private addresses. A dial would lead here.
#[tokio::test]
async fn an_own_address_is_nobody_elses() {
    let mut node = node(vec![], None, SwarmOptions::default());
    let own = node.address().await;
    // The one with the smaller id dials at once.
    let any = std::iter::repeat_with(|| Identity::generate().expect("a key").peer_id());
    let peer = any.take(1000).find(|peer| *peer > own.peer).expect("half of them are larger");
    node.discovery.want(&mut node.swarm, peer, &[own.address], Origin::Ticket);
    node.discovery.tick(&mut node.swarm);
    let reasons: Vec<Reason> = node.discovery.troubles().into_iter().map(|trouble| trouble.reason).collect();
    assert_eq!(reasons, [Reason::NoAddress]);
}
