//! Amendments: who may change a run, from when on, and that a run that is over goes on.

use crate::bench::{Bench, Key, commits, digest, id, refusals, sent, spec, voters};
use starling_protocol::amendment::{Amendment, Changes, NotAmended, Settings};
use starling_protocol::engine::io::{Finish, Input, Notice, Output, Refusal};
use starling_protocol::message::{Message, Phase};
use starling_protocol::run::{Budget, RunSpec};
use starling_protocol::{Digest, NodeId};

const CREATOR: u8 = 99;

fn signed_by(bench: &Bench, by: u8, changes: Changes) -> Amendment {
    let settings = bench.record().next.settings;
    Amendment::next(&settings, 0, changes).sign(&Key(id(by)), &bench.spec.digest())
}

fn slower() -> Changes {
    Changes { lr: Some(1e-5), ..Changes::default() }
}

fn longer() -> Changes {
    Changes { rounds: Some(3), ..Changes::default() }
}

/// The members that are told an amendment.
fn told(bench: &Bench, outputs: &[Output]) -> Vec<NodeId> {
    let sent = sent(&bench.spec, outputs).into_iter();
    sent.filter(|(_, message)| matches!(message, Message::Amend(_))).map(|(to, _)| to).collect()
}

fn amended(outputs: &[Output]) -> Vec<(u32, Digest, u64)> {
    let of = |output: &Output| match output {
        Output::Notice(Notice::Amended { number, name, round, .. }) => Some((*number, *name, *round)),
        _ => None,
    };
    outputs.iter().filter_map(of).collect()
}

fn goes_on(outputs: &[Output]) -> bool {
    outputs.iter().any(|output| matches!(output, Output::GoesOn))
}

fn is_malformed(outputs: &[Output]) -> bool {
    matches!(refusals(outputs)[..], [Refusal::Malformed { .. }])
}

#[test]
fn what_the_creator_signs_is_passed_on_and_in_force_with_the_record_that_holds_it() {
    let mut bench = Bench::flock(3);
    let amendment = signed_by(&bench, CREATOR, slower());
    let name = amendment.name(&bench.spec.digest());
    let outputs = bench.feed(Input::Amend { amendment: amendment.clone() });
    assert_eq!(told(&bench, &outputs), [id(2), id(3)]);
    assert_eq!(bench.engine.proposals(), [(name, amendment.clone(), true)]);
    assert_eq!(bench.engine.in_force(), &bench.spec, "no record holds it yet");
    let outputs = bench.commit();
    let record = commits(&outputs)[0].clone();
    assert_eq!(record.amended, Some(amendment));
    assert_eq!((bench.engine.in_force().inner.lr, amended(&outputs)), (1e-5, vec![(1, name, 2)]));
    assert!(bench.engine.proposals().is_empty());
    // It is not said again, and the next one stands after it.
    let record = commits(&bench.commit())[0].clone();
    assert_eq!((record.amended, record.next.settings.amendments), (None, 1));
    let first = Amendment::next(&Settings::default(), 0, longer()).sign(&Key(id(CREATOR)), &bench.spec.digest());
    assert_eq!(bench.engine.check_amendment(&first), Err(NotAmended::NotNext { number: 1, next: 2 }));
}

#[test]
fn a_member_that_hears_of_an_amendment_states_it_and_refuses_what_nobody_may_amend() {
    let mut bench = Bench::flock(3);
    let good = signed_by(&bench, CREATOR, slower());
    let heard = bench.say(2, &Message::Amend(good.clone()));
    assert_eq!(told(&bench, &heard), [id(2), id(3)]);
    let again = bench.say(3, &Message::Amend(good.clone()));
    assert!(told(&bench, &again).is_empty(), "it is known");
    let outputs = bench.trained();
    let ready = sent(&bench.spec, &outputs).into_iter().find_map(|(_, message)| match message {
        Message::Ready(ready) => Some(ready),
        _ => None,
    });
    assert_eq!(ready.expect("a READY").amends, Some(Box::new(good)));
    let mut other = Bench::flock(3);
    let forged = signed_by(&other, 2, slower());
    assert!(is_malformed(&other.say(2, &Message::Amend(forged.clone()))));
    let ready = starling_protocol::message::Ready { amends: Some(Box::new(forged)), ..other.ready(3) };
    assert!(is_malformed(&other.say(3, &Message::Ready(ready))));
    assert!(other.engine.proposals().is_empty());
    let stranger = signed_by(&other, CREATOR, slower());
    other.greet(9, crate::bench::BOOT);
    assert_eq!(refusals(&other.say(9, &Message::Amend(stranger))), [&Refusal::Stale]);
}

/// Two of one number may be known: the one whose round comes first is in force, and the other one is forgotten.
#[test]
fn an_amendment_that_waits_for_its_round_gives_way_to_one_that_is_due() {
    let mut bench = Bench::flock(3);
    let clip = Changes { clip: Some(0.5), ..Changes::default() };
    let far = Amendment::next(&bench.record().next.settings, 50, clip).sign(&Key(id(CREATOR)), &bench.spec.digest());
    let due = signed_by(&bench, CREATOR, slower());
    bench.say(2, &Message::Amend(far));
    assert_eq!(bench.engine.check_amendment(&due), Ok(()), "it holds up no other");
    bench.say(2, &Message::Amend(due.clone()));
    assert_eq!(bench.engine.proposals().len(), 2);
    let record = commits(&bench.commit())[0].clone();
    assert_eq!(record.amended, Some(due));
    assert!(bench.engine.proposals().is_empty(), "the other one cannot be the next any more");
    assert_eq!(bench.engine.in_force().inner.clip, bench.spec.inner.clip);
}

#[test]
fn without_a_creator_each_operator_agrees_for_its_own_voter() {
    let mut bench = Bench::flock_of(RunSpec { creator: None, ..spec() }, &voters(3));
    let proposal = Amendment::next(&Settings::default(), 0, slower());
    bench.say(2, &Message::Amend(proposal.clone()));
    let name = proposal.name(&bench.spec.digest());
    assert_eq!(bench.engine.proposals(), [(name, proposal.clone(), false)]);
    let record = commits(&bench.commit())[0].clone();
    assert_eq!(record.amended, None, "this node's operator has not agreed, and nobody else says so");
    let proposal = Amendment::next(&record.next.settings, 0, slower());
    assert_eq!(bench.engine.check_amendment(&proposal), Ok(()));
    bench.feed(Input::Amend { amendment: proposal.clone() });
    assert!(bench.engine.proposals().iter().any(|(_, known, agreed)| *known == proposal && *agreed));
    let signed = proposal.sign(&Key(id(1)), &bench.spec.digest());
    assert_eq!(bench.engine.check_amendment(&signed), Err(NotAmended::NoCreator));
}

/// A flock of three at the end of a run of one round.
fn over() -> Bench {
    let budget = Budget { rounds: 1, tokens: 0 };
    let mut bench = Bench::flock_of(RunSpec { budget, ..spec() }, &voters(3));
    let outputs = bench.commit();
    assert!(outputs.iter().any(|output| matches!(output, Output::Finished { reason: Finish::BudgetSpent })));
    bench
}

#[test]
fn a_run_that_is_over_goes_on_when_its_budget_grows() {
    for by_message in [false, true] {
        let mut bench = over();
        let slow = signed_by(&bench, CREATOR, slower());
        assert!(!goes_on(&bench.say(2, &Message::Amend(slow))), "this adds nothing to the budget");
        let mut bench = over();
        let amendment = signed_by(&bench, CREATOR, longer());
        let mut outputs = if by_message {
            bench.say(2, &Message::Amend(amendment.clone()))
        } else {
            bench.feed(Input::Amend { amendment: amendment.clone() })
        };
        assert!(goes_on(&outputs), "{outputs:?}");
        let head = bench.chain_head(Phase::Training, 0);
        bench.say(2, &Message::Head(head));
        outputs.extend(bench.wait(4_000_000));
        assert!(outputs.iter().any(|output| matches!(output, Output::Train { round: 2, .. })), "{outputs:?}");
        let record = commits(&bench.commit())[0].clone();
        assert_eq!((record.round, record.amended), (2, Some(amendment)));
        let outputs = bench.commit();
        assert!(outputs.iter().any(|output| matches!(output, Output::Finished { .. })), "after the third round");
    }
}

#[test]
fn a_node_at_the_end_looks_at_members_that_have_gone_on() {
    let mut bench = over();
    let mut head = bench.chain_head(Phase::Training, 0);
    (head.seq, head.record) = (head.seq + 1, digest(0x77));
    let outputs = bench.say(2, &Message::Head(head));
    let asked = outputs.iter().any(|output| matches!(output, Output::Prove { peer, .. } if *peer == id(2)));
    assert!(asked, "{outputs:?}");
}

/// A voter that is a quorum alone was killed in its first round beyond the end. It ends that round as it has voted, by
/// the candidate on its disk.
#[test]
fn a_sole_voter_that_starts_again_beyond_the_end_decides_as_it_has_voted() {
    let budget = Budget { rounds: 1, tokens: 0 };
    let mut bench = Bench::flock_of(RunSpec { budget, ..spec() }, &voters(1));
    let key = bench.all_ready();
    bench.feed(Input::Reduced { key, update: digest(8) });
    bench.feed(Input::Applied { key, update: digest(8), state_root: digest(9) });
    assert_eq!(bench.record().round, 1);
    let amendment = signed_by(&bench, CREATOR, longer());
    assert!(goes_on(&bench.feed(Input::Amend { amendment: amendment.clone() })));
    let key = bench.all_ready();
    bench.feed(Input::Reduced { key, update: digest(9) });
    bench.writes = false;
    let outputs = bench.feed(Input::Applied { key, update: digest(9), state_root: digest(10) });
    let written = outputs.iter().filter_map(|output| match output {
        Output::Persist { vote_state, candidate, .. } => Some((vote_state.clone(), candidate.clone())),
        _ => None,
    });
    for (vote_state, candidate) in written {
        bench.vote_state = Some(vote_state);
        bench.candidates.extend(candidate);
    }
    // The process is killed between these writes and that of the record.
    bench.restart(2_000);
    assert_eq!(bench.record().round, 1);
    let mut outputs = bench.feed(Input::Amend { amendment });
    outputs.extend(bench.wait(4_000_000));
    let [record] = commits(&outputs)[..] else { panic!("{outputs:?}") };
    assert_eq!((record.round, record.state_root), (2, digest(10)));
}

/// What counts is whether a COMMIT of these contributions amends the run, not that one of them says so.
#[test]
fn an_amendment_that_does_not_count_holds_up_no_steps_ahead() {
    let mut spec = spec();
    (spec.sync.overlap, spec.sync.mixing) = (1, 0.5);
    let mut bench = Bench::flock_of(spec, &voters(2));
    let old = signed_by(&bench, CREATOR, slower());
    bench.feed(Input::Amend { amendment: old.clone() });
    let ahead = |outputs: &[Output]| outputs.iter().any(|output| matches!(output, Output::Ahead { .. }));
    for round in 1..=2 {
        bench.trained();
        let amends = Some(Box::new(old.clone()));
        let ready = starling_protocol::message::Ready { amends, ..bench.ready(2) };
        let outputs = bench.say(2, &Message::Ready(ready));
        assert_eq!(ahead(&outputs), round == 2, "round {round}: {outputs:?}");
        let key = bench.running();
        bench.decide(key);
        bench.forget_attempt();
    }
}
