//! Strangers: programs that connect to nodes without being nodes, in bad faith and in numbers.

use anyhow::Context;
use clap::{Parser, ValueEnum};
use futures::future::poll_fn;
use libp2p::core::Endpoint;
use libp2p::core::muxing::{StreamMuxer, StreamMuxerBox};
use libp2p::core::transport::{DialOpts, PortUse};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId, Transport};
use starling_bootstrap::gate::Gate;
use starling_bootstrap::transport;
use starling_bootstrap::uplink::Uplink;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, timeout};

mod talk;
mod tally;

use tally::Tally;

/// The variable with the addresses of nodes and bootstrap peers: `IP:PORT`, separated by commas.
pub const PEERS: &str = "STARLING_LAB_PEERS";
/// The time in which a connection must be made.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of one burst of garbage.
const BURST: usize = 4 << 10;
/// Bursts on one connection: more bytes than any handshake has.
const BURSTS: usize = 256;

/// The behaviour of strangers on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// Connects and sends nothing.
    Silent,
    /// Sends random bytes instead of a handshake.
    Garbage,
    /// Does a handshake with a new key, and sends nothing after it.
    Handshake,
    /// Does a handshake, and sends a Hello and then Heads as fast as they are read.
    Talk,
    /// As `talk`, with signatures that do not hold.
    Forge,
}

/// Connect to nodes without being a node, for the lab's scenarios
#[derive(Debug, Parser)]
#[command(name = "starling-stranger")]
pub struct Request {
    /// Behaviour on each connection
    #[arg(long, value_enum)]
    way: Way,
    /// New connections a second, over all nodes in turn
    #[arg(long, default_value_t = 50)]
    rate: u32,
    /// Most connections at a time
    #[arg(long, default_value_t = 512)]
    most: usize,
    /// Seconds for which a connection is held open
    #[arg(long, default_value_t = 30)]
    hold: u64,
    /// Use QUIC; `silent` and `garbage` are for TCP only
    #[arg(long)]
    quic: bool,
    /// Addresses of the nodes: IP:PORT, separated by commas (default: the value of STARLING_LAB_PEERS)
    #[arg(long, value_delimiter = ',')]
    peers: Vec<SocketAddr>,
}

/// Floods the nodes until it is killed.
///
/// # Errors
/// If neither the request nor the variable has addresses.
pub async fn flood(mut request: Request) -> anyhow::Result<()> {
    if request.peers.is_empty() {
        let said = std::env::var(PEERS).with_context(|| format!("say --peers, or set {PEERS}"))?;
        let parsed: Result<_, _> = said.split(',').map(str::parse).collect();
        request.peers = parsed.with_context(|| format!("{PEERS} is {said:?}: IP:PORT, with commas between"))?;
    }
    let tally = Arc::new(Tally::default());
    let places = Arc::new(Semaphore::new(request.most));
    let mut turn = interval(Duration::from_secs(1) / request.rate.max(1));
    turn.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut told = interval(Duration::from_secs(1));
    let mut targets = request.peers.iter().copied().cycle();
    loop {
        tokio::select! {
            _ = told.tick() => tally.tell(request.most - places.available_permits()),
            _ = turn.tick() => {
                let (Ok(place), Some(target)) = (places.clone().try_acquire_owned(), targets.next()) else { continue };
                let (tally, way, hold) = (tally.clone(), request.way, Duration::from_secs(request.hold));
                let address = address(target, request.quic)?;
                tokio::spawn(async move {
                    tally.tried.fetch_add(1, Relaxed);
                    match way {
                        Way::Silent | Way::Garbage => plain(target, way == Way::Garbage, hold, &tally).await,
                        Way::Handshake => with_handshake(address, hold, &tally).await,
                        Way::Talk | Way::Forge => {
                            if let Err(error) = talk::talk(address, way == Way::Forge, hold, &tally).await {
                                eprintln!("{target}: {error:#}");
                                tally.closed.fetch_add(1, Relaxed);
                            }
                        }
                    }
                    drop(place);
                });
            }
        }
    }
}

/// Makes a connection without a handshake.
async fn plain(target: SocketAddr, garbage: bool, hold: Duration, tally: &Tally) {
    let Ok(Ok(mut stream)) = timeout(PATIENCE, TcpStream::connect(target)).await else {
        tally.failed.fetch_add(1, Relaxed);
        return;
    };
    tally.opened.fetch_add(1, Relaxed);
    let held = timeout(hold, async {
        for _ in 0..if garbage { BURSTS } else { 0 } {
            let burst: Vec<u8> = (0..BURST).map(|_| rand::random()).collect();
            if stream.write_all(&burst).await.is_err() {
                return;
            }
        }
        // The loop reads until the other side ends the connection.
        let mut waste = [0; 256];
        while stream.read(&mut waste).await.is_ok_and(|n| n > 0) {}
    });
    if held.await.is_ok() {
        tally.closed.fetch_add(1, Relaxed);
    }
}

/// Makes a connection as a node does, with a new key.
async fn with_handshake(address: Multiaddr, hold: Duration, tally: &Tally) {
    let Some(mut muxer) = shake_hands(address).await else {
        tally.failed.fetch_add(1, Relaxed);
        return;
    };
    tally.opened.fetch_add(1, Relaxed);
    let ended = poll_fn(|context| Pin::new(&mut muxer).poll(context).map(|event| event.is_err()));
    let held = timeout(hold, async {
        let mut ended = ended;
        while !(&mut ended).await {}
    });
    if held.await.is_ok() {
        tally.closed.fetch_add(1, Relaxed);
    }
}

fn address(target: SocketAddr, quic: bool) -> anyhow::Result<Multiaddr> {
    let (ip, port) = (target.ip(), target.port());
    let end = if quic { format!("udp/{port}/quic-v1") } else { format!("tcp/{port}") };
    let family = if ip.is_ipv4() { "ip4" } else { "ip6" };
    Ok(format!("/{family}/{ip}/{end}").parse()?)
}

async fn shake_hands(address: Multiaddr) -> Option<StreamMuxerBox> {
    let (mut transport, _) =
        transport::build(&Keypair::generate_ed25519(), Gate::default(), &Uplink::default()).ok()?;
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let dial = transport.dial(address, options).ok()?;
    let (_, muxer): (PeerId, StreamMuxerBox) = timeout(PATIENCE, dial).await.ok()?.ok()?;
    Some(muxer)
}
