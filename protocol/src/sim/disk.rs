//! A node's disk: its content survives, writes under way may not.

use super::trainer::State;
use crate::Digest;
use crate::NodeId;
use crate::amendment::Amendment;
use crate::ancestry::Ancestry;
use crate::difference::Difference;
use crate::engine::{Candidate, VoteState};
use crate::message::{Certificate, Evidence};
use crate::record::{Record, RecordKind};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A record with its digest and the proof of it.
#[derive(Clone, Debug)]
pub struct Link {
    pub record: Rc<Record>,
    pub digest: Digest,
    pub certificate: Option<Rc<Certificate>>,
}

/// A result that was written before it was named in a vote.
#[derive(Clone, Debug)]
pub struct Held {
    pub candidate: Rc<Candidate>,
    pub update: Rc<Vec<u8>>,
}

/// The difference that is kept on a disk.
#[derive(Clone, Debug)]
pub struct Kept {
    pub difference: Difference,
    pub vector: Rc<Vec<f32>>,
    pub norm: f64,
}

/// The content of a disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// The chain up to the head.
    pub chain: Vec<Link>,
    /// The canonical state of the head.
    pub state: Option<Rc<State>>,
    pub vote_state: Option<VoteState>,
    pub candidates: Vec<Held>,
    /// Evidence, by the node that it is against.
    pub evidence: BTreeMap<NodeId, Evidence>,
    /// The last FORK record that was the node's head, and its state.
    pub base: Option<(Rc<Record>, Rc<State>)>,
    /// The difference of a lineage that gave way.
    pub difference: Option<Kept>,
    /// The newest amendment that the node's operator has handed in.
    pub amendment: Option<Amendment>,
}

/// One batch of writes: on the disk as a whole, or not at all.
#[derive(Clone, Debug)]
pub enum Write {
    Found {
        link: Link,
        state: Rc<State>,
    },
    Vote {
        vote_state: Box<VoteState>,
        candidate: Option<Held>,
    },
    /// Without a state, the one on the disk stays.
    Commit {
        link: Link,
        state: Option<Rc<State>>,
    },
}

impl Link {
    pub fn new(record: Record, certificate: Option<Certificate>) -> Self {
        Self { digest: record.digest(), record: Rc::new(record), certificate: certificate.map(Rc::new) }
    }
}

impl Disk {
    pub fn apply(&mut self, write: Write) {
        match write {
            Write::Found { link, state } => (self.chain, self.state) = (vec![link], Some(state)),
            Write::Vote { vote_state, candidate } => {
                self.vote_state = Some(*vote_state);
                self.candidates.extend(candidate);
            }
            Write::Commit { link, state } => {
                if link.record.kind == RecordKind::Fork {
                    self.base = self.state.clone().map(|state| (Rc::clone(&link.record), state));
                }
                self.chain.push(link);
                self.state = state.or(self.state.take());
                self.candidates.clear();
            }
        }
    }

    /// Certificates of the records before the head, the newest first.
    pub fn past_certificates(&self) -> impl Iterator<Item = &Certificate> + '_ {
        self.chain.iter().rev().skip(1).filter_map(|link| link.certificate.as_deref())
    }

    /// The way to the head.
    pub fn ancestry(&self) -> Ancestry {
        Ancestry::of(self.chain.iter().map(|link| link.record.as_ref()))
    }

    pub fn head(&self) -> Option<&Link> {
        self.chain.last()
    }
}
