//! Members in one process over pipes whose bytes arrive late: the cost of distance to an engine, and nothing else.

use super::worker::{EQUAL, offered};
use anyhow::{Context, Result, ensure};
use futures::future::{BoxFuture, try_join_all};
use starling_benches::way::Way;
use starling_node::net::BulkStream;
use starling_node::reduce::{BulkLinks, BulkRouter, OwnersReducer, ReduceEngine, ReduceJob, RingReducer, RouterError};
use starling_protocol::engine::io::{AttemptKey, Contribution};
use starling_protocol::ring::tour::{self, Costs};
use starling_protocol::run::EngineKind;
use starling_protocol::{Digest, NodeId, ring};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

/// Most bytes of one delayed write.
const PIECE_BYTES: usize = 1 << 16;
/// Delayed writes in one direction: more than any vector of this bench needs.
const PIECES: usize = 1 << 14;

/// The links of one member.
#[derive(Clone)]
struct Late {
    me: NodeId,
    routers: Arc<BTreeMap<NodeId, BulkRouter>>,
    map: Map,
}

/// The distances between members: a short one within a site, `across` between sites.
#[derive(Clone, Copy)]
pub struct Map {
    pub across: Duration,
    /// Number of sites, to which members are dealt in turn. With one site all members are `across` from each other.
    pub sites: usize,
}

/// The delay in one direction within a site.
const INSIDE: Duration = Duration::from_millis(1);

impl Map {
    fn between(&self, a: NodeId, b: NodeId) -> Duration {
        let site = |id: NodeId| usize::from(id.0[0]) % self.sites;
        if self.sites > 1 && site(a) == site(b) { INSIDE } else { self.across }
    }
}

impl BulkLinks for Late {
    fn open(&self, to: NodeId) -> BoxFuture<'static, io::Result<BulkStream>> {
        let (near, far) = tokio::io::duplex(PIECE_BYTES);
        let (relayed, out) = tokio::io::duplex(PIECE_BYTES);
        let ((far_read, far_write), (relayed_read, relayed_write)) = (tokio::io::split(far), tokio::io::split(relayed));
        let by = self.map.between(self.me, to);
        tokio::spawn(carry(far_read, relayed_write, by));
        tokio::spawn(carry(relayed_read, far_write, by));
        match self.routers.get(&to) {
            Some(router) => router.route(self.me, BulkStream::new(out)),
            None => return Box::pin(async { Err(io::ErrorKind::NotConnected.into()) }),
        }
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

/// Carries all bytes, and the end of the stream; each arrives `by` later than it was written.
async fn carry(mut from: ReadHalf<DuplexStream>, mut to: WriteHalf<DuplexStream>, by: Duration) {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let read = async move {
        let mut buffer = vec![0; PIECE_BYTES];
        while let Ok(len @ 1..) = from.read(&mut buffer).await {
            if sender.send((Instant::now() + by, buffer[..len].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due.into()).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        // The reader has gone, or learns of the end.
        drop(to.shutdown().await);
    };
    tokio::join!(read, write);
}

/// A flock of `nodes` with distances between them.
pub struct Flock {
    members: Vec<Contribution>,
    deltas: Vec<Arc<Vec<f32>>>,
    routers: Arc<BTreeMap<NodeId, BulkRouter>>,
    map: Map,
    runtime: tokio::runtime::Runtime,
}

impl Flock {
    pub fn new(nodes: usize, elements: usize, map: Map) -> Result<Self> {
        let id = |index: usize| NodeId([index as u8 + 1; 32]);
        ensure!(nodes < 255, "--delay is for fewer than 255 nodes, not {nodes}");
        let run = Digest::default();
        Ok(Self {
            members: (0..nodes)
                .map(|n| Contribution { member: id(n), stated: EQUAL, payload: Digest::default() })
                .collect(),
            deltas: (0..nodes).map(|n| Arc::new(offered(n, elements))).collect(),
            routers: Arc::new((0..nodes).map(|n| (id(n), BulkRouter::new(run))).collect()),
            map,
            runtime: tokio::runtime::Builder::new_multi_thread().enable_all().build()?,
        })
    }

    /// Members in the order of the ring: drawn for the turn, as in rings without known distances, or a short tour.
    fn order(&self, turn: u32, toured: bool) -> Vec<Contribution> {
        let drawn = ring::order(&Digest::of("starling bench ring", &[&turn.to_le_bytes()]), self.ids());
        let micros = |a: usize, b: usize| self.map.between(drawn[a], drawn[b]).as_micros() as u32;
        let best = if toured {
            tour::best(&Costs::new(drawn.len(), micros), &Digest::default())
        } else {
            (0..drawn.len()).collect()
        };
        let contribution = |place: &usize| self.members.iter().find(|member| member.member == drawn[*place]);
        best.iter().filter_map(contribution).cloned().collect()
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.members.iter().map(|member| member.member)
    }

    /// Runs one reduction; returns its seconds, and the bytes of its update.
    pub fn reduce(&self, turn: u32, way: Way, toured: bool) -> Result<(f64, usize)> {
        let members = self.order(turn, toured);
        let start = Instant::now();
        let one = |(contribution, delta): (&Contribution, &Arc<Vec<f32>>)| {
            let links = Late { me: contribution.member, routers: Arc::clone(&self.routers), map: self.map };
            let engine: Box<dyn ReduceEngine> = match way.engine {
                EngineKind::Ring => Box::new(RingReducer::new(links)),
                EngineKind::Owners => Box::new(OwnersReducer::new(links)),
            };
            let job = ReduceJob {
                run: Digest::default(),
                key: AttemptKey {
                    lineage: Digest::default(),
                    seq: u64::from(turn),
                    attempt: 0,
                    set: Digest::default(),
                },
                codec: way.codec,
                members: members.clone(),
                flock: self.ids().map(|id| (id, 0)).collect(),
                grid: Arc::default(),
                me: contribution.member,
                delta: Arc::clone(delta),
                feedback: Arc::default(),
                parts: Arc::default(),
                sums: Arc::default(),
            };
            async move { engine.run(job, Arc::new(|_| {})).await }
        };
        let _runtime = self.runtime.enter();
        let all = self.members.iter().zip(&self.deltas).map(|member| self.runtime.spawn(one(member)));
        let updates = self.runtime.block_on(try_join_all(all))?;
        let updates = updates.into_iter().collect::<Result<Vec<_>, _>>()?;
        let seconds = start.elapsed().as_secs_f64();
        ensure!(updates.windows(2).all(|pair| pair[0] == pair[1]), "two members hold different bytes");
        Ok((seconds, updates.first().context("no members")?.len()))
    }

    /// Seconds of the delays alone, if all hops are long: 2 (n - 1) hops in a ring, two with owners.
    pub fn floor(&self, way: Way) -> f64 {
        let hops = match way.engine {
            EngineKind::Ring => 2 * (self.members.len() - 1),
            EngineKind::Owners => 2,
        };
        hops as f64 * self.map.across.as_secs_f64()
    }
}
