//! A node that listens nowhere is reached through a relay.

use crate::flock::node;
use libp2p::multiaddr::Protocol;
use starling_bootstrap::addresses::{self, Route};
use starling_bootstrap::discovery::{NetEvent, Origin};
use starling_bootstrap::swarm::SwarmOptions;
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_port_is_reached_through_a_relay() {
    let mut relay = node(vec![], None, SwarmOptions { relay_server: true, ..SwarmOptions::default() });
    let known = relay.address().await;
    // A relay hands out its own confirmed addresses with a place.
    relay.swarm.add_external_address(known.address.clone());
    tokio::spawn(relay.serve());

    let circuit = known.full().with(Protocol::P2pCircuit);
    let mut hidden = node(vec![], None, SwarmOptions { listen: vec![circuit], ..SwarmOptions::default() });
    let at = hidden.address().await;
    assert_eq!((addresses::route(&at.address), at.peer), (Some(Route::Relayed), hidden.id()));
    let hidden_id = hidden.id();
    tokio::spawn(hidden.serve());

    let mut caller = node(vec![known], None, SwarmOptions::default());
    caller.discovery.want_address(&mut caller.swarm, &at, Origin::Ticket);
    let address = caller
        .until(|event| match event {
            NetEvent::Connected { peer, address, dialed: true, .. } if *peer == hidden_id => Some(address.clone()),
            _ => None,
        })
        .await;
    assert_eq!(addresses::route(&address), Some(Route::Relayed));
    caller.meet(&BTreeSet::from([hidden_id])).await;
}
