//! Finds the flock, and keeps in touch with it.
//!
//! [`Discovery`] sits between the swarm and its owner. The owner hands it every swarm event, calls it again at
//! [`Discovery::wake_at`], and gets a few plain [`NetEvent`]s back. Discovery feeds identified peers to the DHT,
//! announces the node under its run's key, looks for the run's other nodes, and judges every learned address. Its
//! [`dialer::Dialer`] decides which peers to dial.

use crate::addresses::{self, PeerAddress, Route, Scope};
use crate::dht;
use crate::doors::Doors;
use crate::gate::Gate;
use crate::swarm::{Behaviour, BehaviourEvent};
use dialer::{Contacts, Dialer, Trouble, Wish};
use libp2p::gossipsub::{IdentTopic, MessageAcceptance, MessageId, PublishError};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm};
use observed::Observed;
use places::Places;
use relays::Relays;
use rendezvous::{Rendezvous, Step};
use seeker::Seeker;
use starling_protocol::Digest;
use starling_protocol::engine::io::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use ways::Ways;

mod backoff;
pub mod book;
pub mod dialer;
mod event;
mod intake;
mod observed;
mod places;
pub mod reason;
mod relays;
mod rendezvous;
mod seeker;
mod ways;

pub use book::Origin;
pub use event::NetEvent;

/// Pings that time out in a row before the connection is given up.
const LOST_PINGS_MAX: u32 = 2;
/// Addresses of one peer in an answer.
const TOLD_MAX: usize = 8;
/// The time for which a peer that speaks another protocol or version is left alone.
const STRANGER_REST: Duration = Duration::from_secs(60);

/// The options of discovery.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryOptions {
    /// The run whose nodes are looked for; `None` for a peer that belongs to none.
    pub run: Option<Digest>,
    /// The first peers to dial.
    pub bootstrap: Vec<PeerAddress>,
    /// Name of the gossip topic that the swarm was built with.
    pub gossip: Option<String>,
    /// Looks for the run's nodes without an announcement of its own: no peer could dial it.
    pub hidden: bool,
    /// Varies the jitter of retries.
    pub seed: u64,
}

/// See the module's documentation.
pub struct Discovery {
    me: PeerId,
    gate: Gate,
    started: Instant,
    dialer: Dialer,
    rendezvous: Rendezvous,
    seeker: Seeker,
    observed: Observed,
    relays: Relays,
    ways: Ways,
    places: Places,
    topic: Option<IdentTopic>,
    /// Pings in a row that each connection did not answer.
    lost_pings: BTreeMap<ConnectionId, u32>,
    /// Connected peers that were found under the run's key.
    companions: BTreeSet<PeerId>,
    /// Direct addresses of this node: whoever names them as a peer's, a dial would lead here.
    own: BTreeSet<Multiaddr>,
}

impl Discovery {
    /// Creates it for a swarm that was built by [`crate::swarm::build`]. Dials nothing yet: call [`Discovery::tick`].
    pub fn new(swarm: &mut Swarm<Behaviour>, options: DiscoveryOptions) -> Self {
        let me = *swarm.local_peer_id();
        let mut discovery = Self {
            me,
            gate: swarm.behaviour().gate.gate().clone(),
            started: Instant::now(),
            dialer: Dialer::new(me, options.seed, Time(0)),
            rendezvous: Rendezvous::new(options.run.as_ref().map(dht::run_key)).hidden(options.hidden),
            seeker: Seeker::new(me),
            observed: Observed::default(),
            relays: Relays::default(),
            ways: Ways::default(),
            places: Places::default(),
            topic: options.gossip.map(IdentTopic::new),
            lost_pings: BTreeMap::new(),
            companions: BTreeSet::new(),
            own: BTreeSet::new(),
        };
        if swarm.external_addresses().next().is_some() || options.hidden {
            // The user says that this node is reachable there, or nobody is to reach it.
            discovery.relays.reached();
        }
        for peer in options.bootstrap {
            discovery.want_address(swarm, &peer, Origin::Configured);
        }
        discovery
    }

    /// Adds a peer that the user named.
    pub fn want_address(&mut self, swarm: &mut Swarm<Behaviour>, peer: &PeerAddress, origin: Origin) {
        let now = self.now();
        self.gate.permit(&peer.address);
        self.dialer.learn(peer.peer, std::slice::from_ref(&peer.address), origin, None, now);
        swarm.behaviour_mut().crowd.name(peer.peer);
        if peer.peer != self.me {
            swarm.behaviour_mut().gate.keep(peer.peer, true);
        }
    }

    /// Keeps the peer connected from now on; `list` may be empty when it is known already. The addresses are judged
    /// like those told by a peer elsewhere, unless `origin` is the user's.
    pub fn want(&mut self, swarm: &mut Swarm<Behaviour>, peer: PeerId, list: &[Multiaddr], origin: Origin) {
        let now = self.now();
        let local = matches!(origin, Origin::Configured | Origin::Ticket) || self.gate.all_local();
        self.accept(peer, list, origin, None, local);
        self.dialer.wish(peer, Wish::Wanted, now);
        if peer != self.me {
            swarm.behaviour_mut().gate.keep(peer, true);
        }
        if self.ways.has_direct(&peer) {
            self.dialer.connected(peer, None, now);
        }
    }

    /// The peer is no longer needed: its connections close when idle.
    pub fn unwant(&mut self, swarm: &mut Swarm<Behaviour>, peer: PeerId) {
        self.dialer.unwish(&peer);
        if self.dialer.wish_of(&peer) != Some(Wish::Anchor) {
            swarm.behaviour_mut().gate.keep(peer, false);
        }
    }

    /// Learns addresses of `peer` that `via` told, for example by gossip. Returns how many were taken.
    pub fn learn(&mut self, via: PeerId, peer: PeerId, list: &[Multiaddr], origin: Origin) -> usize {
        let via_is_local = self.gate.is_local_peer(&via);
        self.accept(peer, list, origin, Some(via), via_is_local)
    }

    /// Stops dials to the peer and new connections from it for `time`. Open ones stay until [`Discovery::disconnect`].
    pub fn exclude(&mut self, swarm: &mut Swarm<Behaviour>, peer: PeerId, time: Duration) {
        let until = dialer::after(self.now(), time);
        // The dialer has forgotten the pardoned peer, so its time would never end, and the gate would refuse it until
        // the node ends.
        if let Some(pardoned) = self.dialer.exclude(peer, until) {
            swarm.behaviour_mut().gate.exclude(pardoned, false);
        }
        swarm.behaviour_mut().gate.exclude(peer, true);
    }

    /// Whether the peer is excluded now.
    pub fn excludes(&self, peer: &PeerId) -> bool {
        self.dialer.is_excluded(peer, self.now())
    }

    /// Closes all connections with the peer.
    pub fn disconnect(&mut self, swarm: &mut Swarm<Behaviour>, peer: PeerId) {
        if swarm.is_connected(&peer) {
            // The peer may have gone in between, which is fine.
            let _ = swarm.disconnect_peer_id(peer);
        }
    }

    /// From now on these peers always get a place and are dialed first, like those that the user named. Other peers are
    /// strangers, which share their places.
    pub fn set_known(&mut self, swarm: &mut Swarm<Behaviour>, peers: BTreeSet<PeerId>) {
        self.dialer.set_known(peers.clone());
        swarm.behaviour_mut().crowd.set_known(peers);
    }

    /// In a flock that is too large for connections between all: from now on these members are kept connected, and
    /// those of them that no known address leads to are looked up by their ids. Other members are not dialed. `None`:
    /// every peer is dialed that is wanted or found. Returns the former contacts that are none any more: call
    /// [`Discovery::unwant`] unless they are wanted for another reason.
    pub fn set_contacts(&mut self, swarm: &mut Swarm<Behaviour>, contacts: Option<Contacts>) -> BTreeSet<PeerId> {
        let now = self.now();
        let near = contacts.as_ref().map(|contacts| contacts.near.clone()).unwrap_or_default();
        let former = self.dialer.set_contacts(contacts, now);
        for peer in near.into_iter().filter(|peer| *peer != self.me) {
            swarm.behaviour_mut().gate.keep(peer, true);
            if self.ways.has_direct(&peer) {
                self.dialer.connected(peer, None, now);
            }
        }
        former
    }

    /// The records of addresses that connections come from.
    pub fn doors(&self) -> &Doors {
        self.gate.doors()
    }

    /// Publishes on the run's gossip.
    pub fn publish(&mut self, swarm: &mut Swarm<Behaviour>, data: Vec<u8>) -> Result<(), PublishError> {
        let (Some(topic), Some(gossip)) = (&self.topic, swarm.behaviour_mut().gossip.as_mut()) else {
            return Err(PublishError::NoPeersSubscribedToTopic);
        };
        gossip.inner_mut().publish(topic.hash(), data).map(drop)
    }

    /// Lets a gossip message pass on, drops it, or drops it and counts it against `from`.
    pub fn judge(&mut self, swarm: &mut Swarm<Behaviour>, id: &MessageId, from: &PeerId, verdict: MessageAcceptance) {
        if let Some(gossip) = swarm.behaviour_mut().gossip.as_mut() {
            gossip.inner_mut().report_message_validation_result(id, from, verdict);
        }
    }

    /// The addresses at which peers may reach this node, best first, each ending in `/p2p/PEER`: those that it listens
    /// on, those given with `--advertise`, and those at which others saw it. If a place on a relay is held, that
    /// replaces the last.
    pub fn addresses(&self, swarm: &Swarm<Behaviour>) -> Vec<Multiaddr> {
        let listened = swarm.listeners().cloned();
        let seen = self.observed.trusted().filter(|_| !self.relays.has_place());
        let outside = swarm.external_addresses().cloned().chain(seen);
        let all: BTreeSet<Multiaddr> = listened.chain(outside).map(|a| addresses::without_peer(&a)).collect();
        let mut list: Vec<Multiaddr> = all.into_iter().filter(is_worth_telling).collect();
        addresses::sort_for_sharing(&mut list);
        list.iter().map(|a| addresses::with_peer(a, &self.me)).collect()
    }

    /// Peers that should be connected and are not, with the reasons: for status and logs.
    pub fn troubles(&self) -> Vec<Trouble> {
        self.dialer.troubles(self.now())
    }

    /// Addresses at which those of these peers that are connected can be dialed, each one's best first.
    pub fn ways_to(&self, swarm: &Swarm<Behaviour>, peers: BTreeSet<PeerId>) -> Vec<PeerAddress> {
        let here = peers.into_iter().filter(|peer| swarm.is_connected(peer));
        let ways = |peer: PeerId| {
            let known = self.dialer.book().candidates(&peer, &[], TOLD_MAX);
            known.into_iter().map(move |address| PeerAddress { peer, address })
        };
        here.flat_map(ways).collect()
    }

    /// The time to call [`Discovery::tick`], if no event comes before.
    pub fn wake_at(&self) -> Option<Instant> {
        let seek = self.dialer.has_contacts().then(|| self.seeker.wake_at());
        let sources =
            [self.dialer.wake_at(), self.rendezvous.wake_at(), self.relays.wake_at(), self.ways.wake_at(), seek];
        let next = sources.into_iter().flatten().min()?;
        Some(self.started + Duration::from_micros(next.0))
    }

    /// Does all that is due: dials, announcements, lookups, places on relays.
    pub fn tick(&mut self, swarm: &mut Swarm<Behaviour>) {
        let now = self.now();
        for peer in self.dialer.pardon(now) {
            swarm.behaviour_mut().gate.exclude(peer, false);
        }
        let lonely = self.companions.is_empty();
        for step in self.rendezvous.poll(now, lonely) {
            match step {
                Step::Announce(key) => swarm.behaviour_mut().dht.announce(key),
                Step::LookUp(key) => swarm.behaviour_mut().dht.look_up(key),
            }
        }
        if self.dialer.has_contacts() && self.seeker.is_due(now) {
            for peer in self.seeker.poll(&self.dialer.away(), now) {
                metrics::counter!("starling_peer_look_ups_total").increment(1);
                swarm.behaviour_mut().dht.seek(peer);
            }
        }
        self.seek_places(swarm, now);
        for connection in self.ways.overdue(now) {
            swarm.close_connection(connection);
        }
        for dial in self.dialer.poll(now) {
            // The DHT also dials, as often as it asks a peer, and knows no relays.
            let condition = match dial.addresses.iter().any(|a| addresses::route(a) == Some(Route::Relayed)) {
                true => PeerCondition::Disconnected,
                false => PeerCondition::DisconnectedAndNotDialing,
            };
            let options = DialOpts::peer_id(dial.peer).condition(condition).addresses(dial.addresses).build();
            if let Err(error) = swarm.dial(options) {
                // A dial of the DHT's own may be under way: its end is reported too.
                let reasons = reason::of_dial(&error);
                self.dialer.failed(&dial.peer, &reasons, now);
            }
        }
    }

    /// Asks for places on relays while no peer can reach this node, and gives them back when one can.
    fn seek_places(&mut self, swarm: &mut Swarm<Behaviour>, now: Time) {
        for (relay, address) in self.relays.wanted(now) {
            tracing::info!(%address, "this node cannot be reached directly: it asks for a place on a relay");
            let place = swarm.listen_on(address).inspect_err(|error| {
                tracing::warn!("the relay cannot be used: {}", starling_words::plain(&error.to_string()));
            });
            self.relays.asked(&relay, place.ok(), now);
        }
        for relay in self.relays.needless() {
            // The place goes with the connection. A listener must not be removed by itself: libp2p-relay 0.22 panics
            // when the relay's answer to a first or a repeated request comes after that (`priv_client.rs`, "Relay
            // connection exist"), and the relay chooses when it answers.
            let _ = swarm.disconnect_peer_id(relay);
        }
    }

    /// Takes in one swarm event. The owner must pass every event here.
    pub fn on_event(&mut self, swarm: &mut Swarm<Behaviour>, event: SwarmEvent<BehaviourEvent>) -> Option<NetEvent> {
        let told = self.take_in(swarm, event);
        self.tick(swarm);
        told
    }

    /// Judges addresses, informs the gate, and hands them to the dialer.
    fn accept(
        &mut self,
        peer: PeerId,
        list: &[Multiaddr],
        origin: Origin,
        teller: Option<PeerId>,
        teller_is_local: bool,
    ) -> usize {
        let now = self.now();
        let fit: Vec<Multiaddr> = list
            .iter()
            .take(book::ADDRESSES_MAX)
            .filter(|a| addresses::may_be_learned(a, teller_is_local))
            .map(addresses::without_peer)
            .filter(|a| !self.own.contains(a))
            .collect();
        let unfit = list.len() - fit.len();
        if unfit > 0 {
            metrics::counter!("starling_refused_total", "reason" => "address_unfit").increment(unfit as u64);
        }
        let taken = self.dialer.learn(peer, &fit, origin, teller, now);
        if taken > 0 {
            for address in &fit {
                match origin.is_given() {
                    true => self.gate.permit(address),
                    false => self.gate.permit_learned(address),
                }
            }
        }
        taken
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}

/// Link-local and unspecified addresses mean nothing to others.
fn is_worth_telling(address: &Multiaddr) -> bool {
    !matches!(addresses::scope(address), Scope::LinkLocal | Scope::Unusable) && addresses::route(address).is_some()
}
