//! One history from one seed: faults for a while, then peace, in which the flock must fly on.

use crate::check::Marks;
use crate::disk::Link;
use crate::driver::spec;
use crate::faults::{Fault, Options};
use crate::keys::id;
use crate::process::Node;
use crate::random::Random;
use crate::world::{Event, MS, SECOND, World};
use starling_protocol::engine::io::Input;
use starling_protocol::{Digest, NodeId};

/// Peace lasts so long at most before every node must stand on one head.
const PEACE: u64 = 200 * SECOND;
/// Rounds that must be committed in peace.
const ROUNDS: u64 = 3;

pub struct Outcome {
    pub trace: Digest,
    pub marks: Marks,
    pub rounds: u64,
    pub virtual_time: u64,
}

/// Lives through the history of a seed; panics if anything in it is wrong.
pub fn live(seed: u64) -> Outcome {
    let options = Options::draw(&mut Random::new(seed.wrapping_mul(31)));
    let mut world = World::new(seed, options, spec());
    world.note(|| format!("{:?}", world.options));
    world.run_until(world.options.duration, |_| false);
    world.make_peace();
    let base = world.best_seq();
    let end = world.now + PEACE;
    let flown = world.run_until(end, |world| world.one_head().is_some_and(|seq| seq >= base + ROUNDS));
    assert!(flown, "no {ROUNDS} common rounds after {base} in peace: {}", world.report());
    for node in world.running() {
        world.check.chain(&world.nodes[node].disk.chain);
    }
    let rounds = world.best_seq();
    Outcome { trace: world.trace, marks: world.check.marks, rounds, virtual_time: world.now }
}

impl World {
    pub fn best_seq(&self) -> u64 {
        self.nodes.iter().filter_map(|node| node.disk.head()).map(|head| head.record.seq).max().unwrap_or(0)
    }

    /// The place at which all running nodes stand, if they stand together.
    pub fn one_head(&self) -> Option<u64> {
        let running = self.running();
        let mut heads = running.iter().map(|node| self.nodes[*node].head().map(|head| (head.digest, head.record.seq)));
        let first = heads.next()??;
        heads.all(|head| head == Some(first)).then_some(first.1)
    }

    fn report(&self) -> String {
        let line = |node: usize| {
            let n = &self.nodes[node];
            let view = n.process.as_ref().map(|process| process.engine.view());
            let said = view.map(|v| {
                let who = |ids: &[NodeId]| crate::check::names(ids);
                let members: Vec<(usize, String)> = v
                    .members
                    .iter()
                    .map(|m| (crate::keys::node(&m.id), format!("{:?} {:?} seq {}", m.state, m.phase, m.seq)))
                    .collect();
                let waits = v.waiting.map(|w| (w.why, who(&w.on)));
                format!(
                    "{} seq {} head {:?} {members:?} attempt {:?} waits {waits:?}",
                    v.phase, v.seq, v.head, v.attempt
                )
            });
            format!("\n  node {node}, disk at {:?}: {said:?}", n.disk.head().map(|h| h.record.seq))
        };
        (0..self.nodes.len()).map(line).collect()
    }

    /// The newest head that any node holds, in memory or on disk.
    fn best_head(&self) -> Option<Link> {
        let heads = self.nodes.iter().filter_map(|node| node.head().or(node.disk.head()));
        heads.max_by_key(|head| (head.record.seq, head.digest)).cloned()
    }

    /// Whether without `node` a majority of the flock's members is here, one that holds the newest head among them: a
    /// record that only one node has heard of goes where that node goes, until there is a vote.
    fn stands_without(&self, node: usize) -> bool {
        let Some(best) = self.best_head() else { return false };
        let here = |n: &usize| {
            let other = &self.nodes[*n];
            *n != node
                && other.head().is_some()
                && other.frozen_until <= self.now
                && best.record.lease_of(&id(*n)).is_some()
        };
        let rest: Vec<usize> = (0..self.nodes.len()).filter(here).collect();
        let holds = |n: &usize| self.nodes[*n].disk.head().is_some_and(|head| head.digest == best.digest);
        2 * rest.len() > best.record.next.members.len() && rest.iter().any(holds)
    }

    /// One fault, if the history allows one now.
    pub fn strike(&mut self) {
        let every = self.options.every;
        if self.now >= self.faults_until {
            return;
        }
        let after = self.random.between(every / 2, every * 2);
        self.schedule(after, 0, 0, Event::Fault);
        let kinds = self.options.kinds();
        let running = self.running();
        let (Some(kind), Some(victim)) = (self.random.pick(&kinds), self.random.pick(&running)) else { return };
        let harmless = matches!(kind, Fault::Drop | Fault::KillAll | Fault::Hang);
        if self.options.strict && !harmless && !self.stands_without(victim) {
            return;
        }
        self.note(|| format!("fault: {kind:?} of node {victim}"));
        self.inflict(kind, victim, &running);
    }

    fn inflict(&mut self, kind: Fault, victim: usize, running: &[usize]) {
        match kind {
            Fault::Kill => self.kill_and_restart(victim),
            Fault::KillAll => self.kill_everybody(running),
            Fault::Drop | Fault::Cut => {
                let others: Vec<usize> = running.iter().copied().filter(|other| *other != victim).collect();
                if let Some(other) = self.random.pick(&others) {
                    if kind == Fault::Cut {
                        let until = self.now + self.random.between(1, 25) * SECOND;
                        self.net.cut(victim, other, until);
                    }
                    self.disconnect(victim, other);
                }
            }
            Fault::Freeze => {
                let length = self.random.between(200, 20_000) * MS;
                let node = &mut self.nodes[victim];
                node.frozen_until = node.frozen_until.max(self.now + length);
            }
            Fault::Leave => {
                self.feed(victim, Input::Leave);
                let after = self.random.between(0, 300) * MS;
                self.schedule_own(after, victim, Event::Exit);
                let back = self.random.between(5, 30) * SECOND;
                self.schedule(back, victim, 0, Event::Start);
            }
            Fault::Damage => {
                // One at a time: of several damaged states nobody can tell which one is whole.
                let whole = |n: &Node| {
                    n.process.as_ref().is_none_or(|p| p.chain.last().is_none_or(|h| h.record.state_root == p.state))
                };
                if !self.nodes.iter().all(whole) {
                    return;
                }
                if let Some(process) = self.nodes[victim].process.as_mut() {
                    process.state = Digest::of("sim damage", &[&process.state.0]);
                }
            }
            Fault::Hang => {
                // A job number that no event carries: the trainer never ends.
                if let Some(training) = self.nodes[victim].process.as_mut().and_then(|p| p.training.as_mut()) {
                    *training = u64::MAX;
                }
            }
        }
        self.nodes[victim].slow_disk = self.options.slow_disks && self.random.chance(40);
    }

    fn kill_and_restart(&mut self, victim: usize) {
        let silent = self.options.silent && self.random.chance(50);
        self.kill(victim, silent);
        // The last disk with a state stays: a run of which nothing is left cannot fly on.
        let spare = |n: usize| n != victim && self.nodes[n].head().is_some() && self.nodes[n].disk.head().is_some();
        let kept = (0..self.nodes.len()).any(spare);
        if self.options.wipes && kept && self.random.chance(30) {
            self.nodes[victim].disk = Default::default();
            self.check.mark("a disk was lost");
        }
        let quick = self.random.chance(40);
        let back = if quick { self.random.between(100, 1_500) } else { self.random.between(1_000, 25_000) } * MS;
        self.schedule(back, victim, 0, Event::Start);
    }

    /// Everybody dies within a moment and comes back within a few seconds; no other fault in between.
    fn kill_everybody(&mut self, running: &[usize]) {
        let all_here = (0..self.nodes.len()).all(|n| !self.nodes[n].disk.chain.is_empty() || !self.nodes[n].alive());
        let lasts = self.now + 45 * SECOND < self.faults_until;
        if !all_here || !lasts || !self.stands_without(usize::MAX) {
            return;
        }
        self.check.mark("everybody was killed");
        for node in running {
            self.kill(*node, false);
            let back = self.random.between(100, 5_000) * MS;
            self.schedule(back, *node, 0, Event::Start);
        }
        self.postpone_faults(40 * SECOND);
    }

    /// Ends all faults. Some of the dead stay dead if the flock can do without them; all others come back.
    fn make_peace(&mut self) {
        self.note(|| "peace".to_owned());
        self.faults_until = 0;
        self.net.heal();
        let some_stay = self.random.chance(40);
        for node in 0..self.nodes.len() {
            self.nodes[node].slow_disk = false;
            let hung = self.nodes[node].process.as_ref().is_some_and(|process| process.training == Some(u64::MAX));
            if hung || self.nodes[node].process.as_ref().is_some_and(|process| process.finished) {
                self.kill(node, false);
            }
            if self.nodes[node].alive() {
                continue;
            }
            if some_stay && node != 0 && self.stands_without(node) {
                self.nodes[node].gone = true;
            } else {
                let back = self.random.between(0, 3_000) * MS;
                self.schedule(back, node, 0, Event::Start);
            }
        }
    }
}
