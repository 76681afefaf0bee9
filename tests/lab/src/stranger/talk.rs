//! Strangers that speak the nodes' protocols: they do a handshake, send a Hello, and then flood the node with Heads.

use super::tally::Tally;
use anyhow::{Context, bail};
use futures::StreamExt;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, StreamProtocol};
use starling_bootstrap::identity::{self, Identity};
use starling_bootstrap::process::Process;
use starling_bootstrap::streams::{Control, IncomingStreams, Lane};
use starling_bootstrap::swarm::{self, SwarmOptions};
use starling_protocol::limits::{PROTOCOL_VERSION, RUN_SPEC_BYTES_MAX};
use starling_protocol::message::{Head, Hello, Message, Phase, Pulse};
use starling_protocol::{Digest, wire};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::compat::FuturesAsyncReadCompatExt;

/// A request for the run's settings (`node/net/src/fetch/wire.rs`), and the number of bytes before the answer's
/// content.
const ASK_SPEC: [u8; 4] = *b"SF\x02\x01";
const ANSWER_HEAD: usize = 12;
/// Number of different messages that are sent in turn.
const MESSAGES: u64 = 16;

/// Talks for the time `hold`, with one key.
pub async fn talk(address: Multiaddr, forged: bool, hold: Duration, tally: &Tally) -> anyhow::Result<()> {
    let identity = Identity::generate()?;
    let process = Some(Process(rand::random::<u64>().max(1)));
    let options = SwarmOptions { mdns: false, dht_server: false, process, ..SwarmOptions::default() };
    let mut swarm = swarm::build(&identity, &options)?;
    let control = swarm.behaviour().streams.control();
    let incoming = control.accept(named("ctl")?, 4)?;
    swarm.behaviour().gate.gate().permit(&address);
    swarm.dial(address)?;
    let (met, meeting) = oneshot::channel();
    let driving = async {
        let mut met = Some(met);
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::ConnectionEstablished { peer_id, .. } => {
                    let _ = met.take().map(|met| met.send(peer_id));
                }
                SwarmEvent::ConnectionClosed { num_established: 0, .. } => bail!("the connection ended"),
                SwarmEvent::OutgoingConnectionError { error, .. } => bail!("{error}"),
                _ => {}
            }
        }
    };
    let talking = async {
        let peer = meeting.await?;
        tally.opened.fetch_add(1, Relaxed);
        say_on(&identity, &control, incoming, peer, forged, tally).await
    };
    tokio::select! {
        ended = driving => ended,
        ended = timeout(hold, talking) => ended.unwrap_or(Ok(())),
    }
}

fn named(what: &str) -> anyhow::Result<StreamProtocol> {
    Ok(StreamProtocol::try_from_owned(format!("/starling/{what}/{PROTOCOL_VERSION}"))?)
}

async fn say_on(
    identity: &Identity,
    control: &Control,
    mut incoming: IncomingStreams,
    peer: PeerId,
    forged: bool,
    tally: &Tally,
) -> anyhow::Result<()> {
    let spec = spec_of(control, peer).await?;
    let them = identity::node_id(&peer).context("a node")?;
    let stream = if identity.node_id() < them {
        let mut stream = control.open(peer, named("ctl")?, Lane::First, None).await?.compat();
        stream.write_all(b"SCTL").await?;
        stream.write_all(&PROTOCOL_VERSION.to_le_bytes()).await?;
        stream.write_all(&[0; 2]).await?;
        stream.flush().await?;
        stream.read_u8().await?;
        stream
    } else {
        let mut stream = incoming.next().await.context("no control stream")?.stream.compat();
        stream.read_exact(&mut [0; 8]).await?;
        stream.write_u8(1).await?;
        stream
    };
    let (reader, writer) = tokio::io::split(stream);
    tokio::select! {
        ended = hear_out(reader) => ended,
        ended = say(writer, identity, spec, forged, tally) => ended,
    }
}

async fn spec_of(control: &Control, peer: PeerId) -> anyhow::Result<Vec<u8>> {
    let mut stream = control.open(peer, named("fetch")?, Lane::First, None).await?.compat();
    stream.write_all(&ASK_SPEC).await?;
    stream.flush().await?;
    let mut head = [0; ANSWER_HEAD];
    stream.read_exact(&mut head).await?;
    let mut spec = Vec::new();
    let length = u64::from(u32::from_le_bytes([head[4], head[5], head[6], head[7]])).min(RUN_SPEC_BYTES_MAX as u64);
    stream.take(length).read_to_end(&mut spec).await?;
    Ok(spec)
}

/// Reads and drops all messages: the node would end a session whose messages are not read.
async fn hear_out(mut reader: impl AsyncRead + Unpin) -> anyhow::Result<()> {
    let mut waste = vec![0; 16 << 10];
    while reader.read(&mut waste).await? > 0 {}
    bail!("the control stream ended")
}

async fn say(
    mut writer: impl AsyncWrite + Unpin,
    identity: &Identity,
    spec: Vec<u8>,
    forged: bool,
    tally: &Tally,
) -> anyhow::Result<()> {
    let (run, signer, boot) = (wire::spec_digest(&spec), identity.signer(), rand::random());
    let hello = Hello { version: PROTOCOL_VERSION, spec, boot, incarnation: boot };
    let mut messages = vec![wire::seal(&signer, &run, &Message::Hello(hello))?];
    for progress in 0..MESSAGES {
        let (lineage, record) = (Digest::default(), Digest::default());
        let head = Head {
            lineage,
            seq: 0,
            record,
            tokens: 0,
            phase: Phase::Joining,
            progress,
            awaits: None,
            pulse: Pulse::default(),
        };
        messages.push(wire::seal(&signer, &run, &Message::Head(head))?);
    }
    if forged {
        messages.iter_mut().filter_map(|message| message.last_mut()).for_each(|byte| *byte ^= 1);
    }
    let (hello, heads) = messages.split_first().context("a Hello")?;
    for message in std::iter::once(hello).chain(heads.iter().cycle()) {
        writer.write_u32_le(message.len() as u32).await?;
        writer.write_all(message).await?;
        writer.flush().await?;
        tally.said.fetch_add(1, Relaxed);
        // One thread runs all strangers.
        tokio::task::yield_now().await;
    }
    Ok(())
}
