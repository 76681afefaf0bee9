//! A node that no peer can dial is met through a relay, which only helps to open a direct connection.

use crate::flock::node;
use libp2p::PeerId;
use libp2p::multiaddr::Protocol;
use starling_bootstrap::addresses::{self, Route};
use starling_bootstrap::discovery::{NetEvent, Origin};
use starling_bootstrap::swarm::SwarmOptions;

fn identified(event: &NetEvent, who: PeerId) -> Option<()> {
    matches!(event, NetEvent::Identified { peer, .. } if *peer == who).then_some(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_brings_two_together_who_are_told_that_there_is_no_direct_way() {
    let mut relay = node(vec![], None, SwarmOptions { relay_server: true, ..SwarmOptions::default() });
    let known = relay.address().await;
    // A relay hands out its own confirmed addresses with a place; a loopback address never becomes confirmed.
    relay.swarm.add_external_address(known.address.clone());
    let relay_id = relay.id();
    tokio::spawn(relay.serve());

    let circuit = known.full().with(Protocol::P2pCircuit);
    let mut hidden = node(vec![], None, SwarmOptions { listen: vec![circuit], ..SwarmOptions::default() });
    let at = hidden.address().await;
    assert_eq!((addresses::route(&at.address), at.peer), (Some(Route::Relayed), hidden.id()));
    let hidden_id = hidden.id();
    tokio::spawn(hidden.serve());

    let mut caller = node(vec![known], None, SwarmOptions::default());
    caller.until(|event| identified(event, relay_id)).await;
    caller.discovery.want_address(&mut caller.swarm, &at, Origin::Ticket);
    // A peer without an address of its own cannot be dialed in any way. Between routers the direct connection comes
    // about, as configs/lab/full/nat-both.toml shows.
    let met = caller
        .until(|event| match event {
            NetEvent::Connected { peer, .. } if *peer == hidden_id => Some(true),
            NetEvent::NoDirectWay { peer } if *peer == hidden_id => Some(false),
            _ => None,
        })
        .await;
    assert!(!met, "there is no direct way, and the relayed one is none for Starling's own protocols");
}
