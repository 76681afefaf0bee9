//! The strangers of a history: their identities and connections, and the material that they forge with.

use super::disk::Link;
use super::keys::Keys;
use super::network::kind;
use super::options::Options;
use crate::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The keys of strangers begin here, beyond those of nodes and of the run's creator.
pub const KEYS: usize = 1 << 21;

/// All strangers of a history.
#[derive(Debug, Default)]
pub struct Strangers {
    pub ids: Vec<NodeId>,
    /// The nodes to which each stranger is connected.
    pub connected: BTreeSet<(usize, usize)>,
    /// The newest message of each kind that each node has sent to strangers, to be twisted and said again.
    pub said: BTreeMap<(usize, &'static str), Rc<Vec<u8>>>,
    /// The chain on which each stranger claims its head.
    pub chains: BTreeMap<usize, Vec<Link>>,
    pub thrown: usize,
}

impl Strangers {
    pub fn of(options: &Options, keys: &Keys) -> Self {
        Self { ids: (0..options.strangers).map(|k| keys.signer(KEYS + k).id()).collect(), ..Self::default() }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub fn place(&self, id: &NodeId) -> Option<usize> {
        self.ids.iter().position(|stranger| stranger == id)
    }

    /// Keeps a message that a node has sent to a stranger. Returns whether the receiver is one.
    pub fn hears(&mut self, node: usize, to: &NodeId, bytes: &[u8]) -> bool {
        let stranger = self.place(to).is_some();
        if stranger {
            self.said.insert((node, kind(bytes)), Rc::new(bytes.to_vec()));
        }
        stranger
    }
}
