//! The names that connected peers have given themselves.

use starling_protocol::NodeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names that are kept; more peers are hardly connected at a time.
const NAMES_MAX: usize = 1024;

/// The names by peer; clones share them.
#[derive(Clone, Debug, Default)]
pub struct PeerNames(Arc<Mutex<BTreeMap<NodeId, String>>>);

impl PeerNames {
    /// The peer has said what it is, with this name, which is fit to be shown.
    pub fn said(&self, peer: NodeId, name: Option<String>) {
        let mut names = self.names();
        match name {
            None => drop(names.remove(&peer)),
            Some(name) if names.len() < NAMES_MAX || names.contains_key(&peer) => drop(names.insert(peer, name)),
            Some(_) => {}
        }
    }

    /// The last connection to the peer has ended.
    pub fn left(&self, peer: &NodeId) {
        self.names().remove(peer);
    }

    pub fn of(&self, peer: &NodeId) -> Option<String> {
        self.names().get(peer).cloned()
    }

    /// No statement leaves them half-changed, so the content of a poisoned lock is still good.
    fn names(&self) -> MutexGuard<'_, BTreeMap<NodeId, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> NodeId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(n as u64).to_le_bytes());
        NodeId(bytes)
    }

    #[test]
    fn names_come_and_go_with_their_peers() {
        let names = PeerNames::default();
        let shared = names.clone();
        names.said(id(1), Some("attic".into()));
        assert_eq!((shared.of(&id(1)), shared.of(&id(2))), (Some("attic".into()), None));
        names.said(id(1), Some("cellar".into()));
        assert_eq!(shared.of(&id(1)), Some("cellar".into()));
        names.said(id(1), None);
        assert_eq!(shared.of(&id(1)), None, "it has no name any more");
        names.said(id(1), Some("attic".into()));
        names.left(&id(1));
        assert_eq!(shared.of(&id(1)), None);
    }

    #[test]
    fn no_flood_of_names_takes_memory() {
        let names = PeerNames::default();
        (0..2 * NAMES_MAX).for_each(|n| names.said(id(n), Some("x".into())));
        assert_eq!(names.names().len(), NAMES_MAX);
        names.said(id(0), Some("y".into()));
        assert_eq!(names.of(&id(0)), Some("y".into()), "a known peer changes its name");
    }
}
