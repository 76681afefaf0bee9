//! Histories with a plan.

use super::options::Options;
use super::specification;
use super::world::World;
use super::{MS, SECOND};
use crate::NodeId;
use std::collections::BTreeSet;

/// A flock that has flown together for some rounds: everybody is a member.
fn flock(seed: u64, options: Options) -> World {
    let nodes = options.nodes;
    let mut world = World::new(seed, options.clone(), specification(&options), Vec::new());
    world.populate();
    let complete = |world: &World| contributors(world, 0).len() == nodes && seq(world).is_some_and(|seq| seq >= 4);
    assert!(run(&mut world, 90 * SECOND, complete), "a calm flock of {nodes} gathers");
    world
}

/// Runs for so long at most, until `done`; whether it was.
fn run(world: &mut World, within: u64, done: impl FnMut(&World) -> bool) -> bool {
    let end = world.now + within;
    let was = world.run_until(end, done);
    assert_eq!(world.violation, None);
    was
}

/// Where all running nodes stand, if they stand together.
fn seq(world: &World) -> Option<u64> {
    let heads: BTreeSet<_> = world
        .running()
        .iter()
        .map(|node| world.nodes[*node].head().map(|head| (head.record.seq, head.digest)))
        .collect();
    if heads.len() == 1 { heads.first()?.map(|(seq, _)| seq) } else { None }
}

fn contributors(world: &World, node: usize) -> BTreeSet<NodeId> {
    let contributors = |head: &super::disk::Link| head.record.contributors.iter().map(|c| c.member).collect();
    world.nodes[node].head().map(contributors).unwrap_or_default()
}

/// A learner whose READY was late once, so that the others go on without it, is not late for ever.
#[test]
fn a_learner_that_was_left_behind_once_catches_up() {
    for seed in 0..20 {
        let options = Options { delay: 300 * MS, ..Options::calm(5) };
        let mut world = flock(seed, options);
        world.crash(4, false);
        assert!(run(&mut world, 60 * SECOND, |world| !contributors(world, 0).contains(&world.nodes[4].id)));
        world.schedule(0, 4, 0, super::world::Event::Start);
        let trains = |world: &World| world.nodes[4].process.as_ref().is_some_and(|process| process.training.is_some());
        assert!(run(&mut world, 60 * SECOND, trains), "seed {seed}: it is let in");
        let until = world.now + 6 * SECOND;
        (0..4).for_each(|other| world.network.clog(4, other, until));
        run(&mut world, 8 * SECOND, |_| false);
        let back = |world: &World| contributors(world, 0).contains(&world.nodes[4].id);
        assert!(run(&mut world, 30 * SECOND, back), "seed {seed}: {}", world.report(&world.running()));
    }
}
