//! One run of a node's program: the engine, and what its driver holds in memory.

use crate::disk::{Disk, Link, Write};
use crate::keys::{PlainSigner, PlainVerifier, id};
use starling_protocol::Digest;
use starling_protocol::engine::io::{AttemptKey, PersistToken};
use starling_protocol::engine::{Engine, EngineConfig, Founding, Stored, Timing};
use starling_protocol::run::RunSpec;
use std::collections::BTreeMap;

pub struct Node {
    pub disk: Disk,
    pub process: Option<Process>,
    /// Counts starts; events of earlier ones mean nothing.
    pub starts: u64,
    pub frozen_until: u64,
    /// Went by itself, or the schedule wants it dead.
    pub gone: bool,
    /// Microseconds of one inner step.
    pub step: u64,
    /// The driver's clock starts anywhere.
    pub offset: u64,
    pub slow_disk: bool,
}

pub struct Process {
    pub engine: Engine,
    /// The canonical state, by its root: what the disk says, unless it was damaged.
    pub state: Digest,
    pub chain: Vec<Link>,
    pub updates: BTreeMap<AttemptKey, Digest>,
    /// Base and payload of the own contribution.
    pub contribution: Option<(Digest, Digest)>,
    /// Number of the current training or catch-up job; results of others are dropped.
    pub training: Option<u64>,
    pub cut_short: bool,
    pub catching: Option<u64>,
    pub jobs: u64,
    pub reducing: Option<AttemptKey>,
    pub writes: Vec<(PersistToken, Write)>,
    /// Sends that wait for a write.
    pub waiting: Vec<(PersistToken, usize, Vec<u8>)>,
    pub finished: bool,
}

impl Node {
    pub fn new(step: u64, offset: u64) -> Self {
        Self {
            disk: Disk::default(),
            process: None,
            starts: 0,
            frozen_until: 0,
            gone: false,
            step,
            offset,
            slow_disk: false,
        }
    }

    /// Starts the program on what the disk holds.
    pub fn start(&mut self, index: usize, spec: &RunSpec, found: bool) {
        self.starts += 1;
        let stored = self.disk.head().map(|head| Stored {
            head: (*head.record).clone(),
            certificate: head.certificate.as_ref().map(|c| (**c).clone()),
            past: Vec::new(),
            register: self.disk.register.clone(),
            candidates: self.disk.candidates.clone(),
            evidence: Vec::new(),
        });
        let root = initial_root();
        let found = found.then_some(Founding { nonce: self.starts, state_root: root });
        let config = EngineConfig {
            signer: Box::new(PlainSigner(id(index))),
            verifier: Box::new(PlainVerifier),
            spec: spec.clone(),
            run: spec.digest(),
            boot: self.starts << 20,
            found,
            stored,
            ticket: Vec::new(),
            force_fork: false,
            timing: Timing::default(),
        };
        self.process = Some(Process {
            engine: Engine::new(config),
            state: self.disk.head().map_or(root, |head| head.record.state_root),
            chain: self.disk.chain.clone(),
            updates: BTreeMap::new(),
            contribution: None,
            training: None,
            cut_short: false,
            catching: None,
            jobs: 0,
            reducing: None,
            writes: Vec::new(),
            waiting: Vec::new(),
            finished: false,
        });
    }

    pub fn alive(&self) -> bool {
        self.process.is_some()
    }

    pub fn head(&self) -> Option<&Link> {
        self.process.as_ref().and_then(|process| process.chain.last())
    }
}

impl Process {
    pub fn job(&mut self) -> u64 {
        self.jobs += 1;
        self.jobs
    }
}

pub fn initial_root() -> Digest {
    Digest::of("sim initial state", &[])
}

/// The state after an outer step: what the real arithmetic is replaced by.
pub fn applied_root(state: &Digest, update: &Digest, outer_lr: f64, momentum: f64) -> Digest {
    Digest::of("sim outer step", &[&state.0, &update.0, &outer_lr.to_le_bytes(), &momentum.to_le_bytes()])
}
