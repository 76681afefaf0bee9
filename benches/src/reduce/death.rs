//! Deaths: the bytes that the others send again after a member has died in the middle of a reduction. All members are
//! in this process, joined by pipes through which the bench looks at frames.

use super::worker::{EQUAL, offered};
use anyhow::{Context, Result, bail, ensure};
use futures::future::{BoxFuture, join_all};
use starling_benches::way::Way;
use starling_node::net::BulkStream;
use starling_node::reduce::{
    BulkLinks, BulkRouter, Feedback, OwnersReducer, Parts, ReduceEngine, ReduceError, ReduceJob, RingReducer,
    RouterError, Sums,
};
use starling_protocol::engine::io::{AttemptKey, Contribution};
use starling_protocol::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind};
use starling_protocol::run::EngineKind;
use starling_protocol::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;

/// Bytes of a pipe's buffer.
const ROOM: usize = 1 << 16;
/// Bytes of an opening, and of a word's header; the first two bytes of a word.
const OPENING_BYTES: usize = 116;
const WORD_HEADER_BYTES: usize = 8;
const WORD_MAGIC: [u8; 2] = [0x58, 0x53];
/// An attempt that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Notes of everything that has left.
#[derive(Default)]
struct Log {
    /// Bytes of frames by attempt, kind, chunk and member: the sender of a part or partial sum, the receiver of a sum.
    frames: BTreeMap<(u32, u8, u32, NodeId), usize>,
    /// Bytes of each attempt.
    bytes: BTreeMap<u32, usize>,
    /// Bytes of each attempt that are no frames.
    beside: BTreeMap<u32, usize>,
}

impl Log {
    /// Bytes of attempt 1 that had left in attempt 0 as well, and all that are no frames.
    fn again(&self) -> usize {
        let first = self.frames.keys().filter(|key| key.0 == 0);
        let first: BTreeSet<_> = first.map(|key| (key.1, key.2, key.3)).collect();
        let again = self.frames.iter().filter(|(key, _)| key.0 == 1 && first.contains(&(key.1, key.2, key.3)));
        again.map(|(_, bytes)| bytes).sum::<usize>() + self.beside.get(&1).copied().unwrap_or(0)
    }
}

/// The moment of a death, by the bytes that the member has sent.
struct Kill {
    after: usize,
    sent: AtomicUsize,
    now: Notify,
}

/// The links of one member.
#[derive(Clone)]
struct Pipes {
    me: NodeId,
    routers: Arc<BTreeMap<NodeId, BulkRouter>>,
    log: Arc<Mutex<Log>>,
    kill: Option<Arc<Kill>>,
}

impl BulkLinks for Pipes {
    fn open(&self, to: NodeId) -> BoxFuture<'static, io::Result<BulkStream>> {
        let Some(router) = self.routers.get(&to) else {
            return Box::pin(async { Err(io::ErrorKind::NotConnected.into()) });
        };
        let (near, far) = tokio::io::duplex(ROOM);
        let (relayed, out) = tokio::io::duplex(ROOM);
        let probe = Probe { log: Arc::clone(&self.log), from: self.me, to, attempt: None, open: Vec::new() };
        tokio::spawn(relay(far, relayed, probe, self.kill.clone()));
        router.route(self.me, BulkStream::new(out));
        Box::pin(async move { Ok(BulkStream::new(near)) })
    }

    fn accept(&self, key: AttemptKey, from: NodeId) -> BoxFuture<'static, Result<BulkStream, RouterError>> {
        let router = self.routers.get(&self.me).cloned();
        Box::pin(async move {
            match router {
                Some(router) => router.accept(key, from).await,
                None => std::future::pending().await,
            }
        })
    }

    fn leave(&self, key: AttemptKey) {
        if let Some(router) = self.routers.get(&self.me) {
            router.leave(key);
        }
    }
}

/// Carries bytes both ways until one way ends, or the member dies that opened the stream.
async fn relay(from: DuplexStream, to: DuplexStream, mut probe: Probe, kill: Option<Arc<Kill>>) {
    let (mut from_read, mut from_write) = tokio::io::split(from);
    let (mut to_read, mut to_write) = tokio::io::split(to);
    let forward = async {
        let mut buffer = vec![0; 1 << 14];
        while let Ok(len @ 1..) = from_read.read(&mut buffer).await {
            let dies = |kill: &Arc<Kill>| kill.sent.fetch_add(len, Ordering::SeqCst) + len >= kill.after;
            if let Some(kill) = kill.as_ref().filter(|kill| dies(kill)) {
                kill.now.notify_one();
                return;
            }
            probe.see(&buffer[..len]);
            if to_write.write_all(&buffer[..len]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = forward => {}
        _ = tokio::io::copy(&mut to_read, &mut from_write) => {}
    }
}

/// A look at one stream.
struct Probe {
    log: Arc<Mutex<Log>>,
    from: NodeId,
    to: NodeId,
    /// None before the opening has passed.
    attempt: Option<u32>,
    /// Bytes of what has not passed whole.
    open: Vec<u8>,
}

impl Probe {
    fn see(&mut self, bytes: &[u8]) {
        self.open.extend_from_slice(bytes);
        while let Some(length) = self.note() {
            self.open.drain(..length);
        }
    }

    /// Notes the first thing that has passed whole; returns its length.
    fn note(&mut self) -> Option<usize> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(attempt) = self.attempt else {
            let opening = self.open.get(..OPENING_BYTES)?;
            let attempt = u32::from_le_bytes(*opening.last_chunk()?);
            self.attempt = Some(attempt);
            *log.bytes.entry(attempt).or_default() += OPENING_BYTES;
            *log.beside.entry(attempt).or_default() += OPENING_BYTES;
            return Some(OPENING_BYTES);
        };
        let first: &[u8; WORD_HEADER_BYTES] = self.open.first_chunk()?;
        if first[..2] == WORD_MAGIC {
            let length = WORD_HEADER_BYTES + u32::from_le_bytes(*first.last_chunk()?) as usize;
            self.open.get(..length)?;
            *log.bytes.entry(attempt).or_default() += length;
            *log.beside.entry(attempt).or_default() += length;
            return Some(length);
        }
        let header = FrameHeader::decode(self.open.get(..FRAME_HEADER_BYTES)?).ok()?;
        let length = FRAME_HEADER_BYTES + header.payload_len();
        self.open.get(..length)?;
        let whose = if header.kind == FrameKind::Contrib { self.from } else { self.to };
        *log.frames.entry((attempt, header.kind as u8, header.chunk, whose)).or_default() += length;
        *log.bytes.entry(attempt).or_default() += length;
        Some(length)
    }
}

/// A member, with the things that it keeps over all attempts.
struct Member {
    contribution: Contribution,
    delta: Arc<Vec<f32>>,
    feedback: Arc<Feedback>,
    parts: Arc<Parts>,
    sums: Arc<Sums>,
}

/// A flock of `nodes`, a member of which dies.
pub struct Flock {
    nodes: usize,
    elements: usize,
    runtime: tokio::runtime::Runtime,
}

/// The result of one reduction with a death.
pub enum After {
    /// The share of a reduction's bytes that was sent again.
    Again(f64),
    /// A survivor had the update already, so there is no other attempt.
    Ended,
}

impl Flock {
    pub fn new(nodes: usize, elements: usize) -> Result<Self> {
        ensure!((3..255).contains(&nodes), "--deaths is for 3 to 254 nodes, not {nodes}");
        Ok(Self { nodes, elements, runtime: tokio::runtime::Builder::new_multi_thread().enable_all().build()? })
    }

    fn members(&self) -> Vec<Member> {
        let contribution = |n: usize| Contribution {
            member: NodeId([n as u8 + 1; 32]),
            stated: EQUAL,
            payload: Digest::of("starling bench contribution", &[&n.to_le_bytes()]),
        };
        let member = |n: usize| Member {
            contribution: contribution(n),
            delta: Arc::new(offered(n, self.elements)),
            feedback: Arc::default(),
            parts: Arc::default(),
            sums: Arc::default(),
        };
        (0..self.nodes).map(member).collect()
    }

    /// Bytes of a reduction without a death.
    ///
    /// # Errors
    /// The reduction fails.
    pub fn whole(&self, way: Way) -> Result<usize> {
        let members = self.members();
        let (links, all) = (Links::new(&members), (0..members.len()).collect::<Vec<_>>());
        let results = self.runtime.block_on(async { join_all(links.start(way, &members, &all, 0, None)).await });
        results.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(links.log().bytes.get(&0).copied().unwrap_or(0))
    }

    /// Lets `victim` die when it has sent its share `moment` of the `whole`, and the others make another attempt.
    ///
    /// # Errors
    /// An attempt does not end, or the survivors hold different bytes.
    pub fn death(&self, way: Way, victim: usize, moment: f64, whole: usize) -> Result<After> {
        let members = self.members();
        let (links, all) = (Links::new(&members), (0..members.len()).collect::<Vec<_>>());
        let after = (moment * whole as f64 / self.nodes as f64) as usize;
        let kill = Arc::new(Kill { after, sent: AtomicUsize::new(0), now: Notify::new() });
        let rest: Vec<usize> = all.iter().copied().filter(|n| *n != victim).collect();
        self.runtime.block_on(async {
            let mut running = links.start(way, &members, &all, 0, Some((victim, &kill)));
            let dying = tokio::spawn(running.remove(victim));
            let others: Vec<_> = running.into_iter().map(tokio::spawn).collect();
            let killer = tokio::spawn(async move {
                kill.now.notified().await;
                dying.abort();
            });
            let ended = tokio::time::timeout(PATIENCE, join_all(others)).await.context("the attempt does not end")?;
            killer.abort();
            if ended.into_iter().any(|ended| matches!(ended, Ok(Ok(_)))) {
                return Ok(After::Ended);
            }
            let second = join_all(links.start(way, &members, &rest, 1, None).into_iter().map(tokio::spawn));
            let ended = tokio::time::timeout(PATIENCE, second).await.context("the second attempt does not end")?;
            let mut updates = Vec::new();
            for ended in ended {
                updates.push(ended??);
            }
            if updates.windows(2).any(|pair| pair[0] != pair[1]) {
                bail!("two survivors hold different bytes");
            }
            Ok(After::Again(links.log().again() as f64 / whole as f64))
        })
    }
}

/// All links of one reduction.
struct Links {
    routers: Arc<BTreeMap<NodeId, BulkRouter>>,
    log: Arc<Mutex<Log>>,
}

type Reduction = BoxFuture<'static, Result<Vec<u8>, ReduceError>>;

impl Links {
    fn new(members: &[Member]) -> Self {
        let router = |member: &Member| (member.contribution.member, BulkRouter::new(Digest::default()));
        Self { routers: Arc::new(members.iter().map(router).collect()), log: Arc::default() }
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reductions of these members in one attempt.
    fn start(
        &self,
        way: Way,
        members: &[Member],
        places: &[usize],
        attempt: u32,
        death: Option<(usize, &Arc<Kill>)>,
    ) -> Vec<Reduction> {
        let set: Vec<Contribution> = places.iter().map(|n| members[*n].contribution.clone()).collect();
        let one = |n: &usize| {
            let member = &members[*n];
            let kill = death.filter(|(victim, _)| victim == n).map(|(_, kill)| Arc::clone(kill));
            let (routers, log) = (Arc::clone(&self.routers), Arc::clone(&self.log));
            let links = Pipes { me: member.contribution.member, routers, log, kill };
            let engine: Box<dyn ReduceEngine> = match way.engine {
                EngineKind::Ring => Box::new(RingReducer::new(links)),
                EngineKind::Owners => Box::new(OwnersReducer::new(links)),
            };
            let job = ReduceJob {
                run: Digest::default(),
                key: AttemptKey { lineage: Digest::default(), seq: 1, attempt, set: Digest([attempt as u8; 32]) },
                codec: way.codec,
                members: set.clone(),
                flock: members.iter().map(|member| (member.contribution.member, 0)).collect(),
                grid: Arc::default(),
                me: member.contribution.member,
                delta: Arc::clone(&member.delta),
                feedback: Arc::clone(&member.feedback),
                parts: Arc::clone(&member.parts),
                sums: Arc::clone(&member.sums),
            };
            engine.run(job, Arc::new(|_| {}))
        };
        places.iter().map(one).collect()
    }
}
