//! Members of a flock in one process, joined by pipes that may be cut, changed or repeated: for the engines' tests.

use super::{
    BulkLinks, BulkRouter, Feedback, LatticeReducer, OwnersReducer, Parts, ProgressFn, ReduceEngine, ReduceError,
    ReduceJob, Report, RingReducer, RouterError, Sums,
};
use crate::net::BulkStream;
use futures::future::BoxFuture;
use starling_protocol::engine::io::{AttemptKey, Contribution};
use starling_protocol::grid::Grid;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::outer::adamw::squares;
use starling_protocol::run::{Codec, EngineKind};
use starling_protocol::update::Stated;
use starling_protocol::update::owners::Owners;
use starling_protocol::{Digest, NodeId, update};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tap::Probe;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::Notify;

mod rows;
mod tap;

pub use tap::Tap;

pub const RUN: Digest = Digest([1; 32]);
/// An attempt that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// The fault of the pipe that carries one member's bytes.
#[derive(Clone, Copy, Debug)]
pub enum Wire {
    /// The bytes end after this many, with both sides of the stream.
    CutAfter(usize),
    /// The bytes stop after this many, and nothing ends.
    StallAfter(usize),
    /// The byte at this place arrives changed.
    Flip(usize),
    /// Every byte from this place on is sent twice.
    RepeatFrom(usize),
}

/// Links of one member of an in-process flock.
#[derive(Clone)]
pub struct Pipes {
    pub me: NodeId,
    pub routers: Arc<BTreeMap<NodeId, BulkRouter>>,
    pub wire: Option<Wire>,
    /// Bytes of a pipe's buffer.
    pub room: usize,
    /// A member whose process is gone: nothing can be opened to it.
    pub dead: Option<NodeId>,
    /// This member dies when it has sent this many bytes.
    pub kill: Option<Kill>,
    pub tap: Option<Tap>,
}

/// When a member dies, and the sign that it has.
#[derive(Clone)]
pub struct Kill {
    pub after: usize,
    pub sent: Arc<AtomicUsize>,
    pub now: Arc<Notify>,
}

impl Kill {
    /// Counts bytes on their way; false if the member dies before all of them have left.
    fn pass(&self, bytes: usize) -> bool {
        let alive = self.sent.fetch_add(bytes, Ordering::SeqCst) + bytes < self.after;
        if !alive {
            self.now.notify_one();
        }
        alive
    }
}

impl BulkLinks for Pipes {
    fn open(&self, to: NodeId) -> BoxFuture<'static, io::Result<BulkStream>> {
        if self.dead == Some(to) {
            return Box::pin(async { Err(io::ErrorKind::NotConnected.into()) });
        }
        let (near, far) = tokio::io::duplex(self.room);
        let far = if self.wire.is_none() && self.kill.is_none() && self.tap.is_none() {
            far
        } else {
            let (relayed, out) = tokio::io::duplex(self.room);
            let probe = self.tap.as_ref().map(|tap| tap.on(self.me, to));
            tokio::spawn(relay_tapped(far, relayed, (self.wire, self.kill.clone()), probe));
            out
        };
        self.routers[&to].route(self.me, BulkStream::new(far));
        Box::pin(async move { Ok(BulkStream::new(near)) })
    }

    fn accept(&self, key: AttemptKey, from: NodeId) -> BoxFuture<'static, Result<BulkStream, RouterError>> {
        let router = self.routers[&self.me].clone();
        Box::pin(async move { router.accept(key, from).await })
    }

    fn leave(&self, key: AttemptKey) {
        self.routers[&self.me].leave(key);
    }
}

/// Carries bytes between the two ends, in both directions; both end at once.
pub async fn relay(from: DuplexStream, to: DuplexStream, wire: Option<Wire>, kill: Option<Kill>) {
    relay_tapped(from, to, (wire, kill), None).await;
}

async fn relay_tapped(
    from: DuplexStream,
    to: DuplexStream,
    (wire, kill): (Option<Wire>, Option<Kill>),
    probe: Option<Probe>,
) {
    let (from_read, mut from_write) = tokio::io::split(from);
    let (mut to_read, to_write) = tokio::io::split(to);
    tokio::select! {
        () = forward(from_read, to_write, (wire, kill), probe) => {}
        _ = tokio::io::copy(&mut to_read, &mut from_write) => {}
    }
}

async fn forward(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    (wire, kill): (Option<Wire>, Option<Kill>),
    mut probe: Option<Probe>,
) {
    let (mut passed, mut buffer) = (0, vec![0; 4096]);
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        let bytes = &mut buffer[..len];
        if kill.as_ref().is_some_and(|kill| !kill.pass(len)) {
            return;
        }
        if let Some(probe) = &mut probe {
            probe.see(bytes);
        }
        let result = match wire {
            Some(Wire::CutAfter(end)) if passed + len > end => return drop(to.write_all(&bytes[..end - passed]).await),
            Some(Wire::StallAfter(end)) if passed + len > end => {
                drop(to.write_all(&bytes[..end - passed]).await);
                return std::future::pending().await;
            }
            Some(Wire::Flip(at)) if (passed..passed + len).contains(&at) => {
                bytes[at - passed] ^= 0x10;
                to.write_all(bytes).await
            }
            Some(Wire::RepeatFrom(at)) if passed + len > at => {
                let fresh = at.saturating_sub(passed);
                let twice = [&bytes[..], &bytes[fresh..]].concat();
                to.write_all(&twice).await
            }
            _ => to.write_all(bytes).await,
        };
        if result.is_err() {
            return;
        }
        passed += len;
    }
}

/// `deltas.len()` members that have trained on `100, 200, ...` tokens.
pub struct Flock {
    pub engine: EngineKind,
    pub codec: Codec,
    pub members: Vec<Contribution>,
    pub deltas: Vec<Arc<Vec<f32>>>,
    pub feedback: Vec<Arc<Feedback>>,
    pub parts: Vec<Arc<Parts>>,
    pub sums: Vec<Arc<Sums>>,
    /// The members that the record before expects.
    pub expected: Vec<(NodeId, u32)>,
    /// Of one row, unless the flock is one in rows.
    pub grid: Arc<Grid>,
    pub routers: Arc<BTreeMap<NodeId, BulkRouter>>,
    pub room: usize,
    /// This member's READY states the norm of its contribution times this factor.
    pub lie: Option<(usize, f32)>,
    /// Name of the set, and number of the record.
    pub set: Digest,
    pub seq: u64,
    /// The frames that the members send are noted here.
    pub tap: Option<Tap>,
}

impl Flock {
    pub fn new(engine: EngineKind, codec: Codec, n: usize, elements: usize, room: usize) -> Self {
        let id = |i: usize| NodeId([i as u8 + 1; 32]);
        let stated = |i: usize| Stated { tokens: 100 * (i as u64 + 1), steps: 1, norm: 0.0 };
        let member = |i: usize| Contribution { member: id(i), stated: stated(i), payload: Digest([i as u8; 32]) };
        let value = |i: usize, e: usize| ((e * (2 * i + 3) % 1999) as f32 - 999.0) * 1e-5 / (1 + e % 7) as f32;
        let routers = (0..n).map(|i| (id(i), BulkRouter::new(RUN))).collect();
        Self {
            engine,
            codec,
            members: (0..n).map(member).collect(),
            feedback: (0..n).map(|_| Arc::default()).collect(),
            parts: (0..n).map(|_| Arc::default()).collect(),
            sums: (0..n).map(|_| Arc::default()).collect(),
            expected: (0..n).map(|n| (id(n), 0)).collect(),
            grid: Arc::default(),
            deltas: (0..n).map(|i| Arc::new((0..elements).map(|e| value(i, e)).collect())).collect(),
            routers: Arc::new(routers),
            room,
            lie: None,
            set: Digest([3; 32]),
            seq: 9,
            tap: None,
        }
    }

    pub fn key(&self, attempt: u32) -> AttemptKey {
        AttemptKey { lineage: Digest([2; 32]), seq: self.seq, attempt, set: self.set }
    }

    /// The members, with the norms that their READYs state; the liar itself computes with its true norm.
    pub fn stated(&self, to: Option<usize>) -> Vec<Contribution> {
        let mut members = self.members.clone();
        for ((member, feedback), delta) in members.iter_mut().zip(&self.feedback).zip(&self.deltas) {
            let plain = || delta.chunks(CHUNK_ELEMENTS).map(squares).sum::<f64>().sqrt();
            member.stated.norm = feedback.offered_norm(self.codec, delta).unwrap_or_else(plain) as f32;
        }
        if let Some((liar, factor)) = self.lie.filter(|(liar, _)| to != Some(*liar)) {
            members[liar].stated.norm *= factor;
        }
        members
    }

    pub fn job(&self, position: usize, attempt: u32) -> ReduceJob {
        ReduceJob {
            run: RUN,
            key: self.key(attempt),
            codec: self.codec,
            members: self.stated(Some(position)),
            me: self.members[position].member,
            delta: Arc::clone(&self.deltas[position]),
            flock: self.expected.clone(),
            grid: Arc::clone(&self.grid),
            feedback: Arc::clone(&self.feedback[position]),
            parts: Arc::clone(&self.parts[position]),
            sums: Arc::clone(&self.sums[position]),
        }
    }

    /// The other members, with all that they know, after one has gone.
    pub fn without(&self, gone: usize) -> Self {
        let others: Vec<usize> = (0..self.members.len()).filter(|place| *place != gone).collect();
        self.among(&others)
    }

    /// Some of the members, with all that they know.
    pub fn among(&self, places: &[usize]) -> Self {
        fn some<T: Clone>(all: &[T], places: &[usize]) -> Vec<T> {
            places.iter().map(|place| all[*place].clone()).collect()
        }
        Self {
            members: some(&self.members, places),
            deltas: some(&self.deltas, places),
            feedback: some(&self.feedback, places),
            parts: some(&self.parts, places),
            sums: some(&self.sums, places),
            expected: self.expected.clone(),
            grid: Arc::clone(&self.grid),
            routers: Arc::clone(&self.routers),
            set: Digest([places.iter().fold(64, |set, place| set ^ 1 << place); 32]),
            tap: self.tap.clone(),
            ..*self
        }
    }

    /// The owner of each chunk among the members.
    pub fn owners(&self) -> Owners {
        let members: Vec<_> = self.members.iter().map(|member| member.member).collect();
        Owners::among(&self.expected, &members, update::chunks(self.deltas[0].len()))
    }

    pub fn start(
        &self,
        position: usize,
        attempt: u32,
        wire: Option<Wire>,
    ) -> BoxFuture<'static, Result<Vec<u8>, ReduceError>> {
        self.start_on(Pipes { wire, ..self.pipes(position) }, position, attempt)
    }

    /// The links of a member without a fault.
    pub fn pipes(&self, position: usize) -> Pipes {
        let (me, routers) = (self.members[position].member, Arc::clone(&self.routers));
        Pipes { me, routers, wire: None, room: self.room, dead: None, kill: None, tap: self.tap.clone() }
    }

    pub fn start_on(
        &self,
        links: Pipes,
        position: usize,
        attempt: u32,
    ) -> BoxFuture<'static, Result<Vec<u8>, ReduceError>> {
        self.start_told(links, position, attempt, Arc::new(|_| {}))
    }

    fn start_told(
        &self,
        links: Pipes,
        position: usize,
        attempt: u32,
        progress: ProgressFn,
    ) -> BoxFuture<'static, Result<Vec<u8>, ReduceError>> {
        let job = self.job(position, attempt);
        match self.engine {
            _ if !self.grid.is_one_row() => LatticeReducer::new(links).run(job, progress),
            EngineKind::Ring => RingReducer::new(links).run(job, progress),
            EngineKind::Owners => OwnersReducer::new(links).run(job, progress),
        }
    }

    /// The reports of all members when nothing moves any more, because one sends only `after` bytes on each stream.
    /// Members that are done report the end, and wait for nothing.
    pub async fn standstill(&self, staller: usize, after: usize) -> Vec<Report> {
        let told: Vec<Arc<Mutex<Report>>> = self.members.iter().map(|_| Arc::default()).collect();
        let start = |place: usize| {
            let wire = (place == staller).then_some(Wire::StallAfter(after));
            let told = Arc::clone(&told[place]);
            let report: ProgressFn = Arc::new(move |report| *told.lock().unwrap() = report);
            tokio::spawn(self.start_told(Pipes { wire, ..self.pipes(place) }, place, 0, report))
        };
        let running: Vec<_> = (0..self.members.len()).map(start).collect();
        // All run on one thread, which sleeps when none can go on: reports that stay the same a few times stay the same
        // for good.
        let (mut still, mut before) = (0, Vec::new());
        while still < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now: Vec<Report> = told.iter().map(|told| *told.lock().unwrap()).collect();
            still = if now == before { still + 1 } else { 0 };
            before = now;
        }
        for (place, running) in running.into_iter().enumerate() {
            if running.is_finished() {
                before[place] = Report { reached: u64::MAX, awaits: None };
            }
            running.abort();
        }
        before
    }

    /// One member dies when it has sent `after` bytes. Returns the results of the others.
    pub async fn with_a_death(
        &self,
        victim: usize,
        after: usize,
        attempt: u32,
    ) -> Vec<(usize, Result<Vec<u8>, ReduceError>)> {
        let kill = Kill { after, sent: Arc::default(), now: Arc::default() };
        let others: Vec<usize> = (0..self.members.len()).filter(|place| *place != victim).collect();
        // A process that was gone before the attempt began cannot be reached either.
        let dead = (after == 0).then(|| self.members[victim].member);
        let start = |place: &usize| tokio::spawn(self.start_on(Pipes { dead, ..self.pipes(*place) }, *place, attempt));
        let running: Vec<_> = others.iter().map(start).collect();
        if after > 0 {
            let death = Arc::clone(&kill.now);
            let part = self.start_on(Pipes { kill: Some(kill), ..self.pipes(victim) }, victim, attempt);
            tokio::select! {
                () = death.notified() => {}
                _ = part => {}
            }
        }
        let mut results = Vec::new();
        for (place, running) in others.into_iter().zip(running) {
            let ended = tokio::time::timeout(PATIENCE, running).await;
            results.push((place, ended.expect("an attempt with a dead member ends").unwrap()));
        }
        results
    }

    /// Runs an attempt in which all live; returns the bytes that each has sent, and the update with which all end.
    pub async fn bytes_sent(&self, attempt: u32) -> (Vec<usize>, Vec<u8>) {
        let start = |place: usize| {
            let kill = Kill { after: usize::MAX, sent: Arc::default(), now: Arc::default() };
            let sent = Arc::clone(&kill.sent);
            let part = self.start_on(Pipes { kill: Some(kill), ..self.pipes(place) }, place, attempt);
            (sent, tokio::spawn(part))
        };
        let running: Vec<_> = (0..self.members.len()).map(start).collect();
        let (mut bytes, mut updates) = (Vec::new(), Vec::new());
        for (sent, running) in running {
            updates.push(tokio::time::timeout(PATIENCE, running).await.expect("it ends").unwrap().unwrap());
            bytes.push(sent);
        }
        let update = updates.pop().expect("a flock has members");
        assert!(updates.iter().all(|other| *other == update), "two members end with different updates");
        (bytes.into_iter().map(|sent| sent.load(Ordering::SeqCst)).collect(), update)
    }

    /// The payload of each chunk of an update.
    pub fn payloads<'a>(&self, update: &'a [u8]) -> Vec<&'a [u8]> {
        let layout = update::Layout::of(self.codec, self.deltas[0].len(), update).expect("it is an update");
        (0..update::chunks(self.deltas[0].len())).map(|chunk| &update[layout.range(chunk)]).collect()
    }

    /// Everybody's results; the bytes of member `bad.0` meet the fault `bad.1`.
    pub async fn run(&self, attempt: u32, bad: Option<(usize, Wire)>) -> Vec<Result<Vec<u8>, ReduceError>> {
        let wire = |i| bad.filter(|(at, _)| *at == i).map(|(_, wire)| wire);
        let tasks: Vec<_> = (0..self.members.len()).map(|i| tokio::spawn(self.start(i, attempt, wire(i)))).collect();
        let mut results = Vec::new();
        for task in tasks {
            results.push(task.await.unwrap());
        }
        results
    }

    /// Attempts that are dropped in their middle, after more and more steps, do not disturb those that follow.
    pub async fn assert_cancelled_attempts_leave_nothing(&self) {
        let expected = self.specified();
        for attempt in 0..4 {
            // Members 0 and 1 begin; member 2 never does.
            let (a, b) = (self.start(0, 2 * attempt, None), self.start(1, 2 * attempt, None));
            let some_time = async {
                for _ in 0..50 * attempt {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                _ = futures::future::join(a, b) => unreachable!("two of three cannot end"),
                () = some_time => {}
            }
            for result in self.run(2 * attempt + 1, None).await {
                assert!(result.unwrap() == expected);
            }
        }
    }

    /// The update by the specification, without residuals of earlier rounds.
    pub fn specified(&self) -> Vec<u8> {
        if self.engine == EngineKind::Owners {
            let weights = Contribution::weights(&self.stated(None));
            if !self.grid.is_one_row() {
                return update::lattice::reduce(self.codec, &self.rows(&weights)).unwrap();
            }
            let views: Vec<&[f32]> = self.deltas.iter().map(|delta| delta.as_slice()).collect();
            return update::owners::reduce(self.codec, &weights, &views).unwrap();
        }
        let weighted = self.weighted();
        let views: Vec<&[f32]> = weighted.iter().map(Vec::as_slice).collect();
        update::reduce(self.codec, &views).unwrap()
    }

    fn weighted(&self) -> Vec<Vec<f32>> {
        let weights = Contribution::weights(&self.stated(None));
        let weighted = self.deltas.iter().zip(weights).map(|(delta, weight)| {
            let mut delta = delta.to_vec();
            update::apply_weight(weight, &mut delta);
            delta
        });
        weighted.collect()
    }

    /// The payloads of these chunks, ascending, if a ring reduces them alone.
    pub fn specified_of(&self, chunks: &[usize]) -> Vec<Vec<u8>> {
        if chunks.is_empty() {
            return Vec::new();
        }
        let of_chunks = |delta: Vec<f32>| {
            let chunk = |chunk: &usize| delta.chunks(CHUNK_ELEMENTS).nth(*chunk).unwrap_or_default().to_vec();
            chunks.iter().flat_map(chunk).collect::<Vec<f32>>()
        };
        let some: Vec<Vec<f32>> = self.weighted().into_iter().map(of_chunks).collect();
        let views: Vec<&[f32]> = some.iter().map(Vec::as_slice).collect();
        let update = update::reduce(self.codec, &views).unwrap();
        let layout = update::Layout::of(self.codec, some[0].len(), &update).expect("it is an update");
        (0..chunks.len()).map(|chunk| update[layout.range(chunk)].to_vec()).collect()
    }

    /// The updates in which each chunk's sum begins with another member. With owners there is one.
    pub fn specified_from_anywhere(&self) -> Vec<Vec<u8>> {
        if self.engine == EngineKind::Owners {
            return vec![self.specified()];
        }
        let mut weighted = self.weighted();
        let turn = |_| {
            weighted.rotate_left(1);
            let views: Vec<&[f32]> = weighted.iter().map(Vec::as_slice).collect();
            update::reduce(self.codec, &views).unwrap()
        };
        (0..self.members.len()).map(turn).collect()
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
