//! The libp2p swarm of a Starling node: behaviours, limits, listening.
//!
//! Settings that differ from libp2p's defaults are in `docs/network.md`, *What strangers cannot do*: every count that a
//! stranger can drive up has a bound.

use crate::addresses;
use crate::gate::{self, Gate};
use crate::identification::IDENTIFY_PROTOCOL;
use crate::identity::Identity;
use crate::process::Process;
use crate::reach::Capped;
use crate::uplink::Uplink;
use crate::{crowd, dht, gossip, identification, streams, tls, transport};
use libp2p::core::upgrade::Version;
use libp2p::gossipsub::IdentTopic;
use libp2p::identity::Keypair;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::{NetworkBehaviour, Swarm};
use libp2p::{Multiaddr, autonat, dcutr, identify, mdns, ping, relay};
use libp2p_connection_limits::ConnectionLimits;
use std::num::NonZeroU8;
use std::time::Duration;

mod listen;

use listen::listen;

pub use listen::{ListenFailed, can_listen};

/// Handshakes that gave way count until their tasks have ended, and so do those from this machine, which the crowd does
/// not count.
const PENDING_IN_MAX: u32 = 2 * crowd::ARRIVING_MAX as u32;
const PENDING_OUT_MAX: u32 = 64;
/// The crowd gives the places, so that members have some in each direction. Connections that it has closed count until
/// they have ended.
const ESTABLISHED_IN_MAX: u32 = (crowd::PLACES_MAX + crowd::ARRIVING_MAX) as u32;
const ESTABLISHED_MAX: u32 = (crowd::CONNECTIONS_MAX + crowd::ARRIVING_MAX) as u32;
/// Two nodes may dial each other at once, and bulk data may have a connection of its own.
const PER_PEER_MAX: u32 = 4;
const NEGOTIATING_STREAMS_MAX: usize = 16;
const DIALS_AT_ONCE: NonZeroU8 = NonZeroU8::MIN.saturating_add(7);
const IDENTIFY_INTERVAL: Duration = Duration::from_secs(60);
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// The share of the machine's memory beyond which no more connections are accepted, if no limit in bytes is given.
const MEMORY_SHARE_MAX: f64 = 0.9;
const RELAY_RESERVATIONS_PER_PEER: usize = 2;
const RELAY_CIRCUITS_PER_PEER: usize = 4;
/// Pairs that are being connected at once. A circuit carries only what a hole punch needs, and ends.
const RELAY_CIRCUITS_MAX: usize = 64;

/// The settings of a swarm.
#[derive(Clone, Debug)]
pub struct SwarmOptions {
    /// Addresses to listen on; port 0 takes a free one.
    pub listen: Vec<Multiaddr>,
    /// Addresses at which peers reach this node although it does not listen there itself: forwarded ports, names.
    pub advertise: Vec<Multiaddr>,
    /// Look for peers on the local network.
    pub mdns: bool,
    /// Answer DHT questions of other peers. Off for nodes that no peer can reach.
    pub dht_server: bool,
    /// Relay for nodes that cannot be reached, and test the reachability of others.
    pub relay_server: bool,
    /// Name of the gossip topic; `None` switches gossip off.
    pub gossip: Option<String>,
    /// The name that this program gives itself towards other peers.
    pub agent: String,
    /// Tells this process from others with its key.
    pub process: Option<Process>,
    /// The time for which an idle connection stays open if it is not kept.
    pub idle_timeout: Duration,
    /// Resident bytes of this process beyond which no new connection is taken.
    pub memory_max_bytes: Option<usize>,
    /// Measures what the connections by TCP carry.
    pub uplink: Uplink,
}

impl Default for SwarmOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            advertise: Vec::new(),
            mdns: true,
            dht_server: true,
            relay_server: false,
            gossip: None,
            agent: format!("starling/{}", env!("CARGO_PKG_VERSION")),
            process: None,
            idle_timeout: Duration::from_secs(30),
            memory_max_bytes: None,
            uplink: Uplink::default(),
        }
    }
}

/// The reason why a swarm could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Transport(#[from] transport::TransportFailed),
    #[error("gossip could not be set up: {0}")]
    Gossip(String),
    #[error(transparent)]
    Listen(#[from] ListenFailed),
}

impl From<tls::Failed> for StartError {
    fn from(error: tls::Failed) -> Self {
        Self::Transport(error.into())
    }
}

/// All behaviours of a node. The first four deny connections, so they are asked first.
#[derive(NetworkBehaviour)]
pub struct Behaviour {
    pub crowd: crowd::Behaviour,
    pub limits: libp2p_connection_limits::Behaviour,
    pub memory: libp2p_memory_connection_limits::Behaviour,
    pub gate: gate::Behaviour,
    pub identify: identification::Behaviour,
    pub ping: ping::Behaviour,
    pub dht: dht::Behaviour,
    pub mdns: Toggle<mdns::tokio::Behaviour>,
    pub gossip: Toggle<gossip::Behaviour>,
    pub streams: streams::Behaviour,
    pub relay_client: relay::client::Behaviour,
    pub relay_server: Toggle<relay::Behaviour>,
    pub reach_client: Capped<autonat::v2::client::Behaviour>,
    pub reach_server: Toggle<autonat::v2::server::Behaviour>,
    pub dcutr: dcutr::Behaviour,
}

/// Builds the swarm and begins to listen. Must be called inside a tokio runtime.
pub fn build(identity: &Identity, options: &SwarmOptions) -> Result<Swarm<Behaviour>, StartError> {
    let gate = Gate::default();
    let keypair = identity.keypair();
    let (transport, relay_client) = transport::build(keypair, gate.clone(), &options.uplink)?;
    let behaviour = behaviour(keypair, options, gate.clone(), relay_client)?;
    let config = libp2p::swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(options.idle_timeout)
        .with_max_negotiating_inbound_streams(NEGOTIATING_STREAMS_MAX)
        .with_dial_concurrency_factor(DIALS_AT_ONCE)
        // The opener of a stream speaks first, so the name and the first message travel together.
        .with_substream_upgrade_protocol_override(Version::V1Lazy);
    let mut swarm = Swarm::new(transport, behaviour, identity.peer_id(), config);
    listen(&mut swarm, &gate, &options.listen)?;
    for address in &options.advertise {
        swarm.add_external_address(addresses::without_peer(address));
    }
    Ok(swarm)
}

fn behaviour(
    keypair: &Keypair,
    options: &SwarmOptions,
    gate: Gate,
    relay_client: relay::client::Behaviour,
) -> Result<Behaviour, StartError> {
    let local = keypair.public().to_peer_id();
    let topic = options.gossip.as_ref().map(IdentTopic::new);
    let gossip = topic
        .map(|topic| gossip::build(keypair, &topic, gate.doors().clone()))
        .transpose()
        .map_err(StartError::Gossip)?;
    let memory = match options.memory_max_bytes {
        Some(bytes) => libp2p_memory_connection_limits::Behaviour::with_max_bytes(bytes),
        None => libp2p_memory_connection_limits::Behaviour::with_max_percentage(MEMORY_SHARE_MAX),
    };
    Ok(Behaviour {
        crowd: crowd::Behaviour::new(gate.doors().clone()),
        limits: libp2p_connection_limits::Behaviour::new(connection_limits()),
        memory,
        gate: gate::Behaviour::new(gate.clone()),
        identify: identification::Behaviour::new(identify_config(keypair, &options.agent)),
        ping: ping::Behaviour::new(ping::Config::new().with_interval(PING_INTERVAL).with_timeout(PING_TIMEOUT)),
        dht: dht::Behaviour::new(local, options.dht_server, gate),
        mdns: options.mdns.then(|| start_mdns(keypair)).flatten().into(),
        gossip: gossip.into(),
        streams: streams::Behaviour::new(local, options.process),
        relay_client,
        relay_server: options.relay_server.then(|| relay::Behaviour::new(local, relay_config())).into(),
        reach_client: Capped::new(autonat::v2::client::Behaviour::default()),
        reach_server: options.relay_server.then(autonat::v2::server::Behaviour::default).into(),
        dcutr: dcutr::Behaviour::new(local),
    })
}

fn connection_limits() -> ConnectionLimits {
    ConnectionLimits::default()
        .with_max_pending_incoming(Some(PENDING_IN_MAX))
        .with_max_pending_outgoing(Some(PENDING_OUT_MAX))
        .with_max_established_incoming(Some(ESTABLISHED_IN_MAX))
        .with_max_established(Some(ESTABLISHED_MAX))
        .with_max_established_per_peer(Some(PER_PEER_MAX))
}

/// The cache of peers' addresses is off: discovery filters and bounds them, and dials from its own book.
fn identify_config(keypair: &Keypair, agent: &str) -> identify::Config {
    identify::Config::new(IDENTIFY_PROTOCOL.into(), keypair.public())
        .with_agent_version(crate::untrusted::printable(agent))
        .with_interval(IDENTIFY_INTERVAL)
        .with_push_listen_addr_updates(true)
        .with_cache_size(0)
}

fn relay_config() -> relay::Config {
    relay::Config {
        max_reservations_per_peer: RELAY_RESERVATIONS_PER_PEER,
        max_circuits_per_peer: RELAY_CIRCUITS_PER_PEER,
        max_circuits: RELAY_CIRCUITS_MAX,
        ..relay::Config::default()
    }
}

/// Containers often have no multicast; a node works without mDNS.
fn start_mdns(keypair: &Keypair) -> Option<mdns::tokio::Behaviour> {
    mdns::tokio::Behaviour::new(mdns::Config::default(), keypair.public().to_peer_id())
        .inspect_err(|error| {
            let why = starling_words::of(error);
            tracing::warn!("peers on the local network cannot be looked for: {why} (--no-mdns quiets this)");
        })
        .ok()
}
