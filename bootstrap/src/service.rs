//! The well-known peer: it listens, remembers which peers announced which run, relays for peers that cannot be reached,
//! and trains nothing.

use crate::addresses::{self, AddressError, BootstrapList, ListError};
use crate::discovery::reason::Reason;
use crate::discovery::{Discovery, DiscoveryOptions, NetEvent, Origin};
use crate::identification::IDENTIFY_PROTOCOL;
use crate::identity::{self, IdentityError};
use crate::swarm::{self, StartError, SwarmOptions};
use crate::telemetry::{self, TelemetryError};
use futures::StreamExt;
use libp2p::{Multiaddr, PeerId};
use report::Report;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

mod options;
mod report;

pub use options::{BootstrapConfig, Flags, OptionsError};

/// Longer than a node's: nodes keep their bootstrap peers, and announce themselves once a minute.
const IDLE_TIMEOUT: Duration = Duration::from_secs(150);

/// The reason why the well-known peer stopped or did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("{flag}: {source}")]
    Address { flag: &'static str, source: AddressError },
    #[error("--advertise {address}: it ends in another node's id; leave /p2p/... away")]
    NotOurId { address: Multiaddr },
    #[error(transparent)]
    List(#[from] ListError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("there is no home folder to keep the key in: give --key FILE")]
    NoHome,
    #[error("none of the listening addresses works any more: {reason}")]
    Deaf { reason: String },
}

impl ServiceError {
    /// 2 for faults of the command or its files, 1 for the rest.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Address { .. } | Self::NotOurId { .. } | Self::List(_) => 2,
            Self::Telemetry(error) if error.is_usage() => 2,
            _ => 1,
        }
    }
}

/// Runs until `shutdown`. Events go to `out`, one line each.
pub async fn run(
    config: &BootstrapConfig,
    out: &mut dyn Write,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServiceError> {
    let listen = parse_all("--listen", &config.listen, addresses::parse_listen)?;
    let advertise = parse_all("--advertise", &config.advertise, addresses::parse)?;
    let bootstrap = BootstrapList::load_all(&config.bootstrap)?;
    let key: PathBuf = config.key.clone().or_else(options::default_key).ok_or(ServiceError::NoHome)?;
    let identity = identity::load_or_create(&key)?;
    for address in &advertise {
        if addresses::split(address).is_ok_and(|split| split.peer != identity.peer_id()) {
            return Err(ServiceError::NotOurId { address: address.clone() });
        }
    }
    let options = SwarmOptions {
        listen,
        advertise: advertise.clone(),
        mdns: config.mdns,
        relay_server: config.relay,
        agent: format!("starling-bootstrap/{}", env!("CARGO_PKG_VERSION")),
        idle_timeout: IDLE_TIMEOUT,
        ..SwarmOptions::default()
    };
    let metrics = telemetry::serve_metrics(&config.metrics)?;
    for gauge in ["starling_connected_peers", "starling_relay_reservations", "starling_relay_circuits"] {
        metrics::gauge!(gauge).set(0.0);
    }
    let mut swarm = swarm::build(&identity, &options)?;
    let mut report = Report::new(out, config.json);
    report.started(&identity.node_id(), &identity.peer_id());
    if let Some(address) = metrics {
        report.metrics(address);
    }
    for address in &advertise {
        report.listening(&addresses::with_peer(address, &identity.peer_id()), "advertised");
    }
    let seed = u64::from(std::process::id());
    let mut discovery = Discovery::new(&mut swarm, DiscoveryOptions { seed, ..DiscoveryOptions::default() });
    for peer in bootstrap.peers() {
        discovery.want_address(&mut swarm, peer, Origin::Configured);
    }
    discovery.tick(&mut swarm);

    let mut shutdown = std::pin::pin!(shutdown);
    let mut watch = Watch::default();
    loop {
        let wake = discovery.wake_at();
        let event = tokio::select! {
            biased;
            () = &mut shutdown => break,
            event = swarm.select_next_some() => discovery.on_event(&mut swarm, event),
            () = sleep_until(wake) => {
                discovery.tick(&mut swarm);
                None
            }
        };
        if let Some(event) = event {
            watch.note(event, &mut report)?;
        }
    }
    report.stopped();
    Ok(())
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn parse_all(
    flag: &'static str,
    list: &[String],
    parse: fn(&str) -> Result<Multiaddr, AddressError>,
) -> Result<Vec<Multiaddr>, ServiceError> {
    list.iter().map(|text| parse(text).map_err(|source| ServiceError::Address { flag, source })).collect()
}

/// The events so far, so that each is reported once.
#[derive(Default)]
struct Watch {
    listening: usize,
    agents: BTreeMap<PeerId, String>,
    failures: BTreeMap<PeerId, BTreeSet<&'static str>>,
}

impl Watch {
    fn note(&mut self, event: NetEvent, report: &mut Report<'_>) -> Result<(), ServiceError> {
        match event {
            NetEvent::Listening { address } => {
                self.listening += 1;
                report.listening(&address, "listening");
            }
            NetEvent::NotListening { address, reason } => {
                self.listening = self.listening.saturating_sub(1);
                tracing::warn!(%address, ?reason, "not listening any more");
                if self.listening == 0
                    && let Some(reason) = reason
                {
                    return Err(ServiceError::Deaf { reason });
                }
            }
            NetEvent::Reachable { address } => report.listening(&address, "reachable"),
            NetEvent::Connected { peer, address, first: true, .. } => {
                self.failures.remove(&peer);
                tracing::debug!(%peer, %address, "connected");
            }
            // A peer identifies itself again from time to time.
            NetEvent::Identified { peer, agent, .. } if !self.agents.contains_key(&peer) => {
                report.peer("connected", &peer, &agent);
                self.agents.insert(peer, agent);
            }
            NetEvent::Disconnected { peer, last: true, why, .. } if self.agents.contains_key(&peer) => {
                self.agents.remove(&peer);
                report.peer("disconnected", &peer, &why);
            }
            NetEvent::OtherVersion { peer, theirs } => {
                tracing::info!(%peer, %theirs, ours = IDENTIFY_PROTOCOL, "left alone: it speaks another protocol");
            }
            NetEvent::DialFailed { peer: Some(peer), failures } => self.dial_failed(peer, &failures),
            _ => {}
        }
        Ok(())
    }

    /// Reports each reason once until the peer has been here, not with every retry.
    fn dial_failed(&mut self, peer: PeerId, failures: &[(Option<Multiaddr>, Reason)]) {
        let Some((address, reason)) = failures.iter().rfind(|(_, reason)| *reason != Reason::Ourselves) else { return };
        if self.failures.len() >= FAILURES_MAX && !self.failures.contains_key(&peer) {
            return;
        }
        if self.failures.entry(peer).or_default().insert(reason.name()) {
            let address = address.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::info!(%peer, %address, "cannot reach: {reason}");
        }
    }
}

/// Peers whose last failure is remembered.
const FAILURES_MAX: usize = 1024;
