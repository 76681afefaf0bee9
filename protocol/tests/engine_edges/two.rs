//! Flocks of two voters, one of which is lost: the senior one goes on at once, and the other one by the run's policy.

use crate::bench::{BOOT, Bench, INCARNATION, ME, commits, digest, id, spec, voters};
use crate::lineages::{goes, head, way};
use starling_protocol::engine::io::{Input, Notice, Output};
use starling_protocol::message::{Message, Phase, Stamp, Witness};
use starling_protocol::record::{RecordKind, Role};
use starling_protocol::run::{Budget, Minority, RunSpec};

const SECOND: u64 = 1_000_000;

/// A flock of two that came at once. This node has the smaller id, so it is the senior one.
pub fn senior_of_two(spec: RunSpec) -> Bench {
    let bench = Bench::flock_of(spec, &voters(2));
    assert_eq!(bench.engine.view().quorum.distinguished, Some(id(ME)));
    bench
}

/// The same, and this node is the other one.
fn junior_of_two(spec: RunSpec) -> Bench {
    let bench = Bench::flock_of(spec, &[(0, Role::Voter), (ME, Role::Voter)]);
    assert_eq!(bench.engine.view().quorum.distinguished, Some(id(0)));
    bench
}

fn with(minority: Minority) -> RunSpec {
    let mut spec = spec();
    spec.partition.minority = minority;
    spec
}

fn lost(outputs: &[Output]) -> bool {
    outputs.iter().any(|output| matches!(output, Output::Notice(Notice::QuorumLost { .. })))
}

/// A round that this node makes alone, until its record is decided. Returns all outputs.
fn round_alone(bench: &mut Bench) -> Vec<Output> {
    bench.forget_attempt();
    let mut outputs = bench.trained();
    for _ in 0..100 {
        if bench.attempt().is_some() {
            break;
        }
        outputs.extend(bench.wait(SECOND / 10));
    }
    let key = bench.running();
    outputs.extend(bench.feed(Input::Reduced { key, update: digest(9) }));
    outputs.extend(bench.feed(Input::Applied { key, update: digest(9), state_root: digest(10) }));
    outputs
}

/// The senior one of two voters needs nobody: it ends the round alone, and its second record removes the other one.
#[test]
fn the_senior_of_two_voters_goes_on_at_once() {
    for minority in [Minority::Fork, Minority::Wait, Minority::Halt] {
        let mut bench = senior_of_two(with(minority));
        let (began, lineage) = (bench.now, bench.record().lineage);
        bench.feed(Input::PeerDown { peer: id(2) });
        for (round, members) in [(1, vec![id(ME), id(2)]), (2, vec![id(ME)])] {
            let outputs = round_alone(&mut bench);
            assert!(!lost(&outputs), "{outputs:?}");
            let [next] = commits(&outputs)[..] else { panic!("{outputs:?}") };
            assert_eq!((next.kind, next.round, next.lineage), (RecordKind::Commit, round, lineage));
            assert_eq!(next.contributors.iter().map(|c| c.member).collect::<Vec<_>>(), [id(ME)]);
            assert_eq!(next.members().collect::<Vec<_>>(), members);
        }
        assert!(bench.now - began < 10 * SECOND, "it waits for a grace");
        let quorum = bench.engine.view().quorum;
        assert_eq!((quorum.voters, quorum.distinguished), (1, Some(id(ME))));
    }
}

/// The other one may be cut off from a flock that goes on. After the grace, and not before, it goes on by itself.
#[test]
fn the_other_of_two_voters_goes_on_by_itself_after_the_grace() {
    let mut bench = junior_of_two(with(Minority::Fork));
    let lineage = bench.record().lineage;
    bench.feed(Input::PeerDown { peer: id(0) });
    let mut outputs = bench.trained();
    outputs.extend(bench.wait(55 * SECOND));
    let told = |output: &Output| matches!(output, Output::Notice(Notice::QuorumLost { grace: 60_000_000, .. }));
    assert!(outputs.iter().any(told), "{outputs:?}");
    assert!(commits(&outputs).is_empty() && bench.attempt().is_none(), "half of the flock decides: {outputs:?}");
    assert!(!bench.engine.view().quorum.in_reach);
    let outputs = bench.wait(10 * SECOND);
    let [fork] = commits(&outputs)[..] else { panic!("{outputs:?}") };
    assert_eq!((fork.kind, fork.members().collect::<Vec<_>>()), (RecordKind::Fork, vec![id(ME)]));
    assert_ne!(fork.lineage, lineage);
}

/// A senior voter that comes back within the grace is all that the other one has waited for.
#[test]
fn the_other_of_two_voters_goes_on_with_a_senior_that_is_back() {
    let mut bench = junior_of_two(with(Minority::Wait));
    bench.feed(Input::PeerDown { peer: id(0) });
    bench.trained();
    bench.wait(30 * SECOND);
    assert!(bench.attempt().is_none() && bench.engine.view().quorum.quorum_lost.is_some());
    bench.meet(0);
    let ready = bench.ready(0);
    bench.say(0, &Message::Ready(ready));
    let key = bench.running();
    bench.decide(key);
    assert_eq!((bench.record().kind, bench.record().contributors.len()), (RecordKind::Commit, 2));
}

/// Whether this node goes to a fork of its head in which the other voter stands.
fn follows_the_other(bench: &mut Bench) -> bool {
    let (lineage, seq) = (bench.record().lineage, bench.record().seq);
    let fork = head(digest(0x66), seq + 3, 1 << 40);
    bench.greet(2, BOOT);
    bench.say(2, &Message::Witness(Witness { incarnation: INCARNATION, stamp: Stamp::default() }));
    let mut outputs = bench.claim(2, &fork, &way(&[(lineage, seq), (digest(0x66), seq + 3)]));
    assert!(bench.engine.view().quorum.in_reach, "alone it decides, once it has the other's word");
    outputs.extend(bench.wait(3 * SECOND));
    goes(&outputs)
}

/// The other one of two voters has gone on by itself while the senior one was down. The senior one has done nothing
/// since: if it went on alone, the work of the other one would give way to that.
#[test]
pub fn a_senior_voter_that_starts_again_joins_the_other_one_that_went_on() {
    let mut bench = senior_of_two(spec());
    bench.feed(Input::PeerDown { peer: id(2) });
    bench.restart(2_000);
    assert!(follows_the_other(&mut bench));
}

/// A senior voter that was there all the time has kept the quorum: the other one comes back to it.
#[test]
fn a_senior_voter_that_was_cut_off_is_not_called_away() {
    let mut bench = senior_of_two(spec());
    bench.commit();
    bench.feed(Input::PeerDown { peer: id(2) });
    bench.wait(SECOND);
    assert!(!follows_the_other(&mut bench));
}

/// The other one of two voters has gone on beyond the end of the run. The senior one is at that end, and alone a quorum.
#[test]
fn a_senior_voter_at_the_end_joins_the_other_one_that_went_on() {
    let mut bench = senior_of_two(RunSpec { budget: Budget { rounds: 1, tokens: 0 }, ..spec() });
    bench.commit();
    bench.feed(Input::PeerDown { peer: id(2) });
    bench.restart(2_000);
    assert_eq!(bench.engine.view().phase, Phase::Finished);
    assert!(follows_the_other(&mut bench));
}

/// The first of five voters that a restarted one meets may be a lone one that was cut off. The others are not there yet.
#[test]
fn a_voter_of_five_that_starts_again_does_not_go_at_once_to_the_first_fork_it_meets() {
    let mut bench = Bench::flock(5);
    bench.restart(2_000);
    let (lineage, seq) = (bench.record().lineage, bench.record().seq);
    bench.greet(2, BOOT);
    let fork = head(digest(0x66), seq + 3, 1 << 40);
    let mut outputs = bench.claim(2, &fork, &way(&[(lineage, seq), (digest(0x66), seq + 3)]));
    outputs.extend(bench.wait(2 * SECOND));
    assert!(!goes(&outputs), "{outputs:?}");
}
