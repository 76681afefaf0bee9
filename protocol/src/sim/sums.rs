//! The finished sums that a process holds of attempts that have failed, and in a flock of several rows also the parts.
//! They die with the process.

use super::circuit::{Got, Held, What};
use super::lattice::Store;
use crate::engine::io::{AttemptKey, Contribution};
use crate::update::kept::{Kept, Sum};
use crate::{Digest, NodeId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A part, with the payload of the READY that it is of.
type Part = (Digest, Rc<Vec<u8>>);

/// The sums of one record.
#[derive(Debug, Default)]
pub struct Sums {
    pub kept: Kept,
    /// The bytes of each chunk; they count only where the sum is finished.
    payloads: Vec<Held>,
    /// By chunk and member.
    parts: BTreeMap<(usize, NodeId), Part>,
    /// The payload of each member's READY in the attempt at hand.
    offers: BTreeMap<NodeId, Digest>,
}

impl Sums {
    /// Begins an attempt, as a node does.
    pub fn begin(&mut self, key: AttemptKey, members: &[Contribution], chunks: usize) {
        if !self.kept.is_past(&key) {
            if !self.kept.is_followed_by(&key) {
                self.parts.clear();
            }
            let is_of =
                |member: &NodeId, part: &Digest| members.iter().any(|c| c.member == *member && c.payload == *part);
            self.parts.retain(|(_, member), (part, _)| is_of(member, part));
            self.offers = members.iter().map(|c| (c.member, c.payload)).collect();
            self.kept.begin(key, members, None, chunks);
            self.payloads.resize(chunks, None);
        }
    }

    /// Takes what the attempt has given to its member `me`.
    pub fn take(&mut self, key: &AttemptKey, me: NodeId, got: &[Got]) {
        if self.kept.key() != Some(*key) {
            return;
        }
        for Got { chunk, what, payload } in got {
            let sum = match what {
                What::Partial => None,
                What::Sum(from) => Some(Sum { from: from.unwrap_or(me), attempt: key.attempt }),
                What::RowSum => continue,
                What::Part(member) => {
                    if let Some(offer) = self.offers.get(member) {
                        self.parts.insert((*chunk, *member), (*offer, Rc::clone(payload)));
                    }
                    continue;
                }
            };
            if self.kept.put(*chunk, sum)
                && let Some(held) = self.payloads.get_mut(*chunk)
            {
                *held = Some(Rc::clone(payload));
            }
        }
    }

    /// The finished sums with the members that have made them, by chunk, and the parts.
    pub fn store(&self) -> Store {
        let sum = |(chunk, payload): (usize, Held)| Some((self.kept.sum(chunk)?.from, payload?));
        let parts = self.parts.iter().map(|(of, (_, payload))| (*of, Rc::clone(payload))).collect();
        Store { sums: self.finished().into_iter().enumerate().map(sum).collect(), parts }
    }

    /// The bytes of the finished sums, by chunk.
    pub fn finished(&self) -> Vec<Held> {
        let is_finished = |chunk: usize| self.kept.sum(chunk).is_some();
        let held = |(chunk, payload): (usize, &Held)| payload.clone().filter(|_| is_finished(chunk));
        self.payloads.iter().enumerate().map(held).collect()
    }
}
