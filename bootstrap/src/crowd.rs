//! How many connections may come from one address: a stranger that floods a node takes its own share of the places, not
//! everybody's. Members and newcomers from elsewhere still find one.

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
    dummy,
};
use libp2p::{Multiaddr, PeerId};
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};
use std::task::{Context, Poll};

/// Connections from one address that are in their handshakes: a quarter of all that there may be.
const ARRIVING_MAX: usize = 8;
/// Connections from one address: half of all inbound ones. Behind a router there may be many nodes.
const PRESENT_MAX: usize = 64;

/// What a connection too many is denied with.
#[derive(Debug, thiserror::Error)]
#[error("too many connections from one address")]
pub struct Crowded;

/// Counts inbound connections by where they come from. Emits no events. What it remembers is bounded by the limits of all
/// connections together.
#[derive(Default)]
pub struct Behaviour {
    connections: HashMap<ConnectionId, (IpAddr, bool)>,
    arriving: BTreeMap<IpAddr, usize>,
    present: BTreeMap<IpAddr, usize>,
}

impl Behaviour {
    fn arrive(&mut self, id: ConnectionId, from: &Multiaddr) -> Result<(), Crowded> {
        let Some(source) = source(from) else { return Ok(()) };
        let (arriving, present) = (count(&self.arriving, source), count(&self.present, source));
        if arriving >= ARRIVING_MAX || arriving + present >= PRESENT_MAX {
            metrics::counter!("starling_refused_total", "reason" => "address_crowded").increment(1);
            return Err(Crowded);
        }
        *self.arriving.entry(source).or_default() += 1;
        self.connections.insert(id, (source, false));
        Ok(())
    }

    fn is_here(&mut self, id: ConnectionId) {
        let Some((source, here)) = self.connections.get_mut(&id) else { return };
        if !std::mem::replace(here, true) {
            let source = *source;
            less(&mut self.arriving, source);
            *self.present.entry(source).or_default() += 1;
        }
    }

    fn is_gone(&mut self, id: ConnectionId) {
        let Some((source, here)) = self.connections.remove(&id) else { return };
        less(if here { &mut self.present } else { &mut self.arriving }, source);
    }
}

fn count(of: &BTreeMap<IpAddr, usize>, source: IpAddr) -> usize {
    of.get(&source).copied().unwrap_or_default()
}

fn less(of: &mut BTreeMap<IpAddr, usize>, source: IpAddr) {
    if let Some(count) = of.get_mut(&source) {
        *count -= 1;
        if *count == 0 {
            of.remove(&source);
        }
    }
}

/// Where it comes from: of IPv6 the first 64 bits, which one subscriber has. Connections from this machine, and those through
/// a relay, which has limits of its own, are not counted.
fn source(from: &Multiaddr) -> Option<IpAddr> {
    let mut source = None;
    for part in from.iter() {
        match part {
            Protocol::Ip4(ip) => source = Some(IpAddr::V4(ip)),
            Protocol::Ip6(ip) => {
                source = Some(ip.to_ipv4_mapped().map_or_else(|| IpAddr::V6(subscriber(ip)), IpAddr::V4))
            }
            Protocol::P2pCircuit => return None,
            _ => {}
        }
    }
    source.filter(|ip| !ip.is_loopback())
}

fn subscriber(ip: Ipv6Addr) -> Ipv6Addr {
    if ip.is_loopback() { ip } else { Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)) }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        _: &Multiaddr,
        from: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.arrive(id, from).map_err(ConnectionDenied::new)
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.is_here(id);
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            // Also of those that another part of the node has denied.
            FromSwarm::ListenFailure(failed) => self.is_gone(failed.connection_id),
            FromSwarm::ConnectionClosed(closed) => self.is_gone(closed.connection_id),
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_has_its_share_and_others_theirs() {
        let mut crowd = Behaviour::default();
        let (flood, honest) = (from("/ip4/45.2.0.9/tcp/5"), from("/ip4/45.1.0.1/tcp/5"));
        let ids: Vec<_> = (0..100).map(ConnectionId::new_unchecked).collect();
        let taken = ids.iter().filter(|id| crowd.arrive(**id, &flood).is_ok()).count();
        assert_eq!(taken, ARRIVING_MAX, "handshakes");
        crowd.arrive(ConnectionId::new_unchecked(500), &honest).expect("others have places of their own");
        for id in &ids[..ARRIVING_MAX] {
            crowd.is_here(*id);
        }
        let mut present = ARRIVING_MAX;
        for id in &ids[ARRIVING_MAX..] {
            if crowd.arrive(*id, &flood).is_ok() {
                crowd.is_here(*id);
                present += 1;
            }
        }
        assert_eq!(present, PRESENT_MAX, "connections");
        ids.iter().for_each(|id| crowd.is_gone(*id));
        crowd.is_gone(ConnectionId::new_unchecked(500));
        assert!(
            crowd.connections.is_empty() && crowd.arriving.is_empty() && crowd.present.is_empty(),
            "nothing is left"
        );
        assert!(crowd.arrive(ids[0], &flood).is_ok(), "places are given back");
    }

    #[test]
    fn where_connections_come_from() {
        let v4: IpAddr = "45.2.0.9".parse().unwrap();
        assert_eq!(source(&from("/ip4/45.2.0.9/tcp/5")), Some(v4));
        assert_eq!(source(&from("/ip6/::ffff:45.2.0.9/tcp/5")), Some(v4));
        let one = source(&from("/ip6/2001:db8:1:2:3:4:5:6/udp/5/quic-v1"));
        assert_eq!(one, source(&from("/ip6/2001:db8:1:2::9/tcp/5")), "one subscriber");
        assert_ne!(one, source(&from("/ip6/2001:db8:1:3::9/tcp/5")));
        for uncounted in ["/ip4/127.0.0.1/tcp/5", "/ip6/::1/tcp/5", "/memory/1", "/ip4/45.2.0.9/tcp/5/p2p-circuit"] {
            assert_eq!(source(&from(uncounted)), None, "{uncounted}");
        }
    }
}
