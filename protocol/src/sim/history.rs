//! One history from one seed: faults for a while, then a healed quorum with which the flock must go on.

pub use super::world::Violation;

use super::disk::Link;
use super::mark::Marks;
use super::options::Options;
use super::random::Random;
use super::schedule::{self, Planned};
use super::world::{Event, Recovered, World};
use super::{SECOND, specification};
use crate::quorum::Quorum;
use crate::record::RecordKind;
use crate::run::Minority;
use crate::scale;
use crate::{Digest, NodeId};
use std::collections::BTreeSet;
use std::rc::Rc;

/// After healing, all nodes must have one head with new rounds within this time, and the graces of a fork.
const HEALED_MAX: u64 = 300 * SECOND;
/// Within this time after that, every node that is there must contribute, and no other node be a member.
const COMPLETE_MAX: u64 = 200 * SECOND;
/// Rounds that must be committed after healing.
const ROUNDS: usize = 3;

/// Changes to the history of a seed, if it is not played just as it is drawn.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The most nodes.
    pub nodes: Option<usize>,
    /// A large flock of so many nodes, instead of the seed's.
    pub large: Option<usize>,
    /// Only these faults of the schedule.
    pub keep: Option<BTreeSet<usize>>,
    /// Only this kind of fault, see [`super::recovery::CLASSES`].
    pub class: Option<&'static str>,
    pub trace: bool,
    pub story: Option<fn(&str)>,
}

/// The outcome of a history.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub options: Options,
    pub faults: usize,
    pub violation: Option<Violation>,
    pub marks: Marks,
    pub commits: u64,
    pub skips: u64,
    pub forks: u64,
    pub merges: u64,
    pub virtual_time: u64,
    pub events: u64,
    /// Digest of all inputs and outputs, if it was asked for.
    pub trace: Digest,
    /// No quorum could be healed, and the policy is to wait for one.
    pub stuck: bool,
    /// The recovery after the last fault, if there could be one.
    pub recovered: Option<Recovered>,
}

/// Options and faults of a seed under these settings.
pub fn plan(seed: u64, settings: &Settings) -> (Options, Vec<Planned>) {
    let mut drawn = settings.large.map_or_else(|| Options::draw(seed), |nodes| Options::large(seed, nodes));
    if let Some(class) = settings.class {
        drawn.alone(class);
    }
    let schedule = schedule::draw(seed, &drawn);
    let kept = |(index, _): &(usize, Planned)| settings.keep.as_ref().is_none_or(|keep| keep.contains(index));
    let schedule = schedule.into_iter().enumerate().filter(kept).map(|(_, planned)| planned).collect();
    let nodes = settings.nodes.map_or(drawn.nodes, |nodes| nodes.min(drawn.nodes));
    (drawn.shrink(nodes), schedule)
}

/// Plays the history of a seed.
pub fn live(seed: u64, settings: &Settings) -> Outcome {
    let (options, schedule) = plan(seed, settings);
    scale::with(options.scale, || play(seed, settings, options, schedule))
}

fn play(seed: u64, settings: &Settings, options: Options, schedule: Vec<Planned>) -> Outcome {
    let faults = schedule.len();
    let mut world = World::new(seed, options.clone(), specification(&options), schedule);
    world.trace = settings.trace.then(blake3::Hasher::new);
    world.story = settings.story;
    world.note(|| Some(format!("{options}")));
    if options.nodes == 1 {
        world.marks.hit("n = 1 run");
    }
    if options.nodes > 31 {
        world.marks.hit(if options.nodes > 62 { "flock of more than 62" } else { "flock of more than 31" });
    }
    if options.scale != scale::FULL {
        world.marks.hit("small flock in rows");
    }
    if options.nodes == 2 && faults > 0 {
        world.marks.hit("flock of two voters and faults");
    }
    if options.ed25519 {
        world.marks.hit("run with real signatures");
    }
    world.populate();
    world.run_until(options.duration, |_| false);
    let core = if world.beyond_repair { None } else { world.heal(seed) };
    let stuck = core.is_none();
    if let Some(core) = core.filter(|_| world.violation.is_none()) {
        world.prove_alive(&core);
    }
    let stuck = stuck || world.beyond_repair;
    world.into_outcome(faults, stuck)
}

impl World {
    fn into_outcome(self, faults: usize, stuck: bool) -> Outcome {
        let count = |kind: RecordKind| self.decided.values().filter(|(decided, _)| *decided == kind).count() as u64;
        Outcome {
            faults,
            stuck,
            recovered: self.recovered,
            commits: count(RecordKind::Commit),
            skips: count(RecordKind::Skip),
            forks: count(RecordKind::Fork),
            merges: self.marks.count("merged"),
            virtual_time: self.now,
            events: self.events,
            trace: self.trace.as_ref().map_or(Digest::default(), |trace| Digest(*trace.finalize().as_bytes())),
            violation: self.violation,
            marks: self.marks,
            options: self.options,
        }
    }

    /// Ends the faults. A core that can go on is chosen and healed, and all other nodes are dead for good. None if
    /// there is no such core, as when too many disks were lost.
    fn heal(&mut self, seed: u64) -> Option<BTreeSet<usize>> {
        let mut random = Random::new(seed, "core");
        // A liar's statements are not forgotten. It is among the dead nodes if the others can do without it.
        let flock = self.best_head(&(0..self.nodes.len()).collect()).map(|head| Rc::clone(&head.record));
        let belongs = |node: usize| flock.as_ref().is_none_or(|record| self.belongs(node, record));
        let honest = |node: &usize| self.nodes[*node].liar.is_none() && belongs(*node);
        let mut core: BTreeSet<usize> = (0..self.nodes.len()).filter(honest).collect();
        if !self.recoverable(&core) {
            return None;
        }
        for node in 0..self.nodes.len() {
            let without: BTreeSet<usize> = core.iter().copied().filter(|other| *other != node).collect();
            if random.chance(25) && self.recoverable(&without) {
                core = without;
            }
        }
        self.note(|| Some(format!("healed: {core:?}")));
        self.calm = true;
        self.network.heal();
        for node in 0..self.nodes.len() {
            // A hanging trainer and damaged memory are for a person to mend.
            let process = self.nodes[node].process.as_ref();
            let ended = process.is_some_and(|process| process.finished) && self.options.rounds == 0;
            let hung = ended || process.is_some_and(|process| process.hung || process.damaged);
            if !core.contains(&node) {
                self.crash(node, false);
                self.nodes[node].gone = true;
            } else if !self.nodes[node].alive() || hung {
                self.crash(node, false);
                let after = random.between(0, 5 * SECOND);
                self.schedule(after, node, 0, Event::Start);
            }
        }
        Some(core)
    }

    /// Whether these nodes can go on by themselves. One of them must know a lineage. It must be allowed to fork, or the
    /// nodes must hold a quorum of voters that remember what they have said.
    fn recoverable(&self, core: &BTreeSet<usize>) -> bool {
        let Some(head) = self.best_head(core) else {
            return self.nodes.iter().all(|n| n.disk.chain.is_empty()) && core.contains(&0);
        };
        if self.spec.partition.minority == Minority::Fork {
            let stands = |node: &&usize| self.nodes[**node].disk.head().is_some_and(|mine| mine.digest == head.digest);
            return core.iter().filter(stands).any(|node| head.record.member(&self.nodes[*node].id).is_some());
        }
        let quorum = Quorum::after(&head.record);
        let speaks = |id: &NodeId| {
            let node = self.keys.index(id).filter(|node| core.contains(node)).map(|node| &self.nodes[node]);
            node.filter(|node| !node.amnesic).and_then(|node| node.disk.vote_state.as_ref()).is_some_and(|vote_state| {
                vote_state.lineage == head.record.lineage && quorum.has(id, vote_state.incarnation)
            })
        };
        quorum.met_by(|id| speaks(id) && self.may_speak(id, &quorum, speaks))
    }

    /// Whether a voter that remembers what it has said may speak again: after a start it needs the word of another
    /// voter.
    fn may_speak(&self, id: &NodeId, quorum: &Quorum, speaks: impl Fn(&NodeId) -> bool) -> bool {
        let others = quorum.voters().iter().filter(|(other, _)| other != id);
        let alone = others.clone().count() > 0 && !others.clone().any(|(other, _)| speaks(other));
        let process = self.keys.index(id).and_then(|node| self.nodes[node].process.as_ref());
        let heard = |process: &super::process::Process| {
            let whole = !process.hung && !process.damaged && !process.finished;
            whole && process.engine.view().quorum.in_reach
        };
        !alone || process.is_some_and(heard)
    }

    /// The newest record of the winning lineage on these disks.
    fn best_head(&self, core: &BTreeSet<usize>) -> Option<&Link> {
        let heads = core.iter().filter_map(|node| self.nodes[*node].disk.head());
        let best = |tokens: u64, lineage: &Digest, seq: u64| (tokens, std::cmp::Reverse(*lineage), seq);
        heads.max_by_key(|head| best(head.record.tokens, &head.record.lineage, head.record.seq))
    }

    /// The nodes of a core that are still admitted: a ticket may be used up, or a revocation arrive, after all else is
    /// well.
    fn flock_of(&self, core: &BTreeSet<usize>) -> BTreeSet<usize> {
        let head = self.best_head(core).map(|head| Rc::clone(&head.record)).filter(|_| !self.gate.is_open());
        let belongs = |node: &usize| head.as_ref().is_none_or(|record| self.belongs(*node, record));
        core.iter().copied().filter(belongs).collect()
    }

    fn prove_alive(&mut self, core: &BTreeSet<usize>) {
        let began = self.now;
        let bound = HEALED_MAX + 4 * self.options.grace;
        let mut looked = 0;
        self.recovered = Some(Recovered::default());
        let done = self.run_until(began + bound, |world| {
            // The check is expensive.
            let due = world.now >= looked + SECOND / 5;
            looked = if due { world.now } else { looked };
            due && world.flown(&world.flock_of(core), began)
        });
        if self.violation.is_some() || self.beyond_repair {
            return;
        }
        if !done && !self.recoverable(core) {
            // Records decided since then have voters that are dead, and the policy is to wait for them.
            self.recovered = None;
            return;
        }
        if !done {
            let invariant = if self.one_head(&self.flock_of(core)).is_some() { "L1 commits" } else { "L4 one head" };
            let why =
                format!("no {ROUNDS} common rounds within {} s of healing: {}", bound / SECOND, self.report(core));
            return self.violate(invariant, why);
        }
        let flown = self.now;
        self.note_recovery(began, Some(flown), None);
        let bound = COMPLETE_MAX + 2 * self.options.grace;
        let done = self.run_until(flown + bound, |world| {
            let due = world.now >= looked + SECOND / 5;
            looked = if due { world.now } else { looked };
            due && world.complete(&world.flock_of(core))
        });
        if self.violation.is_none() && !self.beyond_repair && !done {
            let why =
                format!("after {} s the members are not those who are there: {}", bound / SECOND, self.report(core));
            self.violate("L3 roster", why);
        }
        self.note_recovery(began, Some(flown), done.then_some(self.now));
        let skips = self.decided.values().filter(|(kind, at)| *kind == RecordKind::Skip && *at > flown).count();
        if self.violation.is_none() && skips > 3 {
            self.violate("L5 few attempts", format!("{skips} rounds were skipped after healing"));
        }
    }

    fn note_recovery(&mut self, began: u64, flown: Option<u64>, complete: Option<u64>) {
        let since = |at: u64| at.saturating_sub(began);
        let of = |kind: RecordKind| self.decided.values().filter(move |(k, at)| *k == kind && *at > began);
        let first = of(RecordKind::Commit).map(|(_, at)| since(*at)).min();
        let forked = of(RecordKind::Fork).next().is_some();
        self.recovered = Some(Recovered { first, together: flown.map(since), complete: complete.map(since), forked });
    }

    /// The digest of the head of all of these nodes, if they have one head.
    fn one_head(&self, core: &BTreeSet<usize>) -> Option<Digest> {
        let mut heads = core.iter().map(|node| self.nodes[*node].head().map(|head| head.digest));
        let first = heads.next()??;
        heads.all(|head| head == Some(first)).then_some(first)
    }

    /// Whether the nodes of each lineage have one head.
    fn one_head_each(&self, core: &BTreeSet<usize>) -> bool {
        let heads = core.iter().filter_map(|node| self.nodes[*node].head());
        let heads: BTreeSet<(Digest, Digest)> = heads.map(|head| (head.record.lineage, head.digest)).collect();
        let lineages: BTreeSet<Digest> = heads.iter().map(|(lineage, _)| *lineage).collect();
        heads.len() == lineages.len()
    }

    /// Whether there is one head, with enough rounds behind it that were committed since.
    fn flown(&self, core: &BTreeSet<usize>, since: u64) -> bool {
        let ended = |node: &usize| self.nodes[*node].process.as_ref().is_some_and(|process| process.finished);
        // Lineages that spent the run's budget before they met stay as they are: nobody trains on.
        if self.options.rounds > 0 && core.iter().all(ended) {
            return self.one_head_each(core);
        }
        let Some(node) = self.one_head(core).and_then(|_| core.first()) else { return false };
        let chain = &self.nodes[*node].disk.chain;
        let commits = chain.iter().rev().filter(|link| link.record.kind == RecordKind::Commit).take(ROUNDS);
        let new = |digest: &Digest| self.decided.get(digest).is_some_and(|(_, at)| *at > since);
        commits.filter(|link| new(&link.digest)).count() == ROUNDS
    }

    /// Whether every node that is there has contributed, and no other node is a member.
    fn complete(&self, core: &BTreeSet<usize>) -> bool {
        let ended = |node: &usize| self.nodes[*node].process.as_ref().is_some_and(|process| process.finished);
        if core.iter().all(ended) {
            return true;
        }
        let Some(head) = core.first().and_then(|node| self.nodes[*node].head()) else { return false };
        let all: BTreeSet<NodeId> = core.iter().map(|node| self.nodes[*node].id).collect();
        let contributors = head.record.contributors.iter().map(|c| c.member);
        let members: BTreeSet<NodeId> = head.record.members().collect();
        contributors.collect::<BTreeSet<NodeId>>() == all && members == all
    }

    /// The head of every node, for a person.
    pub fn report(&self, core: &BTreeSet<usize>) -> String {
        let line = |node: &usize| {
            let n = &self.nodes[*node];
            let Some(view) = n.process.as_ref().map(|process| process.engine.view()) else {
                return format!("\n  n{node} {:?} is dead", n.id);
            };
            let members: Vec<String> =
                view.members.iter().map(|m| format!("{:?}:{:?}:{:?}", m.id, m.role, m.state)).collect();
            format!(
                "\n  n{node} {:?} {} lineage {:?} seq {} head {:?} round {} attempt {:?} quorum {:?} waits {:?} {}",
                n.id,
                view.phase,
                view.lineage,
                view.seq,
                view.head,
                view.round,
                view.attempt.map(|a| a.0),
                (view.quorum.here, view.quorum.voters, view.quorum.in_reach),
                view.waiting,
                members.join(" ")
            )
        };
        core.iter().map(line).collect()
    }
}
