//! Restarts, old disks and clones: what this identity has signed binds it, and only one process speaks for it.

use crate::bench::{BOOT, Bench, INCARNATION, ME, id, refusals, sent};
use starling_protocol::engine::io::{Finish, Input, Notice, Output, Refusal};
use starling_protocol::message::{Estimate, Message, Phase, Question, Stamp, Witness};

/// Estimates and votes among what was sent.
fn votes(bench: &Bench, outputs: &[Output]) -> Vec<Message> {
    let said = sent(&bench.spec, outputs).into_iter().map(|(_, message)| message);
    said.filter(|message| matches!(message, Message::Estimate(_) | Message::Vote(_))).collect()
}

fn witness(stamp: Stamp) -> Message {
    Message::Witness(Witness { incarnation: INCARNATION, stamp })
}

fn at(seq: u64, phase: u8) -> Stamp {
    Stamp { seq, instance: Question::RECORD, ballot: 0, phase }
}

/// A flock of three in its second round, whose engine has named its result; and what it said.
fn named() -> (Bench, Estimate) {
    let mut bench = Bench::flock(3);
    bench.commit();
    let key = bench.all_ready();
    let said = bench.rebuild(key);
    (bench, said)
}

#[test]
fn nothing_is_said_before_it_is_on_the_disk() {
    let mut bench = Bench::flock(3);
    let key = bench.all_ready();
    bench.writes = false;
    bench.feed(Input::Reduced { key, update: crate::bench::digest(9) });
    let outputs =
        bench.feed(Input::Applied { key, update: crate::bench::digest(9), state_root: crate::bench::digest(10) });
    let Some(token) = outputs.iter().find_map(|o| match o {
        Output::Persist { token, candidate: Some(_), .. } => Some(*token),
        _ => None,
    }) else {
        panic!("the result is written with the register: {outputs:?}")
    };
    let waits =
        |o: &Output| !matches!(o, Output::Send { bytes, after, .. } if is_vote(&bench, bytes) && *after != Some(token));
    assert!(outputs.iter().all(waits) && votes(&bench, &outputs).len() == 2);
    // Repetitions do not overtake the write.
    let outputs = bench.wait(6_000_000);
    assert!(votes(&bench, &outputs).is_empty(), "{outputs:?}");
    bench.feed(Input::Durable { token });
    let outputs = bench_wait(&mut bench);
    assert!(!votes(&bench, &outputs).is_empty());
}

fn is_vote(bench: &Bench, bytes: &[u8]) -> bool {
    let message = starling_protocol::wire::open(&crate::bench::Keys, &bench.spec.digest(), bytes).unwrap().message;
    matches!(message, Message::Estimate(_) | Message::Vote(_))
}

fn bench_wait(bench: &mut Bench) -> Vec<Output> {
    for peer in [2, 3] {
        let head = bench.standing(Phase::Settling, 0);
        bench.say(peer, &Message::Head(head));
    }
    bench.wait(3_000_000)
}

#[test]
fn a_restarted_voter_listens_to_a_quorum_and_then_says_the_same_again() {
    let (mut bench, said) = named();
    bench.restart(2_000);
    let mut outputs = bench.greet(2, BOOT);
    outputs.extend(bench_wait(&mut bench));
    assert!(votes(&bench, &outputs).is_empty(), "one of three is no quorum: {outputs:?}");
    let mut outputs = bench.say(2, &witness(at(2, 1)));
    outputs.extend(bench_wait(&mut bench));
    let again = votes(&bench, &outputs);
    assert!(!again.is_empty());
    assert!(again.iter().all(|message| *message == Message::Estimate(said.clone())), "{again:?}");
}

/// Watched: under the old incarnation nothing is signed at or below what was signed before.
#[test]
fn an_old_disk_is_noticed_and_never_votes_under_its_old_name() {
    let (mut bench, _) = named();
    let (head, register) = (bench.head.clone(), bench.register.clone());
    for (old_head, old_register) in [(head.clone(), None), (head, register)] {
        bench.head = old_head;
        // A disk from before the estimate, or one whose register is gone.
        bench.register = old_register.map(|register| starling_protocol::engine::Register {
            stamp: Stamp { ballot: 0, ..at(1, 2) },
            estimate: None,
            vote: None,
            ..register
        });
        let gone = bench.register.is_none();
        bench.candidates.clear();
        bench.restart(3_000);
        let mut outputs = bench.greet(2, BOOT);
        outputs.extend(bench.say(2, &witness(at(2, 1))));
        let renamed = |o: &Output| matches!(o, Output::Notice(Notice::NewIncarnation { incarnation, .. }) if *incarnation >= 3_000);
        assert_eq!(outputs.iter().any(renamed), !gone, "{outputs:?}");
        let joins = |o: &Output| match o {
            Output::Send { bytes, .. } => {
                let opened = starling_protocol::wire::open(&crate::bench::Keys, &bench.spec.digest(), bytes).unwrap();
                matches!(opened.message, Message::Join(join) if join.incarnation >= 3_000)
            }
            _ => false,
        };
        assert!(outputs.iter().any(joins), "it asks to be let in under its new name");
        // It still contributes, as the member that it is, and votes on nothing.
        bench.meet(3);
        for peer in [2, 3] {
            let ready = bench.ready(peer);
            outputs.extend(bench.say(peer, &Message::Ready(ready)));
        }
        outputs.extend(bench.trained());
        outputs.extend(bench.wait(3_000_000));
        assert!(votes(&bench, &outputs).is_empty(), "{outputs:?}");
        assert_eq!(bench.register.as_ref().map(|r| r.stamp), Some(Stamp::default()));
    }
}

/// When all restart at once, nobody remembers what was heard: what the certificates on their disks show is what is left.
#[test]
fn what_certificates_show_is_known_after_a_restart_of_all() {
    let mut bench = Bench::flock(3);
    bench.commit();
    bench.commit();
    let told = |bench: &Bench, outputs: &[Output]| {
        let mut told = sent(&bench.spec, outputs).into_iter().filter_map(|(to, message)| match message {
            Message::Witness(witness) => Some((to, witness.stamp)),
            _ => None,
        });
        told.next().expect("a greeting is answered by a Witness")
    };
    bench.restart(2_000);
    let outputs = bench.greet(2, BOOT);
    assert_eq!(told(&bench, &outputs), (id(2), at(2, 2)));
    // A voter that the head's certificate did not need is in one before.
    if let Some((_, certificate)) = &mut bench.head {
        *certificate = None;
    }
    bench.restart(3_000);
    let outputs = bench.greet(2, BOOT);
    assert_eq!(told(&bench, &outputs), (id(2), at(1, 2)));
}

/// Who reads a vote of its own, in the certificate of a record that it catches up with, which its register does not know
/// of, needs nobody to tell it that its disk is old.
#[test]
fn an_old_disk_is_noticed_by_the_own_vote_in_a_certificate() {
    let mut bench = Bench::flock(3);
    bench.commit();
    let (head, register) = (bench.head.clone(), bench.register.clone());
    bench.commit();
    let newest = std::mem::replace(&mut bench.head, head).expect("a head");
    bench.register = register;
    bench.restart(3_000);
    bench.greet(2, BOOT);
    let mut head = bench.standing(Phase::Training, 0);
    (head.seq, head.record, head.tokens) = (2, newest.0.digest(), newest.0.tokens);
    let mut outputs = bench.say(2, &Message::Head(head));
    outputs.extend(bench.wait(3_000_000));
    assert!(outputs.iter().any(|o| matches!(o, Output::CatchUp { seq: 2, .. })), "{outputs:?}");
    let renamed = |o: &Output| matches!(o, Output::Notice(Notice::NewIncarnation { .. }));
    assert!(!outputs.iter().any(renamed));
    let outputs = bench.feed(Input::CaughtUp { record: newest.0, certificate: newest.1 });
    assert!(outputs.iter().any(renamed), "{outputs:?}");
}

/// Griefing: whoever does not vote cannot talk a restarted voter out of its vote.
#[test]
fn t21_strangers_bear_no_witness() {
    let (mut bench, said) = named();
    bench.restart(2_000);
    bench.greet(9, BOOT);
    let outputs = bench.say(9, &witness(Stamp { seq: u64::MAX, instance: u32::MAX, ballot: u32::MAX, phase: 2 }));
    assert!(!outputs.iter().any(|o| matches!(o, Output::Notice(Notice::NewIncarnation { .. }))), "{outputs:?}");
    bench.greet(2, BOOT);
    let mut outputs = bench.say(2, &witness(at(2, 1)));
    outputs.extend(bench_wait(&mut bench));
    assert!(votes(&bench, &outputs).contains(&Message::Estimate(said)));
}

#[test]
fn t7_two_processes_under_one_key_are_noticed() {
    let mut bench = Bench::flock(3);
    let hello = |boot| bench_hello(boot);
    assert!(refusals(&bench.say(2, &hello(2_000))).is_empty(), "a restart");
    let outputs = bench.say(2, &hello(BOOT));
    assert_eq!(refusals(&outputs), [&Refusal::IdentityInUse], "the first speaks again");

    // This node's own key: the newer start gives way.
    let mut older = Bench::flock(3);
    assert_eq!(refusals(&older.say(ME, &hello(2_000))), [&Refusal::IdentityInUse]);
    assert_eq!(older.engine.view().phase, Phase::Training, "the older one flies on");
    let mut newer = Bench::flock(3);
    let outputs = newer.say(ME, &hello(500));
    assert!(outputs.contains(&Output::Finished { reason: Finish::Fenced }));
    assert!(newer.wait(5_000_000).is_empty(), "and says nothing any more");
}

fn bench_hello(boot: u64) -> Message {
    Bench::seeker().hello(boot)
}

/// One key, two processes, two contributions: one counts.
#[test]
fn t7_a_member_contributes_once_to_a_round() {
    let mut bench = Bench::flock(3);
    let ready = bench.ready(2);
    bench.say(2, &Message::Ready(ready.clone()));
    bench.say(2, &bench_hello(2_000));
    let head = bench.standing(Phase::Ready, 0);
    bench.say(2, &Message::Head(head));
    let again = starling_protocol::message::Ready { boot: 2_000, payload: crate::bench::digest(0x55), ..ready };
    assert!(refusals(&bench.say(2, &Message::Ready(again.clone()))).is_empty());
    let third = bench.ready(3);
    let mut outputs = bench.say(3, &Message::Ready(third));
    outputs.extend(bench.trained());
    let Some(members) = outputs.iter().find_map(|o| match o {
        Output::Reduce { members, .. } => Some(members),
        _ => None,
    }) else {
        panic!("{outputs:?}")
    };
    let twos: Vec<_> = members.iter().filter(|c| c.member == id(2)).map(|c| c.payload).collect();
    assert_eq!((members.len(), twos), (3, vec![again.payload]), "what the process that runs has said");
}
