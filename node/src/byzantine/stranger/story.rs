//! The story of one identity: a head, records and snapshots.

use crate::config::model_table::model_config;
use crate::net::fetch::Link;
use starling_protocol::message::{Certificate, Head, Phase, Pulse};
use starling_protocol::record::Record;
use starling_protocol::run::RunSpec;
use starling_protocol::state::{self, State};
use starling_protocol::{Digest, wire};
use std::collections::BTreeMap;

/// A head, and the data that is served with it.
#[derive(Clone)]
pub struct Story {
    pub head: Head,
    /// Records with their certificates, encoded.
    pub links: BTreeMap<u64, Link>,
    /// Whether missing records are invented, in the lineage of the head.
    pub invents: bool,
    /// Snapshots by the number of their record.
    pub snapshots: Vec<(u64, Vec<u8>)>,
    pub chunks: BTreeMap<Digest, Vec<u8>>,
    /// Certificates that every greeted node is sent besides.
    pub shown: Vec<Certificate>,
}

impl Story {
    /// A story of this newest head alone.
    pub fn of(head: Head) -> Self {
        Self {
            head,
            links: BTreeMap::new(),
            invents: false,
            snapshots: Vec::new(),
            chunks: BTreeMap::new(),
            shown: Vec::new(),
        }
    }

    pub fn add(&mut self, record: &Record, certificate: Option<&Certificate>) {
        let votes = certificate.map_or(Vec::new(), wire::encode_certificate);
        self.links.insert(record.seq, (wire::encode_record(record), votes));
    }
}

/// A Head of a node that seems to train.
pub fn head(lineage: Digest, seq: u64, record: Digest, tokens: u64) -> Head {
    Head { lineage, seq, record, tokens, phase: Phase::Training, progress: 1, awaits: None, pulse: Pulse::default() }
}

/// A state of zeros.
pub struct Blank {
    pub root: Digest,
    manifest: Vec<u8>,
    chunks: BTreeMap<Digest, Vec<u8>>,
}

impl Blank {
    pub fn new(spec: &RunSpec) -> Option<Self> {
        let model = model_config(&spec.model);
        let zeros = State::initial(vec![0.0; usize::try_from(model.parameters()).ok()?], spec.sync.mode);
        let manifest = zeros.manifest(Digest(model.schema().digest())).ok()?;
        let chunks =
            manifest.chunks.iter().enumerate().filter_map(|(n, digest)| Some((*digest, zeros.chunk_bytes(n)?)));
        Some(Self { root: state::root(&manifest), manifest: manifest.encode(), chunks: chunks.collect() })
    }

    /// A story whose snapshot, with the number `snapshot`, is this state.
    pub fn of(&self, record: &Record, tokens: u64, snapshot: u64) -> Story {
        let story = Story::of(head(record.lineage, record.seq, record.digest(), tokens));
        Story { snapshots: vec![(snapshot, self.manifest.clone())], chunks: self.chunks.clone(), ..story }
    }
}
