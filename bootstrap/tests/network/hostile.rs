//! Garbage, oversize and truncated bytes on each protocol, and a flood of half-open connections: the well-known peer
//! continues to serve. A peer's text about itself arrives without characters that a terminal would obey.

use crate::flock::{Node, node};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, StreamProtocol, identify};
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::discovery::{Discovery, DiscoveryOptions, NetEvent};
use starling_bootstrap::identification::{self, IDENTIFY_PROTOCOL};
use starling_bootstrap::identity::Identity;
use starling_bootstrap::streams::{Control, Lane};
use starling_bootstrap::swarm::{self, SwarmOptions};
use starling_protocol::Digest;
use std::collections::BTreeSet;
use std::time::Duration;

/// All protocols that a node answers.
const PROTOCOLS: [&str; 9] = [
    "/starling/kad/1",
    "/starling/gossip/1/1.1.0",
    "/ipfs/id/1.0.0",
    "/ipfs/id/push/1.0.0",
    "/ipfs/ping/1.0.0",
    "/libp2p/circuit/relay/0.2.0/hop",
    "/libp2p/circuit/relay/0.2.0/stop",
    "/libp2p/autonat/2/dial-request",
    "/libp2p/dcutr",
];

fn bad_bytes() -> Vec<Vec<u8>> {
    let noise: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    vec![
        vec![],
        // A length prefix of nearly 2^64, one of 4 GiB, one longer than the bytes after it.
        [vec![0xff; 9], vec![0x01]].concat(),
        vec![0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0],
        vec![0x7f, 0x0a, 0x20],
        vec![0x00],
        noise.clone(),
        noise.repeat(64),
    ]
}

async fn throw(control: &Control, target: PeerId) {
    for name in PROTOCOLS {
        for bytes in bad_bytes() {
            let Ok(mut stream) = control.open(target, StreamProtocol::new(name), Lane::First, None).await else {
                continue;
            };
            // The other side may refuse at any point; no step may hang.
            let exchange = async {
                let _ = stream.write_all(&bytes).await;
                let _ = stream.close().await;
                let mut rest = [0u8; 1024];
                while matches!(stream.read(&mut rest).await, Ok(1..)) {}
            };
            let _ = tokio::time::timeout(Duration::from_millis(100), exchange).await;
        }
    }
}

async fn flood(target: &PeerAddress) -> Vec<tokio::net::TcpStream> {
    let port = target.address.iter().find_map(|p| match p {
        libp2p::multiaddr::Protocol::Tcp(port) => Some(port),
        _ => None,
    });
    let mut open = Vec::new();
    for n in 0..200u8 {
        if let Ok(mut stream) = tokio::net::TcpStream::connect(("127.0.0.1", port.unwrap())).await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, &[n]).await;
            open.push(stream);
        }
    }
    open
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_bytes_on_every_protocol_stop_nobody() {
    let options = SwarmOptions { relay_server: true, gossip: Some("t".into()), ..SwarmOptions::default() };
    let mut target = node(vec![], None, options);
    let known = target.address().await;
    tokio::spawn(target.serve());

    let mut byzantine = node(vec![known.clone()], None, SwarmOptions::default());
    byzantine.meet(&BTreeSet::from([known.peer])).await;
    let control = byzantine.swarm.behaviour().streams.control();
    tokio::spawn(byzantine.serve());
    throw(&control, known.peer).await;
    let half_open = flood(&known).await;
    drop(half_open);

    let run = Some(Digest::of("starling test run", &[b"after the storm"]));
    let mut first = node(vec![known.clone()], run, SwarmOptions::default());
    let second = node(vec![known], run, SwarmOptions::default());
    let second_id = second.id();
    tokio::spawn(second.serve());
    first.meet(&BTreeSet::from([second_id])).await;
}

/// A peer that says about itself what no node says.
fn liar(known: PeerAddress, agent: &str) -> Node {
    let identity = Identity::generate().unwrap();
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    let options = SwarmOptions { listen, mdns: false, ..SwarmOptions::default() };
    let mut swarm = swarm::build(&identity, &options).unwrap();
    let says = identify::Config::new(IDENTIFY_PROTOCOL.into(), identity.keypair().public());
    swarm.behaviour_mut().identify = identification::Behaviour::new(says.with_agent_version(agent.into()));
    let options = DiscoveryOptions { run: None, bootstrap: vec![known], gossip: None, hidden: false, seed: 1 };
    let discovery = Discovery::new(&mut swarm, options);
    Node { swarm, discovery }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_would_colour_the_terminal_arrives_without_its_escapes() {
    let mut target = node(vec![], None, SwarmOptions::default());
    let known = target.address().await;
    let agent = "starling/0.1.0 \x1b[31mred\x1b]0;title\x07\u{9b}2J\u{202e}box\n";
    tokio::spawn(liar(known, agent).serve());
    let said = |event: &NetEvent| match event {
        NetEvent::Identified { agent, name, .. } => Some((agent.clone(), name.clone())),
        _ => None,
    };
    let (agent, name) = target.until(said).await;
    assert_eq!(name.as_deref(), Some("redbox"));
    assert!(agent.starts_with("starling/0.1.0 ") && !agent.contains(char::is_control), "{agent:?}");
    assert!(agent.is_ascii(), "{agent:?}");
}
