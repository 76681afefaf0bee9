//! Messages and commits that the driver holds until a write is on disk.

use crate::watch::event::Committed;
use starling_protocol::NodeId;
use starling_protocol::engine::io::PersistToken;
use std::collections::BTreeMap;

/// Sends that may wait; the engine has a handful of writes under way.
const HELD_MAX: usize = 4096;

/// Messages and commits, by the write that they wait for.
#[derive(Default)]
pub struct Undurable {
    /// Messages, in the order of sending.
    sends: BTreeMap<PersistToken, Vec<(NodeId, Vec<u8>)>>,
    /// Commits that are shown once they are on disk.
    commits: BTreeMap<PersistToken, Committed>,
}

impl Undurable {
    pub fn hold(&mut self, token: PersistToken, to: NodeId, bytes: Vec<u8>) {
        let held: usize = self.sends.values().map(Vec::len).sum();
        if held < HELD_MAX {
            self.sends.entry(token).or_default().push((to, bytes));
        } else {
            metrics::counter!("starling_refused_total", "reason" => "held_sends_full").increment(1);
        }
    }

    pub fn hold_commit(&mut self, token: PersistToken, committed: Committed) {
        self.commits.insert(token, committed);
    }

    /// Releases the messages and the commit of a write that is on disk.
    pub fn release(&mut self, token: PersistToken) -> (Vec<(NodeId, Vec<u8>)>, Option<Committed>) {
        (self.sends.remove(&token).unwrap_or_default(), self.commits.remove(&token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_send_waits_for_its_own_write_and_no_more_than_fit() {
        let (mut held, to) = (Undurable::default(), NodeId([1; 32]));
        for n in 0..=HELD_MAX {
            held.hold(PersistToken(n as u64 % 2), to, n.to_le_bytes().to_vec());
        }
        let (sends, shown) = held.release(PersistToken(1));
        assert!(shown.is_none());
        assert_eq!(sends.len(), HELD_MAX / 2);
        assert!(sends.is_sorted_by_key(|(_, bytes)| usize::from_le_bytes(bytes.as_slice().try_into().unwrap())));
        let (sends, _) = held.release(PersistToken(0));
        assert_eq!(sends.len(), HELD_MAX / 2, "the one too many is dropped");
        assert!(held.release(PersistToken(1)).0.is_empty());
    }
}
