//! S8: the update of a commit is the reference reduction of its contributors' vectors, bit for bit, and its state is
//! the outer step with the decoded update. Gradients are of the state that they step.

use super::{Invariant, Observed, require};
use crate::engine::io::Contribution;
use crate::message::Message;
use crate::outer::Rule;
use crate::record::{Record, RecordKind};
use crate::run::SyncMode;
use crate::sim::disk::Write;
use crate::sim::network::kind;
use crate::sim::trainer::{self, State};
use crate::sim::world::World;
use crate::update::Stated;
use crate::{Digest, update};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

#[derive(Default)]
pub(super) struct Exact {
    vectors: BTreeMap<Digest, Rc<Vec<f32>>>,
    /// The records from whose state vectors were trained.
    bases: BTreeMap<Digest, Digest>,
    /// Payload of a READY, and the tokens that it counts for beside its own.
    readys: BTreeMap<Digest, (Digest, u64)>,
    states: BTreeMap<Digest, Rc<State>>,
    done: BTreeSet<Digest>,
}

impl Invariant for Exact {
    fn name(&self) -> &'static str {
        "S8 exact result"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Mixed { mixed, .. } => drop(self.vectors.insert(mixed.payload, Rc::clone(&mixed.vector))),
            Observed::Trained { offer, .. } => {
                self.vectors.insert(offer.payload, Rc::clone(&offer.vector));
                self.bases.insert(offer.payload, offer.base);
            }
            Observed::Sent { bytes, .. } if kind(bytes) == "ready" => self.note(bytes, world),
            Observed::Stored { write: Write::Vote { candidate: Some(held), .. }, .. } => {
                // A node that is alone with a READY tells it to nobody.
                held.candidate.readys.iter().for_each(|bytes| self.note(bytes, world));
            }
            Observed::Stored {
                write: Write::Found { link, state } | Write::Commit { link, state: Some(state) },
                ..
            } => {
                if link.record.kind == RecordKind::Commit && self.done.insert(link.digest) {
                    self.check(&link.record, state, world)?;
                }
                self.states.entry(link.digest).or_insert_with(|| Rc::clone(state));
            }
            _ => {}
        }
        Ok(())
    }
}

impl Exact {
    fn note(&mut self, bytes: &[u8], world: &World) {
        let Some(opened) = world.open(bytes) else { return };
        if let Message::Ready(ready) = opened.message {
            self.readys.insert(opened.digest, (ready.payload, ready.merged_tokens));
        }
    }

    fn check(&self, record: &Record, state: &State, world: &World) -> Result<(), String> {
        let seq = record.seq;
        let by_id: BTreeMap<_, _> = record.contributors.iter().map(|c| (c.member, c)).collect();
        let base = world.nodes.iter().flat_map(|node| node.disk.chain.iter()).find(|link| link.digest == record.parent);
        // The parent determines the order: if no node holds it any more, the order is unknown.
        let Some(head) = base else { return Ok(()) };
        let order = head.record.ring_of(&record.parent, by_id.keys().copied());
        let contributors: Vec<_> = order.iter().filter_map(|id| by_id.get(id)).collect();
        let payloads: Option<Vec<(Digest, u64)>> =
            contributors.iter().map(|c| self.readys.get(&c.ready).copied()).collect();
        let payloads = payloads.ok_or(format!("seq {seq}: a READY that nobody said"))?;
        let vectors: Option<Vec<_>> = payloads.iter().map(|(payload, _)| self.vectors.get(payload).cloned()).collect();
        let vectors = vectors.ok_or(format!("seq {seq}: a contribution that nobody trained"))?;
        let members: Vec<Contribution> = contributors
            .iter()
            .zip(&payloads)
            .map(|(c, (payload, more))| {
                let norm = f32::from_bits(c.measured.norm_bits);
                let stated = Stated { tokens: c.tokens + more, steps: c.steps, norm };
                Contribution { member: c.member, stated, payload: *payload }
            })
            .collect();
        let bytes = trainer::reduce(world.spec.sync.codec, &members, &vectors).ok_or("no reduction")?;
        require(update::digest(&bytes) == record.update, || format!("seq {seq}: not the reference reduction"))?;
        let mode = world.spec.sync.mode;
        if let Some(made) = base
            .filter(|_| mode == SyncMode::EveryStep || world.spec.sync.fragments > 1)
            .map(|link| link.record.base_or(link.digest))
        {
            let stale = payloads.iter().any(|(payload, _)| self.bases.get(payload) != Some(&made));
            require(!stale, || {
                format!("seq {seq}: a gradient of another state, or another fragment of one, is averaged")
            })?;
        }
        let before = base.and_then(|link| self.states.get(&link.record.base_or(link.digest)));
        let Some(before) = before.filter(|_| !world.tainted.contains(&record.digest())) else { return Ok(()) };
        let Some(parent) = base else { return Ok(()) };
        let rule = Rule::of(&world.spec, &parent.record, members.len());
        let after = before.step(&world.spec.sync, record.round, &bytes, &rule);
        let exact = after.is_some_and(|after| after.root == state.root && after.root == record.state_root);
        require(exact, || format!("seq {seq}: the state is not that of the decoded update"))
    }
}
