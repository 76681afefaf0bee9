//! Two members without a vote that do not reach each other: no voter knows of it but by their words.

use crate::bench::{BOOT, Bench, INCARNATION, ME, id, sent, spec};
use starling_protocol::engine::io::{Input, Output};
use starling_protocol::message::{Head, Message, Phase, Pulse, Question, member_bits, member_indices};
use starling_protocol::record::Role;

const LEARNERS: [u8; 2] = [4, 5];

impl Bench {
    /// A Head of a member that stands where the bench stands, with this beat and these members down.
    pub fn head(&self, beat: u64, down: &[u8]) -> Head {
        let record = self.record();
        let down = member_bits(down.iter().filter_map(|n| record.member_index(&id(*n))));
        let pulse = Pulse { boot: BOOT, incarnation: INCARNATION, beat, down };
        Head { pulse, ..self.chain_head(Phase::Training, 0) }
    }
}

/// A flock of three voters and two learners. The bench is one of the voters, or the first learner.
fn flock(bench_votes: bool) -> Bench {
    let roles = if bench_votes {
        [(ME, Role::Voter), (2, Role::Voter), (3, Role::Voter), (4, Role::Learner), (5, Role::Learner)]
    } else {
        [(ME, Role::Learner), (2, Role::Voter), (3, Role::Voter), (4, Role::Learner), (5, Role::Voter)]
    };
    Bench::flock_of(spec(), &roles)
}

/// Each member named says that it does not reach the other; then all say READY. Returns all outputs.
fn round(bench: &mut Bench, beat: u64, down: &[(u8, u8)]) -> Vec<Output> {
    for (from, other) in down {
        let said = Message::Head(bench.head(beat, &[*other]));
        bench.say(*from, &said);
    }
    bench.forget_attempt();
    let mut outputs = bench.trained();
    for member in 2..=5 {
        let ready = bench.ready(member);
        outputs.extend(bench.say(member, &Message::Ready(ready)));
    }
    outputs
}

/// The members of the set that the bench names in its first word about a later attempt.
fn named(bench: &Bench, outputs: &[Output]) -> Option<Vec<u8>> {
    let record = bench.record();
    let first = |said: Message| match said {
        Message::Estimate(said) if said.question.instance != Question::RECORD => Some(said.value),
        _ => None,
    };
    let value = sent(&bench.spec, outputs).into_iter().find_map(|(_, said)| first(said))?;
    Some(member_indices(&value.members).map(|index| record.next.members[index].id.0[0]).collect())
}

#[test]
pub fn one_of_two_learners_that_do_not_reach_each_other_sits_out() {
    let [a, b] = LEARNERS;
    // For the word of one end alone nobody sits out.
    let mut bench = flock(true);
    let outputs = round(&mut bench, 1, &[(a, b), (b, 2)]);
    assert_eq!((bench.running().attempt, named(&bench, &outputs)), (0, None));
    // With the words of both attempt 0 does not begin, and the voter names one of them.
    let mut bench = flock(true);
    let mut outputs = round(&mut bench, 1, &[(a, b), (b, a)]);
    assert_eq!(bench.attempt(), None);
    outputs.extend(bench.wait(1_000_000));
    let set = named(&bench, &outputs).expect("a word about the set of attempt 1");
    assert_eq!(set.len(), 4, "{set:?}");
    assert!(set.contains(&a) != set.contains(&b), "{set:?}");
    // They reach each other again.
    let mut bench = flock(true);
    for (from, other) in [(a, b), (b, a)] {
        let said = Message::Head(bench.head(1, &[other]));
        bench.say(from, &said);
    }
    let said = Message::Head(bench.head(2, &[]));
    bench.say(a, &said);
    round(&mut bench, 2, &[]);
    assert_eq!(bench.running().attempt, 0);
}

/// Two learners that lie to one other learner alone would have it hold up all.
#[test]
fn a_learner_begins_with_the_voters_that_have_heard_of_nobody_apart() {
    // The bench learns; so do 4 and 3, which say to it alone that they do not reach each other.
    let roles = [(ME, Role::Learner), (2, Role::Voter), (3, Role::Learner), (4, Role::Learner), (5, Role::Voter)];
    let mut bench = Bench::flock_of(spec(), &roles);
    round(&mut bench, 1, &[(3, 4), (4, 3)]);
    assert_eq!(bench.attempt(), None);
    let begins = |bench: &Bench, down: &[u8]| Head { phase: Phase::Reducing, ..bench.head(2, down) };
    let said = begins(&bench, &[4]);
    bench.say(3, &Message::Head(said));
    assert_eq!(bench.attempt(), None, "3 does not vote");
    let said = begins(&bench, &[]);
    bench.say(2, &Message::Head(said));
    bench.wait(200_000);
    assert_eq!(bench.running().attempt, 0);
}

#[test]
fn a_learner_names_the_learners_that_it_does_not_reach_and_no_voter() {
    let down = |bench: &mut Bench| {
        for other in [4, 5] {
            bench.feed(Input::PeerDown { peer: id(other) });
        }
        let outputs = bench.wait(10_000_000);
        let record = bench.record();
        let mut heads = sent(&bench.spec, &outputs).into_iter().filter_map(|(_, said)| match said {
            Message::Head(head) => Some(head.pulse.down),
            _ => None,
        });
        let down = heads.next_back().expect("a Head each beat");
        member_indices(&down).map(|index| record.next.members[index].id.0[0]).collect::<Vec<_>>()
    };
    assert_eq!(down(&mut flock(false)), [4], "5 votes, and says by its sets whom it does not reach");
    assert_eq!(down(&mut flock(true)), [0u8; 0]);
}
