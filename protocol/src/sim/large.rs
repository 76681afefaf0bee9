//! Flocks of more than 31 or 62 members: the cap of voters, the tree of certificates and the large mode meet faults.
//! Such a flock wakes up on a first record that names all, as after a power cut: gathering would take dozens of
//! records.

use super::disk::{Disk, Link, Write};
use super::invariant::Observed;
use super::trainer::State;
use super::world::World;
use crate::engine::{VoteState, succession};
use crate::message::Stamp;
use crate::record::{Record, Role};
use crate::scale::scale;
use crate::{NodeId, sample};
use std::rc::Rc;

/// The incarnation of all vote states in such a flock.
const INCARNATION: u64 = 1;

impl World {
    /// Puts a first record with all nodes on all disks; false if there can be none.
    pub(super) fn wake_all(&mut self) -> bool {
        let state = State::initial(self.spec.sync.mode);
        let Some(record) = self.first_of_all(state.root).filter(|record| record.validate_shape().is_ok()) else {
            return false;
        };
        let link = Link::new(record, None);
        let write = Write::Found { link: link.clone(), state: Rc::clone(&state) };
        self.observe(&Observed::Stored { node: 0, write: &write });
        for node in &mut self.nodes {
            let (lineage, parent, stamp) = (link.record.lineage, link.digest, Stamp::default());
            let vote_state = VoteState { incarnation: INCARNATION, lineage, parent, stamp, estimate: None, vote: None };
            let (chain, state) = (vec![link.clone()], Some(Rc::clone(&state)));
            node.disk = Disk { chain, state, vote_state: Some(vote_state), ..Disk::default() };
        }
        true
    }

    /// A first record with all nodes as members, and as many voters as there may be.
    fn first_of_all(&self, state_root: crate::Digest) -> Option<Record> {
        let mut ids: Vec<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        ids.sort_unstable();
        let founder = (*ids.first()?, INCARNATION);
        let mut record = succession::genesis(self.run, &self.spec, founder, 0, state_root)?;
        let count = record.next.members.first()?.lease.count;
        record.cursor = ids.len() as u64 * count;
        record.next.members = sample::voters(ids, INCARNATION, 0, count);
        for learner in record.next.members.iter_mut().skip(scale().voters) {
            learner.role = Role::Learner;
        }
        sample::seat(&mut record.next.members);
        Some(record)
    }
}
