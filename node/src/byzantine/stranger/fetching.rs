//! Fetch streams that are held open, answers that are not read, and the reading of the flock's true chain.

use super::story::Story;
use super::world::World;
use crate::net::NetHandle;
use crate::net::fetch::{self, Expect, FetchRequest, Patience, RECORDS_MAX, decode_records, decode_start};
use starling_protocol::message::Head;
use starling_protocol::state::Manifest;
use starling_protocol::{Digest, NodeId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;

/// Streams that one identity tries to have open to one node.
const STREAMS: usize = 8;
/// Pause between two requests on a stream that is to stay open.
const EVERY: Duration = Duration::from_secs(5);
/// Pause after a refused stream.
const PAUSE: Duration = Duration::from_millis(500);
/// Time for which an answer stays unread: until the server gives it up.
const UNREAD: Duration = Duration::from_secs(25);
/// The most records that are read of the flock.
const TRUTH_MAX: usize = 4096;
const STATE_BYTES_MAX: u64 = 1 << 20;
/// The most bytes that a flood takes of one answer.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// Holds streams to a node open, for as long as the identity lives.
pub fn hold(world: &Arc<World>, net: &NetHandle, peer: NodeId) {
    for _ in 0..STREAMS {
        let (world, net) = (world.clone(), net.clone());
        tokio::spawn(async move {
            while net.peers().contains(&peer) {
                if let Ok(mut stream) = net.open_fetch(peer).await {
                    world.tally.streams.fetch_add(1, Relaxed);
                    let asked = FetchRequest::Spec;
                    while fetch::request(&mut stream, &asked, Expect::of(&asked), Patience::default()).await.is_ok() {
                        sleep(EVERY).await;
                    }
                }
                sleep(PAUSE).await;
            }
        });
    }
}

/// Asks for the newest update again and again, and reads none.
pub fn leave_unread(world: &Arc<World>, net: &NetHandle, peer: NodeId) {
    for _ in 0..STREAMS {
        let (world, net) = (world.clone(), net.clone());
        tokio::spawn(async move {
            while net.peers().contains(&peer) {
                // Nodes serve an update only for a few rounds.
                let seq = world.newest().map_or(0, |newest| newest.seq);
                if let Ok(mut stream) = net.open_fetch(peer).await {
                    world.tally.streams.fetch_add(1, Relaxed);
                    let asked = stream.write_all(&FetchRequest::Update { seq }.encode()).await;
                    if asked.is_ok() && stream.flush().await.is_ok() && stream.read_u8().await.is_ok() {
                        sleep(UNREAD).await;
                    }
                }
                sleep(PAUSE).await;
            }
        });
    }
}

/// Sends requests that are costly to look up or to answer, on all streams at once, and again as soon as the answer has
/// come. Every second stream leaves when the answer begins, and is opened anew, so that the look-up was in vain.
pub fn flood(world: &Arc<World>, net: &NetHandle, peer: NodeId) {
    for stream in 0..STREAMS {
        let (world, net) = (world.clone(), net.clone());
        tokio::spawn(async move {
            let mut turn = stream;
            while net.peers().contains(&peer) {
                let Ok(mut io) = net.open_fetch(peer).await else {
                    sleep(PAUSE).await;
                    continue;
                };
                world.tally.streams.fetch_add(1, Relaxed);
                let asked = loop {
                    turn += 1;
                    let asked = dear(&world, turn);
                    if stream.is_multiple_of(2) {
                        break Some(asked);
                    }
                    match fetch::request(&mut io, &asked, Expect::AtMost(ANSWER_BYTES_MAX), Patience::default()).await {
                        Ok(_) => world.tally.answered.fetch_add(1, Relaxed),
                        // The node is busy or has no such thing: the next request follows on this stream.
                        Err(error) if error.stream_survives() => world.tally.refused.fetch_add(1, Relaxed),
                        // A broken stream takes no more requests.
                        Err(_) => break None,
                    };
                };
                let left = async {
                    let Some(asked) = asked else { return false };
                    let sent = io.write_all(&asked.encode()).await.is_ok() && io.flush().await.is_ok();
                    sent && io.read_u8().await.is_ok()
                };
                if left.await {
                    world.tally.answered.fetch_add(1, Relaxed);
                } else {
                    // The node has no place for a stream.
                    sleep(PAUSE).await;
                }
            }
        });
    }
}

/// A request that takes long to look up, or has a long answer, by turns.
fn dear(world: &World, turn: usize) -> FetchRequest {
    let seq = world.newest().map_or(0, |newest| newest.seq);
    match turn % 4 {
        0 => FetchRequest::Path { to: seq, known: Arc::default() },
        1 => FetchRequest::Update { seq },
        2 => FetchRequest::Records { from_seq: 0, max: RECORDS_MAX },
        _ => FetchRequest::Start { to: seq, known: Arc::default() },
    }
}

/// All records of a node, and its newest snapshot.
pub async fn truth(net: &NetHandle, peer: NodeId, head: Head) -> Option<Story> {
    let mut links = BTreeMap::new();
    while links.len() < TRUTH_MAX && !links.contains_key(&head.seq) {
        let from_seq = links.last_key_value().map_or(0, |(seq, _)| seq + 1);
        let request = FetchRequest::Records { from_seq, max: RECORDS_MAX };
        let expected = Expect::of(&request);
        let answer = decode_records(&net.fetch(peer, request, expected).await.ok()?).ok()?;
        let records = answer.into_iter().filter_map(|link| Some((number(&link.0)?, link)));
        let before = links.len();
        links.extend(records);
        if links.len() == before {
            break;
        }
    }
    let request = FetchRequest::Start { to: head.seq, known: Arc::default() };
    let expected = Expect::of(&request);
    let start = decode_start(&net.fetch(peer, request, expected).await.ok()?).ok()?;
    let snapshots = vec![(start.seq, start.manifest)];
    let mut chunks = BTreeMap::new();
    for digest in snapshots.iter().flat_map(|(_, manifest)| Manifest::decode(manifest).ok()).flat_map(|m| m.chunks) {
        chunks.insert(digest, chunk(net, peer, digest).await?);
    }
    Some(Story { links, snapshots, chunks, ..Story::of(head) })
}

async fn chunk(net: &NetHandle, peer: NodeId, digest: Digest) -> Option<Vec<u8>> {
    net.fetch(peer, FetchRequest::StateChunk(digest), Expect::AtMost(STATE_BYTES_MAX)).await.ok()
}

fn number(record: &[u8]) -> Option<u64> {
    starling_protocol::wire::decode_record(record).ok().map(|record| record.seq)
}
