//! Tries peers, and has them try this machine, for a person who wants to know before a node is started.
//!
//! Nothing here takes part in a run: a check has a key of its own, announces nothing, and ends.

use crate::addresses::{self, PeerAddress, Route};
use crate::discovery::reason::{self, Reason};
use crate::discovery::{Discovery, DiscoveryOptions, NetEvent};
use crate::gate::Gate;
use crate::identity::{Identity, IdentityError};
use crate::swarm::{self, BehaviourEvent, StartError, SwarmOptions};
use crate::transport::{self, TransportFailed};
use crate::uplink::Uplink;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt, join_all};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{DialOpts, PortUse, TransportError};
use libp2p::core::{Endpoint, Transport};
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, StreamProtocol, identify};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;
use tokio::time::Instant;

/// The protocol of peers that test whether others can be reached: autonat's, version 2.
const TESTS: StreamProtocol = StreamProtocol::new("/libp2p/autonat/2/dial-request");
/// The time after a failed test in which a test of another address may still succeed.
const SECOND_CHANCE: Duration = Duration::from_secs(3);

/// The reason why nothing could be tried.
#[derive(Debug, thiserror::Error)]
pub enum CheckupFailed {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Transport(#[from] TransportFailed),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// The answer of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The peer is there: the handshakes took so long.
    Here(Duration),
    Failed(Reason),
    /// The address leads through a relay, which only brings nodes together.
    NotTried,
}

/// Dials each address by itself, all at once, and waits for each at most `bound`. The answers are in the order of the
/// addresses. Must be called inside a tokio runtime.
pub async fn answers(list: &[PeerAddress], bound: Duration) -> Result<Vec<Answer>, CheckupFailed> {
    let identity = Identity::generate()?;
    let gate = Gate::default();
    let (mut transport, _relays) = transport::build(identity.keypair(), gate.clone(), &Uplink::default())?;
    let mut dials: Vec<BoxFuture<'_, Answer>> = Vec::with_capacity(list.len());
    for named in list {
        if addresses::route(&named.address) == Some(Route::Relayed) {
            dials.push(std::future::ready(Answer::NotTried).boxed());
            continue;
        }
        gate.permit(&named.address);
        let dial = transport.dial(named.full(), DialOpts { role: Endpoint::Dialer, port_use: PortUse::New });
        dials.push(answer(named, dial, bound).boxed());
    }
    Ok(join_all(dials).await)
}

async fn answer(
    named: &PeerAddress,
    dial: Result<impl Future<Output = io::Result<(PeerId, StreamMuxerBox)>>, TransportError<io::Error>>,
    bound: Duration,
) -> Answer {
    let started = Instant::now();
    let failed = |error| Answer::Failed(reason::of_transport(&named.address, &error));
    let dial = match dial {
        Ok(dial) => dial,
        Err(error) => return failed(error),
    };
    match tokio::time::timeout(bound, dial).await {
        Err(_) => Answer::Failed(Reason::TimedOut),
        Ok(Err(error)) => failed(TransportError::Other(error)),
        Ok(Ok((found, _))) if found == named.peer => Answer::Here(started.elapsed()),
        Ok(Ok((found, _))) => Answer::Failed(Reason::WrongPeer { found }),
    }
}

/// The words of peers about the way to this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outside {
    /// A peer has reached this machine at this address.
    Reached(Multiaddr),
    /// A peer has tried this address, and did not get through.
    Closed(Multiaddr),
    /// The peers that were met test nobody.
    NobodyTests,
    /// A peer that tests others was met, and there is no result yet.
    NoResult,
    /// No peer was met.
    NobodyMet,
}

/// A short visit to peers.
#[derive(Clone, Debug, Default)]
pub struct Visit {
    reached: Option<Multiaddr>,
    closed: Option<Multiaddr>,
    /// The peers that said what they are, each with whether it tests others.
    met: BTreeMap<PeerId, bool>,
    /// The peers that cannot be dialed.
    failed: BTreeSet<PeerId>,
    /// Peers that speak another version of the network protocols, with the words for it.
    pub strangers: BTreeMap<PeerId, Reason>,
}

impl Visit {
    pub fn outside(&self) -> Outside {
        match (&self.reached, &self.closed) {
            (Some(address), _) => Outside::Reached(address.clone()),
            (None, Some(address)) => Outside::Closed(address.clone()),
            _ if self.met.is_empty() => Outside::NobodyMet,
            _ if self.met.values().any(|tests| *tests) => Outside::NoResult,
            _ => Outside::NobodyTests,
        }
    }

    /// Whether nothing more can come of it.
    fn is_over(&self, wanted: &BTreeSet<PeerId>) -> bool {
        let is_done = |peer: &PeerId| {
            let tests = self.met.get(peer);
            self.failed.contains(peer) || self.strangers.contains_key(peer) || tests == Some(&false)
        };
        self.reached.is_some() || wanted.iter().all(is_done)
    }

    /// Notes what discovery tells nobody. Returns whether a test has failed.
    fn look(&mut self, event: &SwarmEvent<BehaviourEvent>) -> bool {
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. })) => {
                self.met.insert(*peer_id, info.protocols.contains(&TESTS));
                false
            }
            SwarmEvent::Behaviour(BehaviourEvent::ReachClient(event)) if event.result.is_err() => {
                self.closed.get_or_insert_with(|| event.tested_addr.clone());
                true
            }
            _ => false,
        }
    }

    fn note(&mut self, event: NetEvent) {
        match event {
            NetEvent::Reachable { address } => self.reached = Some(address),
            NetEvent::Connected { peer, .. } => drop(self.failed.remove(&peer)),
            NetEvent::DialFailed { peer: Some(peer), .. } => drop(self.failed.insert(peer)),
            NetEvent::OtherVersion { peer, theirs } => {
                self.met.remove(&peer);
                self.strangers.insert(peer, Reason::OtherVersion(theirs));
            }
            _ => {}
        }
    }
}

/// Listens, meets these peers, and waits at most `bound` until one of them has tried to reach this machine. Must be
/// called inside a tokio runtime.
pub async fn visit(listen: Vec<Multiaddr>, peers: &[PeerAddress], bound: Duration) -> Result<Visit, CheckupFailed> {
    let options = SwarmOptions { listen, mdns: false, dht_server: false, ..SwarmOptions::default() };
    let mut swarm = swarm::build(&Identity::generate()?, &options)?;
    let options = DiscoveryOptions { bootstrap: peers.to_vec(), ..DiscoveryOptions::default() };
    let mut discovery = Discovery::new(&mut swarm, options);
    let wanted: BTreeSet<PeerId> = peers.iter().map(|named| named.peer).collect();
    let mut visit = Visit::default();
    let mut end = Instant::now() + bound;
    discovery.tick(&mut swarm);
    while !visit.is_over(&wanted) {
        // Without a deadline of discovery's own the next event or the end comes first.
        let wake = discovery.wake_at().unwrap_or(end);
        tokio::select! {
            event = swarm.select_next_some() => {
                if visit.look(&event) {
                    end = end.min(Instant::now() + SECOND_CHANCE);
                }
                if let Some(told) = discovery.on_event(&mut swarm, event) {
                    visit.note(told);
                }
            }
            () = tokio::time::sleep_until(end) => break,
            () = tokio::time::sleep_until(wake) => discovery.tick(&mut swarm),
        }
    }
    Ok(visit)
}
