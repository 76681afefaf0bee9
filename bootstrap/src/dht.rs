//! Rendezvous over Kademlia: the nodes of a run find each other behind any peer that they share.
//!
//! Each node announces itself as a provider of the run's key and asks for the others. This wrapper around libp2p's
//! behaviour adds four things. It tells *where* a provider is, not only its id. It lets a rendezvous peer hand out the
//! addresses that a provider listens on (libp2p sends only confirmed external ones). It bounds the store for each peer
//! and address. It dials TCP addresses before QUIC ones. Values are not stored at all. In a flock that is too large for
//! connections between all, a node also looks peers up by their ids.

use crate::addresses::{self, Route};
use crate::gate::Gate;
use crate::source::Source;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::kad::{self, GetProvidersOk, Mode, QueryResult, RecordKey};
use libp2p::swarm::behaviour::ConnectionClosed;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, StreamProtocol};
use starling_protocol::Digest;
use std::task::{Context, Poll};
use std::time::Duration;

mod store;

pub use store::Rendezvous;
use store::SHARED_ADDRESSES_MAX;

/// The name carries the version: peers of different versions never share a table.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/starling/kad/1");

/// The time for which a rendezvous peer believes an announcement.
pub const PROVIDER_TTL: Duration = Duration::from_secs(5 * 60);
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);
/// 40 peers (20 providers, 20 that are closer) with [`SHARED_ADDRESSES_MAX`] addresses each fit.
const PACKET_BYTES_MAX: usize = 48 * 1024;

/// The key under which nodes of a run announce themselves. It does not reveal the run.
pub fn run_key(run: &Digest) -> RecordKey {
    RecordKey::new(&Digest::of("starling rendezvous v1", &[&run.0]).0)
}

/// An event of the DHT.
#[derive(Debug)]
pub enum Event {
    /// These peers announced themselves under `key`; with their known addresses, perhaps none.
    Providers { key: RecordKey, peers: Vec<(PeerId, Vec<Multiaddr>)> },
    /// Our announcement under `key` has been sent to the peers closest to it.
    Announced { key: RecordKey },
    /// The look-up of this peer has ended; with the addresses that were found, perhaps none.
    Sought { peer: PeerId, addresses: Vec<Multiaddr> },
}

/// The behaviour.
pub struct Behaviour {
    inner: kad::Behaviour<Rendezvous>,
    gate: Gate,
}

impl Behaviour {
    /// `server`: whether other peers may ask this node and refer others to it.
    pub fn new(local: PeerId, server: bool, gate: Gate) -> Self {
        let mut config = kad::Config::new(PROTOCOL);
        config
            .set_query_timeout(QUERY_TIMEOUT)
            .set_substreams_timeout(STREAM_TIMEOUT)
            .set_max_packet_size(PACKET_BYTES_MAX)
            .set_kbucket_inserts(kad::BucketInserts::Manual)
            .set_provider_record_ttl(Some(PROVIDER_TTL))
            // Discovery announces anew by itself, and no values are stored that could be replicated.
            .set_provider_publication_interval(None)
            .set_replication_interval(None)
            .set_publication_interval(None)
            .set_caching(kad::Caching::Disabled)
            // A lookup goes as far as it must; a refresh of the table would only add traffic.
            .set_periodic_bootstrap_interval(None);
        let mut inner = kad::Behaviour::with_config(local, Rendezvous::new(local, gate.doors().clone()), config);
        inner.set_mode(Some(if server { Mode::Server } else { Mode::Client }));
        Self { inner, gate }
    }

    /// Tells the table that a DHT server listens at these addresses.
    pub fn add_server(&mut self, peer: &PeerId, addresses: &[Multiaddr]) {
        for address in addresses.iter().take(SHARED_ADDRESSES_MAX) {
            self.inner.add_address(peer, address.clone());
        }
    }

    /// Removes a peer that is no DHT server any more, or must not be shared.
    pub fn remove(&mut self, peer: &PeerId) {
        self.inner.remove_peer(peer);
    }

    /// Remembers where a connected peer listens, for peers that look for providers.
    pub fn note_addresses(&mut self, peer: PeerId, addresses: &[Multiaddr]) {
        self.inner.store_mut().note(peer, addresses);
    }

    /// Announces this node under `key` to the peers closest to it.
    pub fn announce(&mut self, key: RecordKey) {
        if self.inner.start_providing(key).is_err() {
            // The store always has room for our own keys.
            metrics::counter!("starling_refused_total", "reason" => "announce").increment(1);
        }
    }

    /// Asks for the peers announced under `key`; answers come as [`Event::Providers`].
    pub fn look_up(&mut self, key: RecordKey) {
        self.inner.get_providers(key);
    }

    /// Looks for a peer's addresses; the answer comes as [`Event::Sought`].
    pub fn seek(&mut self, peer: PeerId) {
        self.inner.get_closest_peers(peer);
    }

    /// Peers in the routing table.
    pub fn table_len(&mut self) -> usize {
        self.inner.kbuckets().map(|bucket| bucket.num_entries()).sum()
    }

    /// The addresses of a peer, from the answers of running queries, the table and the store.
    fn addresses_of(&mut self, key: &RecordKey, peer: PeerId) -> Vec<Multiaddr> {
        let asked = self.inner.handle_pending_outbound_connection(
            ConnectionId::new_unchecked(0),
            Some(peer),
            &[],
            Endpoint::Dialer,
        );
        let mut found: Vec<Multiaddr> = asked.unwrap_or_default().iter().map(addresses::without_peer).collect();
        found.extend(self.inner.store_mut().addresses(key, &peer));
        addresses::sort_for_sharing(&mut found);
        found.dedup();
        found
    }

    /// The dial that the DHT asks for, with explicit addresses. Without them other behaviours would add theirs, QUIC's
    /// among them. All would be dialed at once, and QUIC, whose handshake is shorter, would win.
    fn by_tcp(&mut self, opts: DialOpts) -> DialOpts {
        let Some(peer) = opts.get_peer_id() else { return opts };
        let id = ConnectionId::new_unchecked(0);
        let known = self.inner.handle_pending_outbound_connection(id, Some(peer), &[], Endpoint::Dialer);
        match preferred(known.unwrap_or_default(), &self.gate) {
            known if known.is_empty() => opts,
            known => DialOpts::peer_id(peer).addresses(known).build(),
        }
    }

    /// The part of a DHT event that discovery needs.
    fn translate(&mut self, event: kad::Event) -> Option<Event> {
        let kad::Event::OutboundQueryProgressed { result, .. } = event else { return None };
        match result {
            QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { key, providers })) => {
                let peers = providers.into_iter().map(|peer| (peer, self.addresses_of(&key, peer))).collect();
                Some(Event::Providers { key, peers })
            }
            QueryResult::StartProviding(done) => {
                let key = match done {
                    Ok(done) => done.key,
                    Err(kad::AddProviderError::Timeout { key }) => key,
                };
                Some(Event::Announced { key })
            }
            QueryResult::GetClosestPeers(done) => {
                let (key, peers) = match done {
                    Ok(done) => (done.key, done.peers),
                    Err(kad::GetClosestPeersError::Timeout { key, peers }) => (key, peers),
                };
                let peer = PeerId::from_bytes(&key).ok()?;
                let told = peers.into_iter().filter(|told| told.peer_id == peer).flat_map(|told| told.addrs);
                let mut found: Vec<Multiaddr> = told.map(|address| addresses::without_peer(&address)).collect();
                addresses::sort_for_sharing(&mut found);
                found.dedup();
                Some(Event::Sought { peer, addresses: found })
            }
            _ => None,
        }
    }
}

/// Keeps the addresses that the gate allows, and only TCP ones if there are any: parallel dials race, and bulk data is
/// faster over TCP.
fn preferred(mut known: Vec<Multiaddr>, gate: &Gate) -> Vec<Multiaddr> {
    known.retain(|address| gate.allows(address));
    if known.iter().any(|a| addresses::route(a) == Some(Route::Tcp)) {
        known.retain(|a| addresses::route(a) == Some(Route::Tcp));
    }
    known
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = <kad::Behaviour<Rendezvous> as NetworkBehaviour>::ConnectionHandler;
    type ToSwarm = Event;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.inner.handle_pending_inbound_connection(id, local, remote)
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.inner.handle_established_inbound_connection(id, peer, local, remote)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: Option<PeerId>,
        known: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        let found = self.inner.handle_pending_outbound_connection(id, peer, known, role)?;
        Ok(preferred(found, &self.gate))
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port_use: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.inner.handle_established_outbound_connection(id, peer, address, role, port_use)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match &event {
            FromSwarm::ConnectionEstablished(met) => {
                self.inner.store_mut().came(met.peer_id, Source::of_connection(met.endpoint));
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, remaining_established: 0, .. }) => {
                self.inner.store_mut().gone(peer_id);
            }
            _ => {}
        }
        self.inner.on_swarm_event(event);
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, id: ConnectionId, event: THandlerOutEvent<Self>) {
        self.inner.on_connection_handler_event(peer, id, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        while let Poll::Ready(action) = self.inner.poll(cx) {
            match action {
                ToSwarm::Dial { opts } => return Poll::Ready(ToSwarm::Dial { opts: self.by_tcp(opts) }),
                ToSwarm::GenerateEvent(event) => {
                    if let Some(event) = self.translate(event) {
                        return Poll::Ready(ToSwarm::GenerateEvent(event));
                    }
                }
                other => {
                    // Events are handled above, so this conversion never sees one.
                    return Poll::Ready(other.map_out(|_| Event::Announced { key: RecordKey::new(&[]) }));
                }
            }
        }
        Poll::Pending
    }
}
