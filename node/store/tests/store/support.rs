//! A small run with real content: records that follow one another, updates that decode, states that add up.

use starling_protocol::engine::io::AttemptKey;
use starling_protocol::engine::{Candidate, VoteState};
use starling_protocol::message::{Certificate, Stamp, Value, ValueKind};
use starling_protocol::outer::Rule;
use starling_protocol::path::Link;
use starling_protocol::record::{Member, Record, RecordKind};
use starling_protocol::run::{Codec, SyncMode};
pub use starling_protocol::sample::spec;
use starling_protocol::state::{self, Manifest, State};
use starling_protocol::{Digest, NodeId, sample, update, wire};
use starling_store::{Opened, SnapshotKind, Store, StoreOptions};
use std::path::{Path, PathBuf};
use std::{fs, io};

pub const SCHEMA: Digest = Digest([3; 32]);
/// A state of four chunks: a whole and a short one of theta, and the same of the momentum.
pub const ELEMENTS: usize = (1 << 18) + 777;

pub fn spec_bytes() -> Vec<u8> {
    wire::encode_spec(&spec())
}

pub fn options() -> StoreOptions {
    StoreOptions { ballast_bytes: 64 << 10, reserve_bytes: 1 << 20, max_bytes: 0 }
}

/// Opens a store that must be healthy.
pub fn open(dir: &Path) -> Store {
    let Opened { store, damage } = Store::open(dir, options()).unwrap();
    assert_eq!(damage, None);
    store
}

/// A new store of the run.
pub fn create(dir: &Path) -> Store {
    let store = open(dir);
    store.bind_run(&spec_bytes()).unwrap();
    store
}

/// One history of the run, as every honest node has it.
#[derive(Clone)]
pub struct History {
    pub record: Record,
    pub state: State,
}

impl History {
    pub fn genesis(elements: usize) -> Self {
        Self::genesis_in(SyncMode::Rounds, elements)
    }

    /// A genesis in a mode, which fixes the state's vectors; the run is the same.
    pub fn genesis_in(mode: SyncMode, elements: usize) -> Self {
        let theta: Vec<f32> = (0..elements).map(|i| (i % 1009) as f32 * 1e-3 - 0.5).collect();
        let state = State::initial(theta, mode);
        let record = sample::genesis(&spec(), Digest([2; 32]), root(&state), seat(0));
        Self { record, state }
    }

    /// A genesis with its store.
    pub fn founded(dir: &Path, elements: usize) -> (Self, Store) {
        Self::founded_in(SyncMode::Rounds, dir, elements)
    }

    pub fn founded_in(mode: SyncMode, dir: &Path, elements: usize) -> (Self, Store) {
        let history = Self::genesis_in(mode, elements);
        let store = create(dir);
        store.found(&history.record, &SCHEMA, &history.state).unwrap();
        (history, store)
    }

    /// Advances by one record; different salts give different ones. Returns the update that ends in it.
    pub fn advance(&mut self, salt: u32) -> Vec<u8> {
        let round = self.record.round + 1;
        let delta: Vec<f32> = (0..self.state.elements() as u32)
            .map(|i| ((i.wrapping_mul(2_654_435_761) ^ salt ^ round as u32) % 2001) as f32 * 1e-6 - 1e-3)
            .collect();
        let encoded = update::encode(Codec::Int8, &delta).unwrap();
        outer_step(&encoded, &mut self.state).unwrap();
        let mut record = sample::commit(&self.record, 1000, seat(round));
        record.contributors[0].ready = Digest([salt as u8; 32]);
        (record.update, record.state_root) = (update::digest(&encoded), root(&self.state));
        self.record = record;
        encoded
    }

    /// Advances by one record and commits it.
    pub fn commit(&mut self, store: &Store) {
        let update = self.advance(0);
        self.put(store, &update);
    }

    /// Commits the record that [`History::advance`] made.
    pub fn put(&self, store: &Store, update: &[u8]) {
        store.commit(&self.record, Some(update), &self.certificate()).unwrap();
    }

    /// Advances by a record that changes no state: a SKIP, or a FORK into a lineage of its own.
    pub fn advance_unchanged(&mut self, kind: RecordKind) {
        let before = &self.record;
        let (mut lineage, mut merged, mut next) = (before.lineage, before.merged.clone(), before.next.clone());
        if kind == RecordKind::Fork {
            lineage = Digest([before.seq as u8 + 100; 32]);
            merged.push(before.lineage);
            merged.sort_unstable();
            (next.merge_tokens, next.merge_norm_bits) = (0, 0);
        }
        self.record = Record {
            lineage,
            seq: before.seq + 1,
            parent: before.digest(),
            kind,
            base: before.base_or(before.digest()),
            contributors: Vec::new(),
            update: Digest::default(),
            merged,
            next,
            ..before.clone()
        };
    }

    /// Votes for the record, as far as a store checks them.
    pub fn certificate(&self) -> Certificate {
        let record = &self.record;
        let votes = vec![record.seq.to_le_bytes().to_vec()];
        Certificate { lineage: record.lineage, seq: record.seq, record: record.digest(), votes }
    }

    /// The record with its votes, as a link of a path.
    pub fn link(&self) -> Link {
        let certificate = Some(self.certificate()).filter(|_| self.record.kind != RecordKind::Genesis);
        Link { digest: self.record.digest(), record: self.record.clone(), certificate }
    }

    /// The same link without its votes.
    pub fn stone(&self) -> Link {
        Link { certificate: None, ..self.link() }
    }

    /// Adopts the state in a store, along this path to its record.
    pub fn adopt(&self, store: &Store, way: &[Link]) {
        let manifest = self.manifest();
        for digest in store.begin_adopt(&manifest).unwrap() {
            let index = manifest.chunks.iter().position(|chunk| *chunk == digest).unwrap();
            store.put_chunk(&digest, &self.chunk(index)).unwrap();
        }
        store.finish_adopt(&manifest, way).unwrap();
    }

    /// The record as a candidate of an attempt.
    pub fn candidate(&self, attempt: u32) -> Candidate {
        Candidate { key: self.attempt(attempt), record: self.record.clone(), readys: vec![vec![attempt as u8; 40]] }
    }

    /// The vote state of a node that names the record in a ballot.
    pub fn vote_state(&self, ballot: u32) -> VoteState {
        let record = &self.record;
        let value = Value {
            kind: ValueKind::Commit,
            digest: record.digest(),
            tokens: 1000,
            contributors: 1,
            attempt: 0,
            set: Digest([1; 32]),
            members: Vec::new(),
        };
        VoteState {
            incarnation: 9,
            lineage: record.lineage,
            parent: record.parent,
            stamp: Stamp { seq: record.seq, instance: 0, ballot, phase: 1 },
            estimate: Some((ballot, value)),
            vote: None,
        }
    }

    pub fn snapshot(&self, store: &Store) {
        store.write_snapshot(&self.record, &SCHEMA, &self.state).unwrap();
    }

    /// A snapshot for newcomers.
    pub fn snapshot_between(&self, store: &Store) {
        store.write_snapshot_of(SnapshotKind::Between, &self.record, &SCHEMA, &self.state).unwrap();
    }

    pub fn manifest(&self) -> Manifest {
        self.state.manifest(SCHEMA).unwrap()
    }

    pub fn chunk(&self, index: usize) -> Vec<u8> {
        self.state.chunk_bytes(index).unwrap()
    }

    pub fn attempt(&self, attempt: u32) -> AttemptKey {
        AttemptKey { lineage: self.record.lineage, seq: self.record.seq, attempt, set: Digest([attempt as u8; 32]) }
    }

    /// Asserts that the store leads to exactly this state.
    pub fn assert_loaded_from(&self, store: &Store) {
        assert_eq!(store.head().as_ref(), Some(&self.record));
        let loaded = store.load_state(|_, update, state| outer_step(update, state)).unwrap();
        assert_eq!(loaded.record, self.record);
        assert!(same_state(&loaded.state, &self.state));
    }
}

/// The first step of a run in the state's mode.
pub fn outer_step(encoded: &[u8], state: &mut State) -> Result<(), String> {
    let mut decoded = vec![0.0; state.elements()];
    update::decode(Codec::Int8, encoded, &mut decoded).map_err(|e| e.to_string())?;
    let mut spec = spec();
    spec.sync.mode = if state.moments.len() == 1 { SyncMode::Rounds } else { SyncMode::EveryStep };
    let rule = Rule::of(&spec, &History::genesis(1).record, 1);
    if rule.apply(state, &decoded) { Ok(()) } else { Err("not finite".into()) }
}

pub fn same_state(a: &State, b: &State) -> bool {
    a.moments.len() == b.moments.len() && a.vectors().zip(b.vectors()).all(|(a, b)| same_bits(a, b))
}

pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

fn root(state: &State) -> Digest {
    state::root(&state.manifest(SCHEMA).unwrap())
}

/// The only member, with its lease after so many rounds.
fn seat(round: u64) -> Vec<Member> {
    sample::voters([NodeId([7; 32])], 1, 240 * round, 240)
}

/// A folder for one test: in memory where there is room, because these tests sync hundreds of times. `kill` and
/// `checkpoint` use a real disk.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(memory).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
    if room >= 512 << 20 { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// The remains of a kill at this moment: a copy of the folder as the page cache has it.
pub fn image(from: &Path) -> tempfile::TempDir {
    loop {
        let copy = scratch();
        match try_copy(from, copy.path()) {
            Ok(()) => return copy,
            // RocksDB removes files in the background: copy again.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => panic!("{e}"),
        }
    }
}

pub fn copy_dir(from: &Path, to: &Path) {
    try_copy(from, to).unwrap();
}

fn try_copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            try_copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// All files under `dir`, sorted.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Flips one bit of a file.
pub fn flip(path: &Path, bit: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(path, bytes).unwrap();
}
