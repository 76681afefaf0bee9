//! Fetches from other nodes' disks: states with the chain that proves them, and results of attempts.

use super::MS;
use super::disk::Link;
use super::invariant::Observed;
use super::process::Catching;
use super::sums::Sums;
use super::world::{Event, World};
use crate::certificate::Split;
use crate::engine::io::{AttemptKey, Input};
use crate::mutation::{Mutation, mutated};
use crate::{Digest, NodeId, certificate};
use std::rc::Rc;

impl World {
    /// Whether the fetch under way fails.
    pub(super) fn breaks(&mut self) -> bool {
        let percent = self.options.failing_fetches;
        !self.calm && percent > 0 && self.random.chance(percent)
    }

    pub(super) fn catch_up(&mut self, node: usize, target: Digest, sources: &[NodeId], afresh: bool) {
        let sources: Vec<usize> = sources.iter().filter_map(|id| self.keys.index(id)).collect();
        let Some(source) = self.random.pick(&sources) else {
            return self.violate("L4 one head", format!("node {node} catches up from nobody"));
        };
        let after = if afresh { self.random.between(100, 3_000) } else { self.random.between(20, 600) } * MS;
        let mut started = None;
        self.process(node, |process| {
            let job = process.job();
            let catching = Catching { job, target, afresh, sources, source, got: 0 };
            started = process.catching.replace(catching).is_none().then_some(job);
        });
        match started {
            Some(job) if afresh => self.begin_fetch(node, job, after),
            Some(job) => self.schedule_own(after, node, Event::CaughtUp { job, source, target, afresh }),
            None => self.violate("S19 resources", format!("node {node} catches up twice at a time")),
        }
    }

    pub(super) fn caught_up(&mut self, node: usize, (job, source): (u64, usize), target: Digest, afresh: bool) {
        let mut current = false;
        self.process(node, |process| current = process.catching.take_if(|running| running.job == job).is_some());
        if !current {
            return;
        }
        let mine = self.nodes[node].disk.head().map(|head| head.digest);
        let breaks = self.breaks();
        let lies = self.nodes[source].liar.is_some() && !self.calm && self.random.chance(50);
        let reachable = self.network.connected(node, source) && !breaks && !lies && self.nodes[source].alive();
        let chain = if reachable { self.nodes[source].disk.chain.clone() } else { Vec::new() };
        if !chain.iter().any(|link| link.digest == target) {
            self.marks.hit("catch-up failed");
            let reason = "no source has the target".to_owned();
            return self.feed(node, Input::CatchUpFailed { reason });
        }
        if !afresh && !chain.iter().any(|link| Some(link.digest) == mine) {
            if let Some(split) = self.split_from(node, &chain) {
                self.feed(node, Input::Contradicted { split: Box::new(split) });
            }
            let reason = "the chain does not contain this node's head".to_owned();
            return self.feed(node, Input::CatchUpFailed { reason });
        }
        let named = chain.last().map(|head| head.record.state_root);
        let state = self.nodes[source].disk.state.as_ref().map(|state| state.root);
        if state != named {
            let reason = "the source's state is not what its head names".to_owned();
            return self.feed(node, Input::CatchUpFailed { reason });
        }
        if let Err(why) = self.verify(node, &chain) {
            return self.violate("S2 no fork", format!("node {node} is given a chain that does not hold: {why}"));
        }
        self.take_over(node, source, chain);
    }

    /// The first place at which a chain differs from a node's own within a lineage.
    pub(super) fn split_from(&self, node: usize, chain: &[Link]) -> Option<Split> {
        let own = &self.nodes[node].disk.chain;
        let place = own.iter().zip(chain).position(|(ours, theirs)| ours.digest != theirs.digest)?;
        let (parent, ours, theirs) = (own.get(place.checked_sub(1)?)?, own.get(place)?, chain.get(place)?);
        let proven = |link: &Link| Some(((*link.record).clone(), link.certificate.as_deref()?.clone()));
        let split = Split { parent: (*parent.record).clone(), ours: proven(ours)?, theirs: proven(theirs)? };
        (ours.record.lineage == theirs.record.lineage).then_some(split)
    }

    /// Checks the new part of a chain as a node does.
    fn verify(&self, node: usize, chain: &[Link]) -> Result<(), String> {
        let known = &self.nodes[node].disk.chain;
        for (index, pair) in chain.windows(2).enumerate() {
            let [parent, link] = pair else { continue };
            if known.get(index + 1).is_some_and(|mine| mine.digest == link.digest) {
                continue;
            }
            let proof = link.certificate.as_deref().ok_or("a record without a certificate")?;
            let (verifier, parent) = (self.verifier.as_ref(), (&parent.record, &parent.digest));
            certificate::verify(verifier, &self.spec, parent.0, parent.1, &link.record, proof)
                .map_err(|why| format!("seq {}: {why}", link.record.seq))?;
        }
        Ok(())
    }

    fn take_over(&mut self, node: usize, source: usize, chain: Vec<Link>) {
        let (Some(head), Some(state)) = (chain.last().cloned(), self.nodes[source].disk.state.clone()) else { return };
        let state = if mutated!(Mutation::FlipCaughtUp) && self.random.chance(30) { state.damaged() } else { state };
        let lineage = self.nodes[node].disk.head().map(|mine| mine.record.lineage);
        if lineage.is_some_and(|lineage| lineage != head.record.lineage) {
            self.marks.hit("other lineage taken");
            self.keep_difference(node);
        }
        self.marks.hit("certificate by catch-up");
        let disk = &mut self.nodes[node].disk;
        (disk.chain, disk.state) = (chain, Some(Rc::clone(&state)));
        disk.candidates.clear();
        let link = head.clone();
        self.process(node, |process| {
            (process.head, process.state) = (Some(link), state);
            process.damaged = false;
            process.offer = None;
            process.mixed = None;
            process.training = None;
            process.ahead = None;
            process.reducing = None;
            process.sums = Sums::default();
            process.speculated.clear();
            process.updates.clear();
        });
        self.observe(&Observed::Replaced { node });
        let certificate = head.certificate.as_deref().cloned();
        let ancestry = self.nodes[node].disk.ancestry();
        self.feed(node, Input::CaughtUp { record: (*head.record).clone(), certificate, ancestry });
        self.tell_difference(node);
    }

    pub(super) fn fetch(&mut self, node: usize, key: AttemptKey, record: Digest, sources: &[NodeId]) {
        let sources: Vec<usize> = sources.iter().filter_map(|id| self.keys.index(id)).collect();
        let Some(source) = self.random.pick(&sources) else {
            return self.violate("L5 few attempts", format!("node {node} fetches a result from nobody"));
        };
        let after = self.random.between(5, 800) * MS;
        let mut started = None;
        self.process(node, |process| {
            let job = process.job();
            started = process.fetching.insert(key, job).is_none().then_some(job);
        });
        match started {
            Some(job) => self.schedule_own(after, node, Event::Fetched { job, key, record, source }),
            None => self.violate("S19 resources", format!("node {node} fetches {key:?} twice at a time")),
        }
    }

    pub(super) fn fetched(&mut self, node: usize, (job, source): (u64, usize), key: AttemptKey, record: Digest) {
        let mut current = false;
        self.process(node, |process| current = process.fetching.get(&key) == Some(&job));
        if !current {
            return;
        }
        self.process(node, |process| {
            process.fetching.remove(&key);
        });
        let breaks = self.breaks();
        let reachable = self.network.connected(node, source) && self.nodes[source].alive() && !breaks;
        let candidates = &self.nodes[source].disk.candidates;
        let held = candidates.iter().find(|held| held.candidate.key == key && held.candidate.record.digest() == record);
        let Some(held) = held.filter(|_| reachable).cloned() else {
            self.marks.hit("fetch failed");
            return self.feed(node, Input::FetchFailed { key, record });
        };
        let forced = |n: &super::process::Node| {
            let vote = n.disk.vote_state.as_ref().and_then(|vote_state| vote_state.vote.as_ref());
            vote.is_some_and(|(_, value, voted)| *voted && value.digest == record)
        };
        if self.nodes.iter().any(forced) {
            self.marks.hit("forced value fetched");
        }
        if self.decided.contains_key(&record) {
            self.marks.hit("decided value fetched");
        }
        let update = held.candidate.record.update;
        self.process(node, |process| drop(process.updates.insert((key, update), held.update)));
        self.feed(node, Input::Fetched { candidate: (*held.candidate).clone() });
    }
}
