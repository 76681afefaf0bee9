//! A driver's sleep: it wakes its engine when the engine has asked for it, and at no other time. In some histories
//! engines are also woken in between, to check that nothing happens then.

use super::invariant::Observed;
use super::process::Process;
use super::world::{Event, World};
use super::{MS, SECOND};
use crate::engine::View;
use crate::engine::io::{Input, Time};
use crate::scale::scale;

/// Time between two ticks for which no engine has asked.
pub(super) const PROBE: u64 = 20 * MS;

impl World {
    /// The time when a node's engine wants to be woken, in the world's time.
    fn wake_of(&self, node: usize) -> Option<u64> {
        let wake = self.nodes[node].process.as_ref()?.engine.wake_at()?;
        Some(wake.0.saturating_sub(self.nodes[node].offset).max(self.now))
    }

    /// Arms the wake-up of a node whose engine has moved, for the time that it asks for now. A tick that is due before
    /// stays: the engine finds that it is too early.
    pub(super) fn arm(&mut self, node: usize) {
        let Some(at) = self.wake_of(node) else { return };
        let now = self.now;
        let Some(process) = self.nodes[node].process.as_mut() else { return };
        if process.armed.is_none_or(|armed| at < armed) {
            process.armed = Some(at);
            self.schedule_own(at - now, node, Event::Tick);
        }
    }

    pub(super) fn tick(&mut self, node: usize) {
        let now = self.now;
        let Some(process) = self.nodes[node].process.as_mut() else { return };
        process.armed.take_if(|at| *at <= now);
        match self.wake_of(node) {
            Some(at) if at <= now => {
                self.process(node, |process| process.wakes += 1);
                self.feed(node, Input::Tick);
            }
            _ => self.arm(node),
        }
        if self.wake_of(node).is_some_and(|at| at > now + 3 * SECOND) {
            self.violate("S20 no panic", format!("node {node} sleeps for longer than its heartbeat"));
        }
    }

    /// Wakes a sleeping node without being asked to.
    pub(super) fn probe(&mut self, node: usize) {
        self.schedule_own(PROBE, node, Event::Probe);
        let seen = |process: &Process| !process.finished && !process.engine.has_unseen();
        let asleep = self.wake_of(node).is_some_and(|at| at > self.now);
        let clock = Time(self.now + self.nodes[node].offset);
        let small = self.options.nodes < 2 * scale().row;
        let Some(process) = self.nodes[node].process.as_mut().filter(|process| asleep && seen(process)) else {
            return;
        };
        // In a large flock a view is as old as the last input.
        let shown = |engine: &crate::engine::Engine| small.then(|| timeless(engine.view()));
        let before = shown(&process.engine);
        let outputs = process.engine.handle(Input::Tick, clock);
        let seen = difference(before.as_ref(), shown(&process.engine).as_ref());
        self.arm(node);
        self.observe(&Observed::Probed { node, outputs: &outputs, seen: seen.as_deref() });
    }
}

/// The first line in which two views differ, in both.
fn difference(before: Option<&View>, after: Option<&View>) -> Option<String> {
    if before == after {
        return None;
    }
    let (before, after) = (format!("{before:#?}"), format!("{after:#?}"));
    let (was, is) = before.lines().zip(after.lines()).find(|(was, is)| was != is)?;
    Some(format!("{} after {}", is.trim(), was.trim()))
}

/// A view without the values that grow with time.
fn timeless(mut view: View) -> View {
    view.quorum.quorum_lost = view.quorum.quorum_lost.map(|_| 0);
    view.quorum.forks_in = view.quorum.forks_in.map(|_| 0);
    if let Some(hold) = &mut view.hold {
        hold.patience = 0;
    }
    for member in view.members.iter_mut().chain(&mut view.others) {
        member.heard = member.heard.map(|_| 0);
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::options::Options;
    use crate::sim::specification;

    const NODES: usize = 4;

    fn wakes(world: &World) -> Vec<u64> {
        world.nodes.iter().map(|node| node.process.as_ref().map_or(0, |process| process.wakes)).collect()
    }

    /// Members that train, and one that is READY and waits for them, wake for heartbeats and for repetitions.
    #[test]
    fn an_idle_member_wakes_a_few_times_a_second() {
        const SECONDS: u64 = 20;
        let options = Options { probed: true, ..Options::calm(NODES) };
        let mut world = World::new(2, options.clone(), specification(&options), Vec::new());
        world.populate();
        let all = |world: &World| world.nodes[0].head().is_some_and(|head| head.record.contributors.len() == NODES);
        assert!(world.run_until(90 * SECOND, all), "{:?}", world.violation);
        for (node, machine) in world.nodes.iter_mut().enumerate() {
            machine.step = if node == 0 { 20 * MS } else { 30 * SECOND };
        }
        // The round under way ends, and long ones begin. A commit wakes all, so a window in which one falls does not count.
        let head = |world: &World| world.nodes[0].head().map(|head| head.digest);
        let last = head(&world);
        assert!(world.run_until(world.now + 200 * SECOND, |world| head(world) != last));
        let quiet = (0..20).find_map(|_| {
            let (before, stands, end) = (wakes(&world), head(&world), world.now + SECONDS * SECOND);
            world.run_until(end, |_| false);
            let rate = |(after, before): (&u64, u64)| (after - before) as f64 / SECONDS as f64;
            (head(&world) == stands).then(|| wakes(&world).iter().zip(before).map(rate).collect::<Vec<f64>>())
        });
        let rates = quiet.expect("a window without a commit");
        println!("wakes a second: {rates:?}");
        assert!(rates.iter().all(|rate| (0.9..=3.0).contains(rate)), "{rates:?}");
        assert_eq!(world.violation, None);
    }
}
