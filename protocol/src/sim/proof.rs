//! Claims of a head, checked as a node's driver does: a path from a record that the node holds, read from the peer's
//! disk and checked link by link.

use super::MS;
use super::disk::Link;
use super::world::{Event, World};
use crate::ancestry::Ancestry;
use crate::certificate::Split;
use crate::engine::CLAIMS_MAX;
use crate::engine::io::{Claim, Input, Proven};
use crate::path::{self, Chain, Root};
use crate::run::AdmissionMode;
use crate::{Digest, NodeId};

/// A path that leads off the node's own chain.
const APART: &str = "its path is not known to keep to this node's chain";

/// A disk's chain, as paths are read from it.
pub(super) struct Links<'a> {
    chain: &'a [Link],
    ancestry: Ancestry,
}

impl<'a> Links<'a> {
    pub fn of(chain: &'a [Link]) -> Self {
        Self { chain, ancestry: Ancestry::of(chain.iter().map(|link| link.record.as_ref())) }
    }

    fn place(&self, seq: u64) -> Result<usize, usize> {
        self.chain.binary_search_by_key(&seq, |link| link.record.seq)
    }
}

impl Chain for Links<'_> {
    fn at(&self, seq: u64) -> Option<path::Link> {
        let link = self.chain.get(self.place(seq).ok()?)?;
        let certificate = link.certificate.as_deref().cloned();
        Some(path::Link { record: (*link.record).clone(), digest: link.digest, certificate })
    }

    fn newest(&self, seq: u64) -> Option<u64> {
        let at = self.place(seq).map_or_else(|after| after.checked_sub(1), Some)?;
        self.chain.get(at).map(|link| link.record.seq)
    }

    fn ancestry(&self) -> &Ancestry {
        &self.ancestry
    }
}

impl World {
    pub(super) fn prove(&mut self, node: usize, peer: &NodeId, (seq, record): (u64, Digest), foreign: bool) {
        // Asking takes one small round trip.
        let after = self.random.between(5, 100) * MS;
        let (mut job, mut busy) = (0, 0);
        self.process(node, |process| {
            job = process.job();
            process.proving.insert(job);
            busy = process.proving.len();
        });
        if busy > CLAIMS_MAX {
            self.violate("S19 resources", format!("node {node} looks at {busy} claims at a time"));
        }
        self.schedule_own(after, node, Event::Proved { job, source: *peer, seq, record, foreign });
    }

    pub(super) fn proved(
        &mut self,
        node: usize,
        (job, peer): (u64, NodeId),
        (seq, record): (u64, Digest),
        foreign: bool,
    ) {
        let mut current = false;
        self.process(node, |process| current = process.proving.remove(&job));
        if !current {
            return;
        }
        let known = path::locator(&Links::of(&self.nodes[node].disk.chain));
        let outcome = match self.shown(node, &peer, &known, seq) {
            Some(shown) => self.judge(node, &peer, &shown, record, foreign),
            None => Claim::Open { why: "nothing came".to_owned() },
        };
        let split = match &outcome {
            Claim::Open { why } if why == APART => self.apart_from(node, &peer),
            _ => None,
        };
        match &outcome {
            Claim::Proven(_) => self.marks.hit("claim proven"),
            Claim::Open { .. } => self.marks.hit("claim open"),
            Claim::False { .. } => self.marks.hit("false claim"),
            // Histories have one founder, and strangers.
            Claim::Foreign => {}
        }
        self.feed(node, Input::Claim { peer, record, outcome });
        if let Some(split) = split {
            self.feed(node, Input::Contradicted { split: Box::new(split) });
        }
    }

    /// The proof that the peer's chain contradicts the node's.
    fn apart_from(&self, node: usize, peer: &NodeId) -> Option<Split> {
        let source = self.keys.index(peer)?;
        self.split_from(node, &self.nodes[source].disk.chain)
    }

    /// The answer of a peer that is asked for a path to the record of this number.
    fn shown(&mut self, node: usize, peer: &NodeId, known: &[(u64, Digest)], seq: u64) -> Option<Vec<path::Link>> {
        let Some(source) = self.keys.index(peer) else {
            // In an open run a newcomer follows the first node that it meets, and nothing keeps it from meeting a
            // stranger.
            let led = known.is_empty() && self.spec.admission.mode == AdmissionMode::Open;
            let chain = if led { Vec::new() } else { self.stranger_answers(peer) };
            return path::build(&Links::of(&chain), known, seq);
        };
        let breaks = self.breaks();
        if breaks || !self.network.connected(node, source) || !self.nodes[source].alive() {
            return None;
        }
        let shown = path::build(&Links::of(&self.nodes[source].disk.chain), known, seq);
        self.forged(source, shown)
    }

    /// The outcome of the claim after this answer.
    fn judge(&self, node: usize, by: &NodeId, shown: &[path::Link], record: Digest, foreign: bool) -> Claim {
        let own = Links::of(&self.nodes[node].disk.chain);
        let begins = shown.first().and_then(|first| Some((first, own.at(first.record.seq)?)));
        let root = match begins.filter(|(first, mine)| first.digest == mine.digest) {
            Some(_) => Root::Held(own.ancestry()),
            None if foreign => Root::Founder,
            None => return Claim::Foreign,
        };
        match path::verify(self.verifier.as_ref(), &self.spec, &self.run, (root, by), shown) {
            Err(why) if why.is_lie() => Claim::False { why: why.reason() },
            Err(why) => Claim::Open { why: why.to_string() },
            Ok(_) if matches!(root, Root::Held(_)) && path::keeps_to(&own, shown).is_err() => {
                Claim::Open { why: APART.to_owned() }
            }
            Ok(ancestry) => match shown.last().filter(|last| last.digest == record) {
                Some(last) => Claim::Proven(Proven::of(&last.record, record, ancestry)),
                None => Claim::Open { why: "it stands elsewhere by now".to_owned() },
            },
        }
    }

    /// The path of a liar: shortened, bent, or without votes.
    fn forged(&mut self, source: usize, shown: Option<Vec<path::Link>>) -> Option<Vec<path::Link>> {
        let mut shown = shown?;
        if self.calm || self.nodes[source].liar.is_none() || self.random.chance(50) {
            return Some(shown);
        }
        self.marks.hit("forged path");
        let at = self.random.draw() as usize % shown.len();
        match self.random.between(0, 3) {
            0 => drop(shown.remove(at)),
            1 => shown.swap(0, at),
            2 => shown[at].certificate = None,
            _ => {
                let link = &mut shown[at];
                link.record.tokens ^= 1;
                link.digest = link.record.digest();
            }
        }
        Some(shown)
    }
}
