//! The addresses that go into a ticket: as many as there is room for, the most useful first.

use super::packed;
use crate::addresses::{self, PeerAddress, Scope};
use crate::identity;
use libp2p::PeerId;

/// Bytes of a peer's key.
const KEY_BYTES: usize = 32;
/// Addresses of the inviter.
const OWN_MAX: usize = 4;

/// Chooses among the inviter's `own` addresses, best first, and those of the peers that it knows (`known`): the best one
/// of each peer, and further ones of the inviter. The first goes in whatever room there is. A loopback address, which
/// leads nowhere from another machine, goes in only if its peer has no other.
pub(super) fn choose(own: &[PeerAddress], known: &[PeerAddress], room: usize) -> Vec<PeerAddress> {
    let mine = own.first().map(|first| first.peer);
    let mut own = useful(own);
    own.truncate(OWN_MAX);
    let mut others: Vec<PeerAddress> = Vec::new();
    for peer in known.iter().map(|known| known.peer).filter(|peer| Some(*peer) != mine) {
        if others.iter().all(|other| other.peer != peer) {
            others.extend(useful(&of_peer(known, &peer)).into_iter().next());
        }
    }
    let (mut further, mut left) = (own, room);
    let first: Vec<PeerAddress> = further.drain(..further.len().min(1)).collect();
    left = left.saturating_sub(first.iter().map(|address| KEY_BYTES + bytes_of(address)).sum());
    others.retain(|other| fits(KEY_BYTES + bytes_of(other), &mut left));
    further.retain(|address| fits(bytes_of(address), &mut left));
    // Addresses of one peer stand together.
    first.into_iter().chain(further).chain(others).collect()
}

/// Takes the bytes off what is left, if they fit.
fn fits(bytes: usize, left: &mut usize) -> bool {
    let rest = left.checked_sub(bytes);
    *left = rest.unwrap_or(*left);
    rest.is_some()
}

fn of_peer(list: &[PeerAddress], peer: &PeerId) -> Vec<PeerAddress> {
    list.iter().filter(|address| address.peer == *peer).cloned().collect()
}

/// The addresses of one peer that can be packed and lead somewhere: each host once, then again by another transport.
fn useful(list: &[PeerAddress]) -> Vec<PeerAddress> {
    let packs = |of: &&PeerAddress| identity::node_id(&of.peer).is_some() && packed::length(&of.address).is_some();
    let all: Vec<&PeerAddress> = list.iter().filter(packs).collect();
    let leads = |of: &PeerAddress| !matches!(addresses::scope(&of.address), Scope::Loopback);
    let leads_somewhere = all.iter().any(|address| leads(address));
    let kept: Vec<&PeerAddress> = all.into_iter().filter(|address| !leads_somewhere || leads(address)).collect();
    let host = |of: &PeerAddress| of.address.iter().next().map(|host| host.to_string());
    let turn = |at: usize| kept[..at].iter().filter(|before| host(before) == host(kept[at])).count();
    let mut order: Vec<usize> = (0..kept.len()).collect();
    order.sort_by_key(|at| turn(*at));
    order.into_iter().map(|at| kept[at].clone()).collect()
}

fn bytes_of(address: &PeerAddress) -> usize {
    packed::length(&address.address).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::NodeId;

    fn at(peer: u8, address: &str) -> PeerAddress {
        PeerAddress { peer: identity::peer_id(&NodeId([peer; 32])), address: address.parse().unwrap() }
    }

    fn shown(list: &[PeerAddress]) -> Vec<String> {
        list.iter().map(|of| of.address.to_string()).collect()
    }

    #[test]
    fn loopback_goes_in_only_where_nothing_else_is() {
        let (here, there) = (at(1, "/ip4/127.0.0.1/tcp/1"), at(1, "/ip4/192.0.2.1/tcp/1"));
        let known = [at(2, "/ip4/127.0.0.1/tcp/2"), at(3, "/ip4/127.0.0.1/tcp/3"), at(3, "/ip4/192.0.2.3/tcp/3")];
        let chosen = choose(&[here.clone(), there.clone()], &known, 1000);
        assert_eq!(chosen, [there, known[0].clone(), known[2].clone()]);
        assert_eq!(choose(std::slice::from_ref(&here), &[], 1000), [here]);
    }

    #[test]
    fn each_host_comes_once_before_another_transport_and_well_known_peers_before_both() {
        let own = ["/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.1/udp/1/quic-v1", "/ip4/10.0.0.1/tcp/1"].map(|a| at(1, a));
        let known = [at(2, "/ip4/192.0.2.2/tcp/2"), at(1, "/ip4/192.0.2.9/tcp/9")];
        let all =
            ["/ip4/192.0.2.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip4/192.0.2.1/udp/1/quic-v1", "/ip4/192.0.2.2/tcp/2"];
        assert_eq!(shown(&choose(&own, &known, 1000)), all);
        assert_eq!(shown(&choose(&own, &known, 2 * 39 + 7)), [all[0], all[1], all[3]]);
        assert_eq!(shown(&choose(&own, &known, 2 * 39)), [all[0], all[3]]);
        assert_eq!(shown(&choose(&own, &known, 0)), [all[0]], "one always");
        assert!(choose(&[], &[], 1000).is_empty());
    }

    #[test]
    fn what_cannot_be_packed_stays_out() {
        let own = [at(1, "/memory/1"), at(1, "/ip4/192.0.2.1/tcp/1")];
        assert_eq!(choose(&own, &[at(2, "/ip4/192.0.2.2")], 1000), own[1..]);
    }
}
