//! A simulated node's part in reductions: it joins, keeps what is finished when one fails, and leaves.

use super::MS;
use super::circuit::Stock;
use super::lattice::Store;
use super::process::{Offer, Process};
use super::reduction::Group;
use super::sums::Sums;
use super::trainer;
use super::world::{Event, World};
use crate::NodeId;
use crate::engine::io::{AttemptKey, Contribution, Input};
use crate::grid::Grid;
use crate::run::Codec;
use crate::update::{self, kept};
use std::rc::Rc;
use std::sync::Arc;

impl World {
    pub(super) fn reduce(
        &mut self,
        node: usize,
        key: AttemptKey,
        (contributions, flock, grid, codec): (Vec<Contribution>, Vec<(NodeId, u32)>, Arc<Grid>, Codec),
    ) {
        let offer = self.nodes[node].process.as_ref().and_then(|process| process.offer.clone());
        let own = contributions.iter().find(|c| c.member == self.nodes[node].id).map(|c| c.payload);
        let mixed = self.nodes[node].process.as_ref().and_then(|process| process.mixed.as_ref());
        let mixed = mixed.filter(|mixed| Some(mixed.payload) == own).map(|mixed| Rc::clone(&mixed.vector));
        let plain = |offer: &Offer| Some(offer.payload) == own;
        let held = offer.and_then(|o| Some((mixed.or_else(|| plain(&o).then(|| Rc::clone(&o.vector)))?, o.left_out)));
        let Some((vector, left_out)) = held else {
            return self.violate("S7 mass conservation", format!("node {node} averages what it does not hold"));
        };
        if left_out {
            self.marks.hit("contribution left out and offered again");
        }
        let tokens: u64 = contributions.iter().map(|c| c.stated.tokens).sum();
        let clipped = |(weight, c): (&f32, &Contribution)| *weight < update::weight(c.stated.tokens, tokens);
        if Contribution::weights(&contributions).iter().zip(&contributions).any(clipped) {
            self.marks.hit("contribution clipped");
        }
        let members: Vec<usize> = contributions.iter().filter_map(|c| self.keys.index(&c.member)).collect();
        if key.attempt > 0 {
            self.marks.hit("set decided by vote");
        }
        if let Some(former) = self.reducing(node).filter(|former| *former != key) {
            self.settle(node, &former);
        }
        let chunks = trainer::chunks(vector.len());
        self.process(node, |process| {
            process.reducing = Some(key);
            process.sums.begin(key, &contributions, chunks);
        });
        let rows = !grid.is_one_row();
        match self.reductions.join(key, (node, vector), members.clone(), (contributions, flock, grid, codec)) {
            Err(why) => self.violate("S10 attempt isolation", why),
            Ok(true) => self.run_reduction(key, &members, rows),
            Ok(false) => {}
        }
    }

    fn reducing(&self, node: usize) -> Option<AttemptKey> {
        self.nodes[node].process.as_ref().and_then(|process| process.reducing)
    }

    /// The sums of a node that takes part in this attempt.
    fn sums_at(&self, node: usize, key: &AttemptKey) -> Option<&Sums> {
        let here = |process: &&Process| process.sums.kept.key() == Some(*key);
        self.nodes[node].process.as_ref().filter(here).map(|process| &process.sums)
    }

    /// Puts what an attempt has given to a node so far among the node's sums.
    fn settle(&mut self, node: usize, key: &AttemptKey) {
        let me = self.nodes[node].id;
        let Some(group) = self.reductions.groups.get(key) else { return };
        if let Some(process) = self.nodes[node].process.as_mut() {
            process.sums.take(key, me, group.got(node, self.now));
        }
    }

    /// Lets the frames of an attempt travel, after a round of words in which all members say which sums they have.
    fn circulate(&mut self, key: &AttemptKey, members: &[usize]) -> Result<(), String> {
        let words: Option<Vec<Vec<bool>>> =
            members.iter().map(|member| Some(self.sums_at(*member, key)?.kept.word())).collect();
        let Some(words) = words else { return self.reductions.circulate(key, None) };
        let finished = kept::agreed(words).unwrap_or_else(|| {
            for member in members.iter().copied() {
                self.process(member, |process| process.sums.kept.drop_sums());
            }
            vec![Vec::new(); members.len()]
        });
        if finished.iter().flatten().any(|is_here| *is_here) {
            self.marks.hit("sums kept after a failure");
        }
        let sums = members.iter().map(|member| self.sums_at(*member, key).map(Sums::finished).unwrap_or_default());
        let stock = Stock { sums: sums.collect(), finished };
        self.reductions.circulate(key, Some(stock))
    }

    /// Lets the frames of an attempt in several rows travel, after each member has said what it has kept.
    fn cross(&mut self, key: &AttemptKey, members: &[usize]) -> Result<(), String> {
        let stores: Option<Vec<Store>> =
            members.iter().map(|member| Some(self.sums_at(*member, key)?.store())).collect();
        let kept = |store: &Store| store.sums.iter().any(Option::is_some);
        if stores.iter().flatten().any(kept) {
            self.marks.hit("sums kept in rows");
        }
        self.marks.hit("reduction in rows");
        if self.reductions.groups.get(key).is_some_and(Group::passes_on) {
            self.marks.hit("sum of a row passed on");
        }
        self.reductions.cross(key, stores)
    }

    /// All members are there: bytes move, and the reduction ends for each in its own time, if at all.
    fn run_reduction(&mut self, key: AttemptKey, members: &[usize], rows: bool) {
        let moved = if rows { self.cross(&key, members) } else { self.circulate(&key, members) };
        if let Err(why) = moved {
            return self.violate("S8 exact result", why);
        }
        let fails =
            !self.calm && self.options.failing_reductions > 0 && self.random.chance(self.options.failing_reductions);
        let all = fails && self.reductions.fails_for_all();
        let alone = self.contested(members);
        let slowest = if self.random.chance(80) || self.options.steady { 500 } else { 4_000 };
        let culprit = self.random.pick(members);
        let mut failed = 0;
        for member in members.iter().copied() {
            let whole = self.random.between(5, slowest) * MS;
            let fails = alone.map_or(fails && (self.random.chance(60) || all), |alone| alone != member);
            let after = self.reductions.stretch(&key, member, (self.now, whole), fails);
            if fails {
                failed += 1;
                let suspect = culprit.filter(|suspect| *suspect != member);
                self.reductions.tell(&key, member);
                self.schedule_own(after, member, Event::Failed { key, suspect });
            } else {
                self.schedule_own(after / 2, member, Event::Moved { key, bytes: 1 + after / 2 });
                self.schedule_own(after, member, Event::Reduced { key });
            }
        }
        if failed > 0 && failed < members.len() {
            self.marks.hit("reduction failed for some only");
        }
    }

    pub(super) fn reduced(&mut self, node: usize, key: AttemptKey) {
        let now = self.now;
        let runs = self.reducing(node) == Some(key);
        let Some(group) = self.reductions.groups.get_mut(&key) else { return };
        let result = group.results.get(&node).cloned();
        let Some((bytes, digest)) = result.filter(|_| !group.is_broken() && runs) else { return };
        // A ring moves at the pace of its slowest member; a stopped member holds all up.
        let holds_up = |member: &usize| !group.done.contains(member) && self.nodes[*member].paused_until > now;
        if group.members.iter().any(holds_up) {
            return self.schedule_own(500 * MS, node, Event::Reduced { key });
        }
        group.done.insert(node);
        self.process(node, |process| {
            process.reducing = None;
            process.sums.kept.drop_sums();
            process.updates.insert((key, digest), bytes);
        });
        self.feed(node, Input::Reduced { key, update: digest });
    }

    pub(super) fn reduce_failed(&mut self, node: usize, key: AttemptKey, suspect: Option<usize>) {
        let suspect = suspect.map(|suspect| self.keys.id(suspect));
        let runs = self.reducing(node) == Some(key);
        if runs {
            self.settle(node, &key);
            self.process(node, |process| process.reducing = None);
        }
        self.feed(node, Input::ReduceFailed { key, suspect, refused: false, reason: "a stream ended".to_owned() });
        if runs && self.reductions.groups.get(&key).is_some_and(|group| group.is_broken()) {
            self.break_reductions(node, |other, _| *other == key, true, false);
        }
    }

    pub(super) fn abandon(&mut self, node: usize, key: AttemptKey) {
        let running = self.reducing(node) == Some(key);
        if running {
            self.settle(node, &key);
        }
        self.process(node, |process| {
            process.updates.retain(|(of, _), _| *of != key);
            process.speculated.retain(|(of, _), _| *of != key);
            process.reducing.take_if(|running| *running == key);
        });
        if running {
            self.break_reductions(node, |other, _| *other == key, true, false);
        }
    }

    /// Breaks a node's reductions. The other members' streams to it end, which most of them notice. A reduction that is
    /// broken already goes on for those that have not noticed: they lose this node's streams, too.
    pub(super) fn break_reductions(
        &mut self,
        node: usize,
        concerns: impl Fn(&AttemptKey, &[usize]) -> bool,
        spare_done: bool,
        silent: bool,
    ) {
        for hit in self.reductions.hit(node, concerns, spare_done, self.now) {
            for member in hit.hanging {
                if hit.again && self.reducing(member) != Some(hit.key) {
                    continue;
                }
                // A stream that ends is noticed; one that just stops is not.
                if !silent && self.random.chance(80) {
                    let suspect = self.random.chance(60).then_some(node);
                    // A node that leaves a broken reduction is not the one that broke it.
                    let suspect = suspect.filter(|suspect| *suspect != member && !hit.again);
                    let (key, after) = (hit.key, self.random.between(10, 1_000) * MS);
                    self.reductions.tell(&key, member);
                    self.schedule_own(after, member, Event::Failed { key, suspect });
                }
            }
        }
    }
}
