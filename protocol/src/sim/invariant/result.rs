//! S8: the update of a commit is the reference reduction of its contributors' vectors, in a ring or over rows, bit for
//! bit, and its state is the outer step with the decoded update. A chunk may be the sum of an earlier attempt at the
//! record instead, if the contributors offered the same there. Gradients are of the state that they step.

use super::{Invariant, Observed, require};
use crate::engine::io::{AttemptKey, Contribution, Output};
use crate::message::Message;
use crate::outer::Rule;
use crate::record::{Record, RecordKind};
use crate::run::{Codec, SyncMode};
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
    /// The contributors of all attempts that were begun at a place of a lineage.
    attempts: BTreeMap<(Digest, u64), BTreeMap<AttemptKey, Vec<Contribution>>>,
    /// Updates that voters have named.
    updates: BTreeMap<Digest, Rc<Vec<u8>>>,
    done: BTreeSet<Digest>,
}

/// The parts of an attempt's chunks.
enum Sums {
    /// Weighted, in ring order.
    Ring(Vec<Vec<f32>>),
    /// By ascending id, each with its row and its weight.
    Rows(Vec<(usize, f32, Rc<Vec<f32>>)>),
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
            Observed::Outputs { outputs, .. } => outputs.iter().for_each(|output| self.begun(output)),
            Observed::Sent { bytes, .. } if kind(bytes) == "ready" => self.note(bytes, world),
            Observed::Stored { write: Write::Vote { candidate: Some(held), .. }, .. } => {
                // A node that is alone with a READY tells it to nobody.
                held.candidate.readys.iter().for_each(|bytes| self.note(bytes, world));
                self.updates.insert(held.candidate.record.update, Rc::clone(&held.update));
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

    fn begun(&mut self, output: &Output) {
        if let Output::Reduce { key, members, .. } = output {
            let attempts = self.attempts.entry((key.lineage, key.seq)).or_default();
            attempts.entry(*key).or_insert_with(|| members.clone());
        }
    }

    /// The update of a record that was not made of its contributors alone: each chunk is their sum, or that of an
    /// attempt at this record in which all of them offered the same.
    fn kept(&self, (record, head): (&Record, &Record), members: &[Contribution], codec: Codec) -> Option<Rc<Vec<u8>>> {
        let update = self.updates.get(&record.update)?;
        let attempts = self.attempts.get(&(record.lineage, record.seq)).filter(|attempts| attempts.len() > 1)?;
        let fits = |attempt: &&Vec<Contribution>| members.iter().all(|member| attempt.contains(member));
        let sets: Vec<&Vec<Contribution>> = attempts.values().filter(fits).collect();
        let sums: Option<Vec<Sums>> = sets.iter().map(|set| self.sums_of(set, head)).collect();
        let sums = sums?;
        let elements = self.vectors.get(&members.first()?.payload)?.len();
        let is_sum = |chunk: usize| {
            let payload = trainer::payload(codec, update, chunk, elements);
            let of_set = |set: &Sums| match set {
                Sums::Ring(set) => {
                    (0..set.len()).any(|last| trainer::summed(codec, set, chunk, last).as_deref() == payload)
                }
                Sums::Rows(set) => trainer::crossed(codec, set, chunk).as_deref() == payload,
            };
            payload.is_some() && sums.iter().any(of_set)
        };
        (0..trainer::chunks(elements)).all(is_sum).then(|| Rc::clone(update))
    }

    /// The contributions of an attempt at the record after this one, as the reference adds them up.
    fn sums_of(&self, members: &[Contribution], head: &Record) -> Option<Sums> {
        let vectors: Option<Vec<Rc<Vec<f32>>>> =
            members.iter().map(|member| self.vectors.get(&member.payload).cloned()).collect();
        let vectors = vectors?;
        if head.rows() <= 1 {
            return Some(Sums::Ring(trainer::weighted(members, &vectors)));
        }
        let weights = Contribution::weights(members);
        let mut by_id = Vec::new();
        for ((member, weight), vector) in members.iter().zip(weights).zip(vectors) {
            by_id.push((member.member, (head.member(&member.member)?.cell.row(), weight, vector)));
        }
        by_id.sort_by_key(|(id, _)| *id);
        Some(Sums::Rows(by_id.into_iter().map(|(_, part)| part).collect()))
    }

    /// The update of these contributions.
    fn reference(&self, members: &[Contribution], head: &Record, codec: Codec) -> Option<Vec<u8>> {
        let vectors = members.iter().map(|member| self.vectors.get(&member.payload).cloned());
        let vectors = vectors.collect::<Option<Vec<_>>>()?;
        match self.sums_of(members, head)? {
            Sums::Ring(_) => trainer::reduce(codec, members, &vectors),
            Sums::Rows(set) => {
                let chunks = trainer::chunks(vectors.first()?.len());
                let sums: Option<Vec<Vec<u8>>> = (0..chunks).map(|c| trainer::crossed(codec, &set, c)).collect();
                Some(sums?.concat())
            }
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
        let trained = payloads.iter().all(|(payload, _)| self.vectors.contains_key(payload));
        require(trained, || format!("seq {seq}: a contribution that nobody trained"))?;
        let members: Vec<Contribution> = contributors
            .iter()
            .zip(&payloads)
            .map(|(c, (payload, more))| {
                let norm = f32::from_bits(c.measured.norm_bits);
                let stated = Stated { tokens: c.tokens + more, steps: c.steps, norm };
                Contribution { member: c.member, stated, payload: *payload }
            })
            .collect();
        let codec = head.record.next.codec;
        let bytes = self.reference(&members, &head.record, codec).ok_or("no reduction")?;
        let bytes = Some(Rc::new(bytes)).filter(|bytes| update::digest(bytes) == record.update);
        let bytes = bytes.or_else(|| self.kept((record, &head.record), &members, codec));
        let bytes = bytes.ok_or_else(|| format!("seq {seq}: not the reference reduction"))?;
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
        let after = before.step(&world.spec.sync, (record.round, codec), &bytes, &rule);
        let exact = after.is_some_and(|after| after.root == state.root && after.root == record.state_root);
        require(exact, || format!("seq {seq}: the state is not that of the decoded update"))
    }
}
