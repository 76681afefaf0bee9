//! Swarm events one by one: their effect on discovery, and the event for its owner.

use super::reason::Reason;
use super::ways::{Closed, Opened};
use super::{Discovery, LOST_PINGS_MAX, NetEvent, Origin, STRANGER_REST, Wish, reason};
use crate::addresses::{Route, Scope};
use crate::identification::IDENTIFY_PROTOCOL;
use crate::swarm::{Behaviour, BehaviourEvent};
use crate::{addresses, dht, untrusted};
use libp2p::core::ConnectedPoint;
use libp2p::swarm::{ConnectionError, ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, gossipsub, identify, mdns, ping, relay};

impl Discovery {
    pub(super) fn take_in(
        &mut self,
        swarm: &mut Swarm<Behaviour>,
        event: SwarmEvent<BehaviourEvent>,
    ) -> Option<NetEvent> {
        match event {
            SwarmEvent::Behaviour(event) => self.take_in_behaviour(swarm, event),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                count_peers(swarm);
                self.connected(swarm, peer_id, connection_id, &endpoint)
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, cause, .. } => {
                count_peers(swarm);
                self.disconnected(peer_id, connection_id, cause)
            }
            SwarmEvent::OutgoingConnectionError { peer_id, error, .. } => {
                let failures = reason::of_dial(&error);
                for (_, reason) in &failures {
                    metrics::counter!("starling_dial_failed_total", "reason" => reason.name()).increment(1);
                }
                let now = self.now();
                if let Some(peer) = &peer_id {
                    self.dialer.failed(peer, &failures, now);
                }
                (!failures.is_empty()).then_some(NetEvent::DialFailed { peer: peer_id, failures })
            }
            SwarmEvent::IncomingConnectionError { error, .. } => {
                metrics::counter!("starling_refused_total", "reason" => "incoming_connection").increment(1);
                tracing::debug!(%error, "inbound connection failed");
                None
            }
            SwarmEvent::NewListenAddr { address, .. } => {
                if addresses::route(&address) != Some(Route::Relayed) {
                    self.own.insert(addresses::without_peer(&address));
                }
                Some(NetEvent::Listening { address: addresses::with_peer(&address, &self.me) })
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                self.own.remove(&addresses::without_peer(&address));
                Some(NetEvent::NotListening { address: addresses::with_peer(&address, &self.me), reason: None })
            }
            SwarmEvent::ListenerClosed { listener_id, addresses: closed, reason } => {
                let now = self.now();
                if let Some(relay) = self.relays.closed(listener_id, now) {
                    // The relay is asked again after a while.
                    let why = reason.err().map_or_else(|| "it has ended".into(), |e| starling_words::of(&e));
                    tracing::info!(%relay, why, "no place on this relay");
                    return None;
                }
                let address = addresses::with_peer(closed.first()?, &self.me);
                Some(NetEvent::NotListening { address, reason: reason.err().map(|e| starling_words::of(&e)) })
            }
            SwarmEvent::ListenerError { error, .. } => {
                tracing::warn!(error = starling_words::of(&error), "a listener has trouble");
                None
            }
            SwarmEvent::NewExternalAddrCandidate { address } => {
                self.observed.saw(&address);
                None
            }
            SwarmEvent::ExternalAddrConfirmed { address } => {
                if addresses::route(&address) != Some(Route::Relayed) {
                    self.relays.reached();
                }
                Some(NetEvent::Reachable { address: addresses::with_peer(&address, &self.me) })
            }
            _ => None,
        }
    }

    fn connected(
        &mut self,
        swarm: &mut Swarm<Behaviour>,
        peer: PeerId,
        connection: ConnectionId,
        endpoint: &ConnectedPoint,
    ) -> Option<NetEvent> {
        let dialed = endpoint.is_dialer();
        let address = endpoint.get_remote_address().clone();
        let now = self.now();
        if endpoint.is_relayed() {
            tracing::debug!(%peer, dialed, "met through a relay");
            self.ways.relayed(connection, peer, now);
            if !self.ways.has_direct(&peer) {
                self.dialer.relayed(peer, dialed.then_some(&address), now);
            }
            return None;
        }
        let Opened { first, punched } = self.ways.direct(connection, peer, now);
        self.dialer.connected(peer, dialed.then_some(&address), now);
        if let ConnectedPoint::Listener { local_addr, .. } = endpoint {
            stand_by(swarm, local_addr);
        }
        if matches!(self.dialer.wish_of(&peer), Some(Wish::Candidate | Wish::Wanted)) {
            self.companions.insert(peer);
        }
        let address = addresses::without_peer(&address);
        Some(NetEvent::Connected { peer, connection, address, dialed, first, punched })
    }

    fn disconnected(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        cause: Option<ConnectionError>,
    ) -> Option<NetEvent> {
        self.lost_pings.remove(&connection);
        let last = match self.ways.closed(connection)? {
            Closed::Direct { last } => last,
            Closed::Relayed { vain } => {
                let now = self.now();
                return vain.then(|| {
                    self.dialer.unpunched(&peer, now);
                    metrics::counter!("starling_dial_failed_total", "reason" => Reason::NoDirectWay.name())
                        .increment(1);
                    NetEvent::NoDirectWay { peer }
                });
            }
        };
        if last {
            let idle = matches!(cause, Some(ConnectionError::KeepAliveTimeout) | None);
            let now = self.now();
            self.dialer.disconnected(&peer, idle, now);
            self.rendezvous.server_down(&peer);
            self.relays.lost(&peer);
            self.places.left(&peer);
            self.companions.remove(&peer);
        }
        let why = match cause {
            None => "closed here".to_owned(),
            Some(ConnectionError::KeepAliveTimeout) => "nobody used it".to_owned(),
            Some(ConnectionError::IO(error)) => reason::of_end(&error),
        };
        Some(NetEvent::Disconnected { peer, connection, last, why })
    }

    fn take_in_behaviour(&mut self, swarm: &mut Swarm<Behaviour>, event: BehaviourEvent) -> Option<NetEvent> {
        match event {
            BehaviourEvent::Identify(identify::Event::Received { connection_id, peer_id, info }) => {
                self.identified(swarm, connection_id, peer_id, info)
            }
            BehaviourEvent::Dht(dht::Event::Providers { key, peers }) => self.found(&key, peers),
            BehaviourEvent::Dht(dht::Event::Announced { .. }) => {
                let now = self.now();
                self.rendezvous.announced(now);
                None
            }
            BehaviourEvent::Dht(dht::Event::Sought { peer, addresses }) => {
                let (now, all_local) = (self.now(), self.gate.all_local());
                self.seeker.ended(&peer, now);
                self.accept(peer, &addresses, Origin::Dht, None, all_local);
                None
            }
            BehaviourEvent::Mdns(mdns::Event::Discovered(heard)) => {
                let all_local = self.gate.all_local();
                for (peer, address) in heard {
                    self.accept(peer, &[address], Origin::Mdns, None, all_local);
                }
                None
            }
            BehaviourEvent::Ping(ping) => self.pinged(swarm, ping),
            BehaviourEvent::Gossip(gossipsub::Event::Message { propagation_source, message_id, message }) => {
                // Strict validation has checked that there is an author and that it signed.
                let author = message.source?;
                Some(NetEvent::Gossip { id: message_id, from: propagation_source, author, data: message.data })
            }
            BehaviourEvent::RelayClient(event) => {
                tracing::debug!(?event, "relay");
                None
            }
            BehaviourEvent::RelayServer(event) => {
                tracing::debug!(?event, "relaying");
                self.places.note(&event);
                None
            }
            BehaviourEvent::ReachClient(event) => {
                tracing::debug!(address = %event.tested_addr, reached = event.result.is_ok(), "reachability tested");
                // Success is reported as a confirmed address.
                None
            }
            BehaviourEvent::Dcutr(event) => {
                let (peer, now) = (event.remote_peer_id, self.now());
                if let Err(error) = event.result {
                    tracing::debug!(%peer, %error, "no hole was punched");
                    self.ways.give_up(&peer, now);
                }
                None
            }
            _ => None,
        }
    }

    fn identified(
        &mut self,
        swarm: &mut Swarm<Behaviour>,
        connection: ConnectionId,
        peer: PeerId,
        info: identify::Info,
    ) -> Option<NetEvent> {
        if info.protocol_version != IDENTIFY_PROTOCOL {
            let theirs = untrusted::printable(&info.protocol_version);
            self.exclude(swarm, peer, STRANGER_REST);
            self.disconnect(swarm, peer);
            self.dialer.blame(&peer, Reason::OtherVersion(theirs.clone()));
            metrics::counter!("starling_refused_total", "reason" => "other_version").increment(1);
            return Some(NetEvent::OtherVersion { peer, theirs });
        }
        let is_local = self.gate.is_local(connection);
        self.accept(peer, &info.listen_addrs, Origin::Itself, Some(peer), is_local);
        if self.ways.is_relayed(&connection) {
            return None;
        }
        let fit = |a: &&Multiaddr| addresses::may_be_learned(a, is_local);
        let fit = info.listen_addrs.iter().filter(fit).map(addresses::without_peer);
        let listens: Vec<Multiaddr> = fit.filter(|a| !self.own.contains(a)).collect();
        let now = self.now();
        let dht = &mut swarm.behaviour_mut().dht;
        dht.note_addresses(peer, &listens);
        if info.protocols.contains(&dht::PROTOCOL) {
            dht.add_server(&peer, &listens);
            self.rendezvous.server_up(peer, now);
        } else {
            dht.remove(&peer);
            self.rendezvous.server_down(&peer);
        }
        let named_by_user = self.dialer.wish_of(&peer) == Some(Wish::Anchor);
        if named_by_user
            && info.protocols.contains(&relay::HOP_PROTOCOL_NAME)
            && let Some(address) = self.dialer.book().last_reached(&peer)
        {
            self.relays.known(peer, address, now);
        }
        self.observed.observer(peer, named_by_user);
        let (agent, name) = (untrusted::printable(&info.agent_version), untrusted::name_of_agent(&info.agent_version));
        Some(NetEvent::Identified { peer, agent, name })
    }

    /// Providers of the run's key are companions. Returns the new ones.
    fn found(&mut self, key: &libp2p::kad::RecordKey, peers: Vec<(PeerId, Vec<Multiaddr>)>) -> Option<NetEvent> {
        if self.rendezvous.key() != Some(key) {
            return None;
        }
        let (now, all_local) = (self.now(), self.gate.all_local());
        let mut news = Vec::new();
        for (peer, list) in peers {
            if peer == self.me || self.dialer.is_excluded(&peer, now) {
                continue;
            }
            let is_known = self.dialer.wish_of(&peer).is_some();
            self.accept(peer, &list, Origin::Dht, None, all_local);
            if self.ways.has_direct(&peer) {
                self.companions.insert(peer);
                self.dialer.wish(peer, Wish::Candidate, now);
                self.dialer.connected(peer, None, now);
            }
            if !is_known {
                news.push(peer);
            }
        }
        (!news.is_empty()).then_some(NetEvent::Found { peers: news })
    }

    fn pinged(&mut self, swarm: &mut Swarm<Behaviour>, event: ping::Event) -> Option<NetEvent> {
        match event.result {
            Ok(time) => {
                self.lost_pings.remove(&event.connection);
                Some(NetEvent::RoundTrip { peer: event.peer, time })
            }
            Err(ping::Failure::Timeout) => {
                let lost = self.lost_pings.entry(event.connection).or_default();
                *lost += 1;
                if *lost >= LOST_PINGS_MAX {
                    tracing::info!(peer = %event.peer, "no answer to pings: the connection is given up");
                    swarm.close_connection(event.connection);
                }
                None
            }
            Err(error) => {
                tracing::debug!(peer = %event.peer, %error, "ping failed");
                None
            }
        }
    }
}

/// The address at which a peer has reached this relay is one that the relay hands out with its places. Without an
/// address it gives no places.
fn stand_by(swarm: &mut Swarm<Behaviour>, local: &Multiaddr) {
    let is_relay = swarm.behaviour().relay_server.is_enabled() && swarm.external_addresses().next().is_none();
    if is_relay && matches!(addresses::scope(local), Scope::Public | Scope::Private) {
        swarm.add_external_address(addresses::without_peer(local));
    }
}

fn count_peers(swarm: &Swarm<Behaviour>) {
    metrics::gauge!("starling_connected_peers").set(swarm.network_info().num_peers() as f64);
}
