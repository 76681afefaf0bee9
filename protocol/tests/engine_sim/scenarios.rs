//! Histories with a plan.

use crate::driver::spec;
use crate::faults::Options;
use crate::keys::id;
use crate::random::Random;
use crate::world::{Event, MS, SECOND, World};
use starling_protocol::NodeId;
use starling_protocol::engine::io::Input;
use starling_protocol::run::Budget;
use std::collections::BTreeSet;

/// A flock of `nodes` that has flown together for some rounds: everybody is a member.
fn flock(seed: u64, nodes: usize) -> World {
    flock_with(seed, Options::calm(nodes))
}

fn flock_with(seed: u64, options: Options) -> World {
    let nodes = options.nodes;
    let mut world = World::new(seed, options, spec());
    let complete = |world: &World| {
        let members = world.nodes[0].head().map_or(0, |head| head.record.contributors.len());
        members == nodes && world.one_head().is_some_and(|seq| seq >= 4)
    };
    assert!(world.run_until(60 * SECOND, complete), "a calm flock of {nodes} gathers");
    world
}

/// Runs until all running nodes have committed `rounds` more together; how long that took.
fn fly_on(world: &mut World, rounds: u64, within: u64) -> u64 {
    let (start, goal) = (world.now, world.best_seq() + rounds);
    let flown = world.run_until(start + within, |world| world.one_head().is_some_and(|seq| seq >= goal));
    assert!(flown, "{rounds} more rounds within {within} microseconds");
    world.now - start
}

fn contributors(world: &World, node: usize) -> BTreeSet<NodeId> {
    world.nodes[node].head().map(|h| h.record.contributors.iter().map(|c| c.member).collect()).unwrap_or_default()
}

#[test]
fn a_calm_flock_loses_nobody() {
    for nodes in [1, 2, 4, 8] {
        let mut world = flock(nodes as u64, nodes);
        for _ in 0..5 {
            fly_on(&mut world, 1, 30 * SECOND);
            assert_eq!(contributors(&world, 0).len(), nodes);
        }
        assert!(!world.check.marks.contains_key("an attempt failed"));
        assert!(!world.check.marks.contains_key("a later attempt began"));
        world.check.chain(&world.nodes[0].disk.chain);
    }
}

/// Any node, at any moment: what survivors lose is the detection of the death and at most one round.
#[test]
fn survivors_of_a_kill_commit_again_soon() {
    let mut gaps: Vec<u64> = Vec::new();
    for seed in 0..crate::SEEDS / 4 {
        let mut random = Random::new(seed);
        let mut world = flock(seed, 4);
        // No longer than a few rounds, so that every moment of a round is met.
        let moment = world.now + random.between(0, 8_000) * MS;
        world.run_until(moment, |_| false);
        let victim = random.between(0, 3) as usize;
        let (killed, best) = (world.now, world.check.best_seq);
        world.kill(victim, false);
        assert!(world.run_until(killed + 60 * SECOND, |world| world.check.best_seq > best), "seed {seed}");
        gaps.push(world.now - killed);
        fly_on(&mut world, 3, 60 * SECOND);
        assert!(!contributors(&world, (victim + 1) % 4).contains(&id(victim)));
        world.schedule(0, victim, 0, Event::Start);
        fly_on(&mut world, 10, 90 * SECOND);
        assert!(contributors(&world, 0).contains(&id(victim)), "seed {seed}: the killed node flies again");
    }
    gaps.sort_unstable();
    let at = |percent: usize| gaps[(gaps.len() - 1) * percent / 100] as f64 / SECOND as f64;
    println!("seconds from a kill to the next commit: p50 {}, p99 {}, max {}", at(50), at(99), at(100));
    // A round of training here takes up to 5 s by itself.
    assert!(at(100) < 12.0, "{gaps:?}");
}

#[test]
fn all_killed_and_restarted_go_on_from_the_last_round() {
    for seed in 0..10 {
        let mut world = flock(seed, 4);
        let wait = world.random.between(0, 5_000) * MS;
        world.run_until(world.now + wait, |_| false);
        let before = world.best_seq();
        for node in 0..4 {
            world.kill(node, false);
            let back = world.random.between(100, 4_000) * MS;
            world.schedule(back, node, 0, Event::Start);
        }
        world.run_until(world.now + 5 * SECOND, |_| false);
        assert!(world.best_seq() >= before, "nothing durable is lost");
        let took = fly_on(&mut world, 3, 60 * SECOND);
        assert_eq!(contributors(&world, 0).len(), 4, "seed {seed}: everybody is back after {took} us");
        assert!(world.check.decided.values().all(|decisions| decisions.len() == 1));
    }
}

/// The last survivor of two goes on alone, and the other comes back to it.
#[test]
fn one_of_two_goes_on_alone() {
    for seed in 0..10 {
        let mut world = flock(seed, 2);
        world.kill(1, false);
        fly_on(&mut world, 3, 40 * SECOND);
        assert_eq!(contributors(&world, 0).len(), 1);
        world.schedule(0, 1, 0, Event::Start);
        fly_on(&mut world, 10, 90 * SECOND);
        assert_eq!(contributors(&world, 0).len(), 2, "seed {seed}");
    }
}

/// A machine that is suspended wakes up to an old world and must not believe that everybody else has died.
#[test]
fn a_suspended_node_rolls_nobody_back() {
    for seed in 0..10 {
        let mut world = flock(seed, 3);
        world.nodes[1].frozen_until = world.now + 60 * SECOND;
        world.run_until(world.now + 50 * SECOND, |_| false);
        // It wakes up meanwhile, catches up, and is let in again.
        fly_on(&mut world, 5, 60 * SECOND);
        fly_on(&mut world, 4, 60 * SECOND);
        assert_eq!(contributors(&world, 0).len(), 3);
    }
}

#[test]
fn who_leaves_is_not_waited_for() {
    let mut world = flock(3, 3);
    let left_at = world.now;
    world.feed(2, Input::Leave);
    world.schedule_own(100 * MS, 2, Event::Exit);
    fly_on(&mut world, 1, 10 * SECOND);
    // A round of training, and no grace for a lost connection on top.
    assert!(world.now - left_at < 7 * SECOND, "{}", world.now - left_at);
    assert_eq!(contributors(&world, 0).len(), 2);
}

#[test]
fn a_damaged_state_is_fetched_anew() {
    for seed in 0..10 {
        let mut world = flock_with(seed, Options { damage: true, strict: false, ..Options::calm(3) });
        let process = world.nodes[1].process.as_mut().expect("it runs");
        process.state = starling_protocol::Digest([9; 32]);
        fly_on(&mut world, 6, 90 * SECOND);
        assert!(world.check.marks.contains_key("an own fault"), "seed {seed}");
        assert_eq!(contributors(&world, 0).len(), 3, "seed {seed}: it is back");
    }
}

/// At the end of the budget every node stands on the same last record, also those that lagged.
#[test]
fn a_spent_budget_ends_the_run_everywhere() {
    for seed in 0..20 {
        let mut bounded = spec();
        bounded.budget = Budget { rounds: 8, tokens: 0 };
        let mut world = World::new(seed, Options::calm(3), bounded);
        let ended = |world: &World| world.nodes.iter().all(|n| n.process.as_ref().is_some_and(|p| p.finished));
        assert!(world.run_until(120 * SECOND, ended), "seed {seed}");
        let heads: BTreeSet<_> = world.nodes.iter().map(|n| n.head().map(|h| (h.digest, h.record.round))).collect();
        assert_eq!(heads.len(), 1);
        assert_eq!(heads.first().and_then(|head| head.map(|(_, round)| round)), Some(8));
    }
}

/// Lineages of one run that meet become one: the others take the state of the one with more tokens.
#[test]
fn founders_that_meet_fly_on_together() {
    for seed in 0..10 {
        let mut world = World::new(seed, Options { founders: 3, ..Options::calm(4) }, spec());
        let together = |world: &World| contributors(world, 0).len() == 4 && world.one_head().is_some();
        assert!(world.run_until(90 * SECOND, together), "seed {seed}");
        let lineages: BTreeSet<_> = world.nodes.iter().map(|n| n.head().map(|head| head.record.lineage)).collect();
        assert_eq!(lineages.len(), 1);
        assert!(world.check.marks.contains_key("rolled back"), "seed {seed}");
    }
}

/// A trainer that hangs in a process that is otherwise well costs its own contribution only.
#[test]
fn a_hung_trainer_is_left_behind() {
    let mut world = flock(5, 3);
    let training = |world: &World| world.nodes[2].process.as_ref().is_some_and(|process| process.training.is_some());
    assert!(world.run_until(world.now + 10 * SECOND, training));
    if let Some(process) = world.nodes[2].process.as_mut() {
        process.training = Some(u64::MAX);
    }
    let start = world.now;
    assert!(world.run_until(start + 60 * SECOND, |world| contributors(world, 0).len() == 2));
    assert!(world.now - start >= 4 * SECOND, "slow is not dead: {}", world.now - start);
    assert_eq!(contributors(&world, 0).len(), 2);
}
