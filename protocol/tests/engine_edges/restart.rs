//! Restarts, old disks and clones: an identity is bound by its signed statements, and only one process speaks for it.

use crate::bench::{BOOT, Bench, INCARNATION, ME, id, refusals, sent};
use starling_protocol::engine::io::{Finish, Input, Notice, Output, Refusal};
use starling_protocol::message::{Alive, Estimate, Message, Phase, Question, Stamp, Witness};

/// The estimates and votes among the messages that were sent.
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

/// A flock of three in its second round, whose engine has named its result; and that estimate.
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
        panic!("the result is written with the vote_state: {outputs:?}")
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
        let head = bench.chain_head(Phase::Settling, 0);
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

/// With five voters, the restarted one and one that answers are no quorum.
#[test]
fn a_restarted_voter_of_five_needs_the_word_of_two() {
    let mut bench = Bench::flock(5);
    bench.commit();
    let key = bench.all_ready();
    bench.rebuild(key);
    bench.restart(2_000);
    for (peer, enough) in [(2, false), (3, true)] {
        let mut outputs = bench.greet(peer, BOOT);
        outputs.extend(bench.say(peer, &witness(at(2, 1))));
        outputs.extend(bench_wait(&mut bench));
        assert_eq!(!votes(&bench, &outputs).is_empty(), enough, "after the word of {peer}: {outputs:?}");
    }
}

#[test]
fn a_witness_is_about_one_incarnation() {
    let (mut bench, _) = named();
    bench.restart(2_000);
    bench.greet(2, BOOT);
    let other = Message::Witness(Witness { incarnation: INCARNATION + 1, stamp: at(2, 1) });
    assert_eq!(refusals(&bench.say(2, &other)), [&Refusal::Stale]);
    assert!(refusals(&bench.say(2, &witness(at(2, 1)))).is_empty());
}

/// The bench's watch checks that under the old incarnation nothing is signed at or below an earlier statement.
#[test]
fn an_old_disk_is_noticed_and_never_votes_under_its_old_name() {
    let (mut bench, _) = named();
    let (head, vote_state) = (bench.head.clone(), bench.vote_state.clone());
    for (old_head, old_vote_state) in [(head.clone(), None), (head, vote_state)] {
        bench.head = old_head;
        // The disk is from before the estimate, or its vote state is gone.
        bench.vote_state = old_vote_state.map(|vote_state| starling_protocol::engine::VoteState {
            stamp: Stamp { ballot: 0, ..at(1, 2) },
            estimate: None,
            vote: None,
            ..vote_state
        });
        let gone = bench.vote_state.is_none();
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
        // The engine still contributes, as the member that it is, and votes on nothing.
        bench.meet(3);
        for peer in [2, 3] {
            let ready = bench.ready(peer);
            outputs.extend(bench.say(peer, &Message::Ready(ready)));
        }
        outputs.extend(bench.trained());
        outputs.extend(bench.wait(3_000_000));
        assert!(votes(&bench, &outputs).is_empty(), "{outputs:?}");
        assert_eq!(bench.vote_state.as_ref().map(|r| r.stamp), Some(Stamp::default()));
    }
}

/// A disk lost its newest records, but kept the vote state: nothing is signed again at or below the newest statement,
/// though the flock seems to be at the disk's head.
#[test]
fn a_vote_state_ahead_of_its_head_signs_nothing_below_it() {
    let mut bench = Bench::flock(3);
    let first = bench.head.clone();
    bench.commit();
    let key = bench.all_ready();
    bench.rebuild(key);
    let stamp = bench.vote_state.as_ref().map(|vote_state| vote_state.stamp);
    assert_eq!(stamp, Some(at(2, 1)));
    bench.head = first;
    bench.candidates.clear();
    bench.restart(2_000);
    for peer in [2, 3] {
        bench.greet(peer, BOOT);
        bench.say(peer, &witness(at(2, 1)));
    }
    let mut outputs = bench_wait(&mut bench);
    let key = bench.all_ready();
    outputs.extend(bench.feed(Input::Reduced { key, update: crate::bench::digest(9) }));
    let applied = Input::Applied { key, update: crate::bench::digest(9), state_root: crate::bench::digest(10) };
    outputs.extend(bench.feed(applied));
    outputs.extend(bench.wait(5_000_000));
    assert!(votes(&bench, &outputs).is_empty(), "{outputs:?}");
    assert_eq!(bench.vote_state.as_ref().map(|vote_state| vote_state.stamp), stamp);
}

/// When all restart at once, nobody remembers what was heard: only the certificates on their disks show it.
#[test]
fn votes_that_certificates_show_are_known_after_a_restart_of_all_nodes() {
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
    // A voter whose vote the head's certificate did not need is in an earlier one.
    if let Some((_, certificate)) = &mut bench.head {
        *certificate = None;
    }
    bench.restart(3_000);
    let outputs = bench.greet(2, BOOT);
    assert_eq!(told(&bench, &outputs), (id(2), at(1, 2)));
}

/// A node reads a vote of its own in the certificate of a record that it catches up with, and its vote state does not
/// know that vote. Nobody needs to tell it that its disk is old.
#[test]
fn an_old_disk_is_noticed_by_the_own_vote_in_a_certificate() {
    let mut bench = Bench::flock(3);
    bench.commit();
    let (head, vote_state) = (bench.head.clone(), bench.vote_state.clone());
    bench.commit();
    let newest = std::mem::replace(&mut bench.head, head).expect("a head");
    bench.vote_state = vote_state;
    bench.restart(3_000);
    bench.greet(2, BOOT);
    let mut head = bench.chain_head(Phase::Training, 0);
    (head.seq, head.record, head.tokens) = (2, newest.0.digest(), newest.0.tokens);
    let ancestry = bench.way(&head);
    let mut outputs = bench.say(2, &Message::Head(head.clone()));
    outputs.extend(bench.wait(3_000_000));
    outputs.extend(bench.claim(2, &head, &ancestry));
    assert!(outputs.iter().any(|o| matches!(o, Output::CatchUp { seq: 2, .. })), "{outputs:?}");
    let renamed = |o: &Output| matches!(o, Output::Notice(Notice::NewIncarnation { .. }));
    assert!(!outputs.iter().any(renamed));
    let outputs = bench.feed(Input::CaughtUp { record: newest.0, certificate: newest.1, ancestry });
    assert!(outputs.iter().any(renamed), "{outputs:?}");
}

/// Griefing: a node that does not vote cannot talk a restarted voter out of its vote.
#[test]
pub fn t21_strangers_bear_no_witness() {
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

/// A voter whose disk was wiped has no head yet. It cannot tell who votes, and is the only one that heard a word.
#[test]
fn a_node_without_a_head_bears_witness() {
    let (_, said) = named();
    let mut bench = Bench::seeker();
    bench.greet(2, BOOT);
    assert_eq!(refusals(&bench.say(2, &Message::Estimate(said))), [&Refusal::Stale]);
    let outputs = bench.greet(2, 2_000);
    let mut told = sent(&bench.spec, &outputs).into_iter().filter_map(|(to, message)| match message {
        Message::Witness(witness) => Some((to, witness.stamp)),
        _ => None,
    });
    assert_eq!(told.next_back(), Some((id(2), at(2, 1))));
}

#[test]
fn t7_on_one_connection_no_start_comes_back() {
    let mut bench = Bench::flock(3);
    assert!(refusals(&bench.say(2, &bench_hello(2_000))).is_empty(), "a restart");
    let outputs = bench.say(2, &bench_hello(BOOT));
    assert_eq!(refusals(&outputs), [&Refusal::Stale], "its word came late");
    assert!(refusals(&bench.say(2, &bench_hello(2_000))).is_empty(), "and the second is still the one that counts");
}

/// A process of `peer` says Hello on a connection beside the channel's.
fn beside(bench: &mut Bench, peer: u8, boot: u64) -> Vec<Output> {
    let hello = bench.seal(peer, &bench_hello(boot));
    bench.feed(Input::Duplicate { peer: id(peer), hello })
}

fn alive(boot: u64, newer: u64) -> Message {
    Message::Alive(Alive { boot, newer })
}

/// The outputs without those that time alone causes.
fn about_duplicates(outputs: &[Output]) -> Vec<&Output> {
    let about = |o: &&Output| matches!(o, Output::Admit { .. } | Output::Deny { .. } | Output::Refuse { .. });
    outputs.iter().filter(about).collect()
}

/// The whole way: the peer between the two, the older process, the newer one.
#[test]
fn t7_of_two_processes_with_one_key_the_newer_learns_that_the_older_lives() {
    let mut between = Bench::flock(3);
    let outputs = beside(&mut between, 2, 2_000);
    let shown = between.seal(2, &bench_hello(2_000));
    let passed_on = |o: &Output| matches!(o, Output::Send { to, bytes, .. } if (*to, bytes) == (id(2), &shown));
    assert!(outputs.iter().any(passed_on) && about_duplicates(&outputs).is_empty(), "{outputs:?}");

    // The older process of node 1 is shown the Hello of a later start.
    let mut older = Bench::flock(3);
    let shown = older.seal(ME, &bench_hello(2_000));
    let outputs = older.hear(2, shown.clone());
    assert!(sent(&older.spec, &outputs).contains(&(id(2), alive(BOOT, 2_000))), "{outputs:?}");
    assert_eq!(refusals(&outputs), [&Refusal::IdentityInUse], "its user is told");
    let outputs = older.hear(3, shown);
    assert!(sent(&older.spec, &outputs).contains(&(id(3), alive(BOOT, 2_000))), "whoever asks is answered");
    assert_eq!((older.engine.view().phase, refusals(&outputs).len()), (Phase::Training, 0), "and once is enough");

    let proof = between.seal(2, &alive(BOOT, 2_000));
    let outputs = between.say(2, &alive(BOOT, 2_000));
    assert_eq!(about_duplicates(&outputs), [&Output::Deny { peer: id(2), proof: Some(proof) }]);
    assert_eq!(refusals(&outputs), [&Refusal::IdentityInUse], "counted; the older one stays");
    let ready = between.ready(2);
    assert!(refusals(&between.say(2, &Message::Ready(ready))).is_empty(), "and contributes");

    // Any peer may hand the proof to the newer process of node 1.
    let mut newer = Bench::flock(3);
    newer.restart(2_000);
    newer.greet(9, BOOT);
    let proof = newer.seal(ME, &alive(BOOT, 2_000));
    let outputs = newer.hear(9, proof);
    assert!(outputs.contains(&Output::Finished { reason: Finish::Fenced }), "{outputs:?}");
    assert!(newer.wait(5_000_000).is_empty(), "and says nothing any more");
}

/// A message from before this process began does not end it, nor does a message that others sign.
#[test]
fn t7_what_is_not_about_this_very_start_fences_nobody() {
    let mut bench = Bench::flock(3);
    bench.restart(2_000);
    let sayings = [bench_hello(500), bench_hello(2_000), alive(500, 1_999), alive(2_000, 2_001), alive(2_001, 3_000)];
    for message in sayings {
        let shown = bench.seal(ME, &message);
        let outputs = bench.hear(3, shown);
        assert_eq!(refusals(&outputs), [&Refusal::Stale], "{message:?}");
        assert!(sent(&bench.spec, &outputs).iter().all(|(_, said)| !matches!(said, Message::Alive(_))));
    }
    // A message of another's key means nothing to this process.
    bench.meet(3);
    let outputs = bench.say(3, &alive(500, 2_000));
    assert_eq!(refusals(&outputs), [&Refusal::Stale]);
    // A node's own message of another kind that comes back to it is refused as usual.
    let shown = bench.seal(ME, &crate::admission::join(&bench, &[]));
    assert_eq!(refusals(&bench.hear(3, shown)), [&Refusal::Malformed { what: "sender" }]);
    assert!(!bench.wait(3_000_000).is_empty(), "it lives");
}

/// A process with a late clock takes a boot above that of the seat: the boots between belonged to other processes, and
/// a message that was signed to end one of these ends no later process.
#[test]
fn t7_an_old_sign_of_life_ends_no_process_with_a_late_clock() {
    let mut bench = Bench::flock(3);
    bench.vote_state = None;
    bench.restart(3);
    let taken =
        bench.vote_state.as_ref().map(|vote_state| vote_state.incarnation).expect("a vote_state is on the disk");
    assert!(taken > 7, "above that of the seat");
    bench.greet(2, BOOT);
    for newer in [4, 7, taken - 1] {
        let outputs = bench.hear(2, bench.seal(ME, &alive(2, newer)));
        assert_eq!(refusals(&outputs), [&Refusal::Stale], "for {newer}");
    }
    let outputs = bench.hear(2, bench.seal(ME, &alive(2, taken)));
    assert!(outputs.contains(&Output::Finished { reason: Finish::Fenced }), "that is its own Hello");
}

/// A peer's answer to a challenge that was never made, or to another one, closes nobody's connection.
#[test]
fn t7_an_unasked_sign_of_life_is_stale() {
    let mut bench = Bench::flock(3);
    assert_eq!(refusals(&bench.say(2, &alive(BOOT, 2_000))), [&Refusal::Stale]);
    beside(&mut bench, 2, 2_000);
    assert_eq!(refusals(&bench.say(2, &alive(BOOT, 2_001))), [&Refusal::Stale]);
    assert_eq!(about_duplicates(&bench.say(2, &alive(BOOT, 2_000))).len(), 1);
    assert_eq!(refusals(&bench.say(2, &alive(BOOT, 2_000))), [&Refusal::Stale], "once for each challenge");
}

/// After a power cut the connection of the dead process may look alive.
#[test]
fn t7_a_process_that_is_silent_is_replaced() {
    let mut bench = Bench::flock(3);
    let mut waited = 0;
    while about_duplicates(&beside(&mut bench, 2, 2_000)).is_empty() {
        bench.wait(500_000);
        waited += 1;
        assert!(waited < 60, "it has to wait for ever");
    }
    assert!(waited > 2, "not at once");
    assert_eq!(about_duplicates(&beside(&mut bench, 2, 2_000)), [&Output::Admit { peer: id(2) }]);
    // The driver closes the connection.
    bench.feed(Input::PeerDown { peer: id(2) });
    assert!(about_duplicates(&beside(&mut bench, 2, 3_000)).is_empty(), "there is no channel to be had");
    assert!(refusals(&bench.greet(2, 2_000)).is_empty());
    // The new process counts by its own signs of life: the next one is not admitted because the former was silent.
    assert!(about_duplicates(&beside(&mut bench, 2, 3_000)).is_empty());
    // The silent process is back: it was there first.
    assert_eq!(about_duplicates(&beside(&mut bench, 2, BOOT)), [&Output::Admit { peer: id(2) }]);
    bench.feed(Input::PeerDown { peer: id(2) });
    assert!(refusals(&bench.greet(2, BOOT)).is_empty());
}

/// A holder of the key may say anything beside the channel; the process that has the channel does not pay for it.
#[test]
fn t7_nonsense_beside_the_channel_is_turned_away() {
    let mut bench = Bench::flock(3);
    let other_run = starling_protocol::wire::seal(&crate::bench::Key(id(2)), &crate::bench::digest(7), &bench_hello(9));
    let (head, hello) = (bench.chain_head(Phase::Training, 0), bench.seal(3, &bench_hello(2_000)));
    let not_a_hello = bench.seal(2, &Message::Head(head));
    for bytes in [vec![1, 2, 3], other_run.unwrap(), hello, not_a_hello] {
        let outputs = bench.feed(Input::Duplicate { peer: id(2), hello: bytes });
        assert_eq!(about_duplicates(&outputs), [&Output::Deny { peer: id(2), proof: None }]);
    }
    let ready = bench.ready(2);
    assert!(refusals(&bench.say(2, &Message::Ready(ready))).is_empty(), "the channel stays");
    // Nobody can wait beside the channel of a node that is not connected.
    assert!(about_duplicates(&beside(&mut bench, 9, 2_000)).is_empty());
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
    let head = bench.chain_head(Phase::Ready, 0);
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
