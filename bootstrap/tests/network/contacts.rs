//! Members of a large flock that are to be connected, and know nothing of each other but their ids.

use crate::flock::node;
use libp2p::PeerId;
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::discovery::dialer::Contacts;
use starling_bootstrap::swarm::SwarmOptions;
use std::collections::BTreeSet;

/// The first is told the ids of twenty members that are gone, and of one that is there. Both have met only a peer that
/// announces nobody: neither is of a run that it could look for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contact_is_found_by_its_id_beside_contacts_that_are_gone() {
    let mut known = node(vec![], None, SwarmOptions { relay_server: true, ..SwarmOptions::default() });
    let address: PeerAddress = known.address().await;
    tokio::spawn(known.serve());
    let mut second = node(vec![address.clone()], None, SwarmOptions::default());
    second.meet(&BTreeSet::from([address.peer])).await;
    let sought = second.id();
    tokio::spawn(second.serve());
    let mut first = node(vec![address.clone()], None, SwarmOptions::default());
    first.meet(&BTreeSet::from([address.peer])).await;
    let near = (0..20).map(|_| PeerId::random()).chain([sought]).collect();
    first.discovery.set_contacts(&mut first.swarm, Some(Contacts { near, ..Contacts::default() }));
    first.meet(&BTreeSet::from([sought])).await;
}
