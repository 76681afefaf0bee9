//! A node, and one run of its program: the engine, and its driver's memory.

use super::disk::{Disk, Held, Link, Write};
use super::keys::Keys;
use super::random::Random;
use super::schedule::{Contest, Moment};
use super::sums::Sums;
use super::trainer::State;
use crate::engine::io::{AttemptKey, PersistToken};
use crate::engine::{Engine, EngineConfig, Founding, PAST_MAX, Stored, Timing};
use crate::message::Ready;
use crate::record::Span;
use crate::run::RunSpec;
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// A machine.
pub struct Node {
    pub id: NodeId,
    pub disk: Disk,
    /// The disk at some earlier moments.
    pub snapshots: VecDeque<(u64, Disk)>,
    pub process: Option<Process>,
    /// The number of starts; events of earlier ones are dropped.
    pub starts: u64,
    pub started_at: u64,
    pub paused_until: u64,
    pub slow_disk_until: u64,
    /// It does not come back.
    pub gone: bool,
    /// It left by itself.
    pub left: bool,
    /// Microseconds of one inner step.
    pub step: u64,
    /// The number of starts by which its clock was last behind.
    pub behind: u64,
    /// The driver's clock starts at any time.
    pub offset: u64,
    pub liar: Option<Liar>,
    /// Its disk lost something that was on it.
    pub amnesic: bool,
    /// Its disk is not the one that its vote state was made on, and the program can tell.
    pub copied: bool,
    pub ambush: Option<Ambush>,
    pub contest: Option<Contest>,
}

/// True messages that a liar can lie with.
#[derive(Debug, Default)]
pub struct Liar {
    /// A true message of its own.
    pub said: Option<Rc<Vec<u8>>>,
    pub ready: Option<Ready>,
}

/// A death that waits for its moment.
#[derive(Clone, Copy, Debug)]
pub struct Ambush {
    pub moment: Moment,
    pub forgets: bool,
    pub back: u64,
}

/// A contribution of a process that no commit has taken in.
#[derive(Clone, Debug)]
pub struct Offer {
    pub payload: Digest,
    pub vector: Rc<Vec<f32>>,
    pub span: Span,
    pub tokens: u64,
    /// The record from whose state it was trained.
    pub base: Digest,
    /// A commit left it out: it is to be offered again, or in `every-step` its lease to be trained on anew.
    pub left_out: bool,
}

/// A trainer's own parameters, in runs that keep them from round to round.
#[derive(Clone, Debug)]
pub struct Own {
    pub theta: Vec<f32>,
    /// The ranges that it has stepped on since it began from the canonical parameters, step by step.
    pub steps: Vec<Span>,
    /// The number of these that were done when its last contribution was made: `theta` has only those.
    pub offered: usize,
}

/// Inner steps of the next round while the record of this one is made.
#[derive(Clone, Debug)]
pub struct Ahead {
    pub job: u64,
    pub round: u64,
    /// The record that made the state that the coming record steps.
    pub base: Digest,
    pub lease: Span,
    /// Steps of the whole lease, and those to make ahead.
    pub inner_steps: u32,
    pub steps: u32,
    pub done: u32,
}

/// A contribution with a difference mixed into it.
#[derive(Clone, Debug)]
pub struct Mixed {
    pub payload: Digest,
    pub vector: Rc<Vec<f32>>,
}

/// A training job.
#[derive(Clone, Debug)]
pub struct Training {
    pub job: u64,
    pub round: u64,
    pub base: Digest,
    pub lease: Span,
    pub steps: u32,
    pub done: u32,
    pub cut_short: bool,
    pub state: Rc<State>,
}

/// A state that is being fetched, or the records that lead to it.
#[derive(Clone, Debug)]
pub struct Catching {
    pub job: u64,
    pub target: Digest,
    /// The state comes as well, piece by piece.
    pub afresh: bool,
    /// The nodes that the engine has named, and the node that gives the next piece.
    pub sources: Vec<usize>,
    pub source: usize,
    /// The pieces that are here.
    pub got: u64,
}

/// A started program.
pub struct Process {
    pub engine: Engine,
    /// The canonical state: that of the disk, unless it was damaged.
    pub state: Rc<State>,
    pub head: Option<Link>,
    /// By attempt and digest: one attempt may have two results, one of them wrong.
    pub updates: BTreeMap<(AttemptKey, Digest), Rc<Vec<u8>>>,
    pub speculated: BTreeMap<(AttemptKey, Digest), Rc<State>>,
    pub offer: Option<Offer>,
    pub mixed: Option<Mixed>,
    pub training: Option<Training>,
    pub own: Option<Own>,
    pub ahead: Option<Ahead>,
    /// The state from which a commit of this process made the current one.
    pub before: Option<Digest>,
    /// Numbers of the jobs under way; results of other jobs are dropped.
    pub catching: Option<Catching>,
    pub proving: BTreeSet<u64>,
    pub fetching: BTreeMap<AttemptKey, u64>,
    pub jobs: u64,
    pub reducing: Option<AttemptKey>,
    /// The finished parts of attempts at the record at hand.
    pub sums: Sums,
    pub writes: VecDeque<(PersistToken, Write)>,
    /// Sends that wait for a write.
    pub waiting: Vec<(PersistToken, usize, Rc<Vec<u8>>)>,
    pub finished: bool,
    pub damaged: bool,
    pub hung: bool,
    /// The time when its driver wakes it next, in the world's time.
    pub armed: Option<u64>,
    /// The number of times that it was woken.
    pub wakes: u64,
}

impl Node {
    pub fn new(id: NodeId, random: &mut Random) -> Self {
        Self {
            id,
            disk: Disk::default(),
            snapshots: VecDeque::new(),
            process: None,
            starts: 0,
            started_at: 0,
            paused_until: 0,
            slow_disk_until: 0,
            gone: false,
            left: false,
            step: random.between(20, 600) * super::MS,
            behind: 0,
            offset: random.between(0, 1 << 40),
            liar: None,
            amnesic: false,
            copied: false,
            ambush: None,
            contest: None,
        }
    }

    /// Starts the program on the disk's content.
    pub fn start(&mut self, index: usize, keys: &Keys, spec: &RunSpec, (found, ticket): (bool, Vec<u8>)) {
        self.starts += 1;
        let stored = self.disk.head().map(|head| Stored {
            head: (*head.record).clone(),
            certificate: head.certificate.as_deref().cloned(),
            past: self.disk.past_certificates().take(PAST_MAX).cloned().collect(),
            ancestry: self.disk.ancestry(),
            vote_state: self.disk.vote_state.clone(),
            candidates: self.disk.candidates.iter().map(|held| (*held.candidate).clone()).collect(),
            evidence: self.disk.evidence.values().cloned().collect(),
        });
        let initial = State::initial(spec.sync.mode);
        let found = found.then_some(Founding { nonce: self.starts, state_root: initial.root });
        let config = EngineConfig {
            signer: keys.signer(index),
            verifier: keys.verifier(),
            spec: spec.clone(),
            run: spec.digest(),
            boot: self.boot(),
            found,
            stored,
            copied: self.copied,
            ticket,
            guides: Vec::new(),
            adopt: None,
            force_fork: false,
            timing: Timing::default(),
        };
        self.process = Some(Process {
            engine: Engine::new(config),
            state: self.disk.state.clone().unwrap_or(initial),
            head: self.disk.head().cloned(),
            updates: BTreeMap::new(),
            speculated: BTreeMap::new(),
            offer: None,
            mixed: None,
            training: None,
            own: None,
            ahead: None,
            before: None,
            catching: None,
            proving: BTreeSet::new(),
            fetching: BTreeMap::new(),
            jobs: 0,
            reducing: None,
            sums: Sums::default(),
            writes: VecDeque::new(),
            waiting: Vec::new(),
            finished: false,
            damaged: false,
            hung: false,
            armed: None,
            wakes: 0,
        });
    }

    pub fn alive(&self) -> bool {
        self.process.is_some()
    }

    /// Whether its program runs and has not ended by itself.
    pub fn working(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !process.finished)
    }

    pub fn head(&self) -> Option<&Link> {
        self.process.as_ref().and_then(|process| process.head.as_ref())
    }
}

impl Process {
    pub fn job(&mut self) -> u64 {
        self.jobs += 1;
        self.jobs
    }

    /// The update of an attempt with this digest, in memory or among the results on the disk.
    pub fn update(&self, disk: &Disk, key: &AttemptKey, update: &Digest) -> Option<Rc<Vec<u8>>> {
        let named = |held: &&Held| held.candidate.key == *key && held.candidate.record.update == *update;
        let stored = || disk.candidates.iter().find(named).map(|held| Rc::clone(&held.update));
        self.updates.get(&(*key, *update)).cloned().or_else(stored)
    }
}
