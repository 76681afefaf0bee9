//! A node that nobody can dial is met through a relay, and then directly.

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
async fn a_relay_brings_two_together_who_then_speak_directly() {
    let mut relay = node(vec![], None, SwarmOptions { relay_server: true, ..SwarmOptions::default() });
    let known = relay.address().await;
    // A relay hands out its own confirmed addresses with a place; on loopback it takes none for one.
    relay.swarm.add_external_address(known.address.clone());
    let relay_id = relay.id();
    tokio::spawn(relay.serve());

    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap(), known.full().with(Protocol::P2pCircuit)];
    let mut hidden = node(vec![known.clone()], None, SwarmOptions { listen, ..SwarmOptions::default() });
    let hidden_id = hidden.id();
    let mut at = None;
    let (mut told, mut placed) = (false, false);
    hidden
        .until(|event| {
            if let NetEvent::Listening { address } = event
                && addresses::route(address) == Some(Route::Relayed)
            {
                (at, placed) = (addresses::split(address).ok(), true);
            }
            told |= identified(event, relay_id).is_some();
            (told && placed).then_some(())
        })
        .await;
    let at = at.unwrap();
    assert_eq!(at.peer, hidden_id);
    let hidden = tokio::spawn(async move {
        let caller = |event: &NetEvent| match event {
            NetEvent::Connected { peer, address, .. } if *peer != relay_id => Some(address.clone()),
            _ => None,
        };
        let address = hidden.until(caller).await;
        tokio::spawn(hidden.serve());
        address
    });

    let mut caller = node(vec![known], None, SwarmOptions::default());
    caller.until(|event| identified(event, relay_id)).await;
    caller.discovery.want_address(&mut caller.swarm, &at, Origin::Ticket);
    let (address, punched) = caller
        .until(|event| match event {
            NetEvent::Connected { peer, address, punched, .. } if *peer == hidden_id => {
                Some((address.clone(), *punched))
            }
            _ => None,
        })
        .await;
    assert_eq!((addresses::route(&address), punched), (Some(Route::Tcp), true));
    // What was said on the relayed connection is not told: only on the direct one.
    caller.until(|event| identified(event, hidden_id)).await;
    assert_eq!(addresses::route(&hidden.await.unwrap()), Some(Route::Tcp));
}
