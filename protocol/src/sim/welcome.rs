//! Admission as the simulator judges it: a node's right to be in the flock, and revocations by the run's creator.

use super::gate::CREATOR;
use super::world::World;
use crate::Digest;
use crate::admission::{Revocation, SubjectKind};
use crate::engine::io::Input;
use crate::record::Record;

impl World {
    /// Whether this node is a member of the flock whose head is `record`, or can become one.
    pub fn belongs(&self, node: usize, record: &Record) -> bool {
        let id = self.keys.id(node);
        let welcome = || {
            let revoked = record.revoked.contains(&Digest(id.0));
            !revoked && self.gate.lets_in(node, record) && self.gate.has_uses(node, record)
        };
        record.member(&id).is_some() || welcome()
    }

    /// The creator tells one node that another, or the ticket that it came with, is revoked.
    pub(super) fn revoke(&mut self, told: usize, whom: usize, ticket: bool) {
        let Some(creator) = self.spec.creator.is_some().then(|| self.keys.signer(CREATOR)) else { return };
        // Some node has to be left.
        if whom < self.options.founders || !self.nodes[told].working() {
            return;
        }
        let (kind, subject) = match self.gate.pass(whom).filter(|_| ticket) {
            Some(pass) => (SubjectKind::Ticket, pass.grant),
            None => (SubjectKind::Identity, Digest(self.keys.id(whom).0)),
        };
        self.gate.revoked.insert(subject);
        self.marks.hit("admission revoked");
        let revocation = Revocation::sign(creator.as_ref(), &self.run, kind, subject);
        self.feed(told, Input::Revoke { revocation });
    }
}
