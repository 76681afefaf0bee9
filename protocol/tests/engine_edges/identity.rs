//! The name under which an identity speaks after a start: never below that of its seat, and never one that another disk
//! may speak under as well.

use crate::bench::{BOOT, Bench, INCARNATION, ME, commits, digest, id, sent, spec, voters};
use crate::certificates::fork_of;
use crate::two::senior_of_two;
use starling_protocol::ancestry::Ancestry;
use starling_protocol::engine::io::{Input, Output};
use starling_protocol::engine::succession::{self, SignedReady};
use starling_protocol::message::{Head, Message, Phase, Ready, Statement, StatementKind, Value, ValueKind};
use starling_protocol::record::{Record, Role};
use starling_protocol::{Digest, wire};

/// The incarnation under which the engine speaks.
fn incarnation(bench: &Bench) -> u64 {
    bench.vote_state.as_ref().expect("a vote_state is on the disk").incarnation
}

/// The other members, which hold the engine to be at most a learner, decide on a record with all contributions.
fn decided_by_others(bench: &mut Bench, statements: &[Statement]) {
    let (parent, spec) = (bench.record(), bench.spec.clone());
    let own = sent(&spec, &bench.trained()).into_iter().find_map(|(_, message)| match message {
        Message::Ready(ready) => Some(ready),
        _ => None,
    });
    let mut readys: Vec<(u8, Ready)> = vec![(ME, own.expect("READY is said"))];
    for peer in [2, 3] {
        let ready = Ready { statements: statements.to_vec(), ..bench.ready(peer) };
        bench.say(peer, &Message::Ready(ready.clone()));
        readys.push((peer, ready));
    }
    let key = bench.running();
    let (update, state_root) = (digest(9), digest(0x80 | bench.record().seq as u8));
    bench.feed(Input::Reduced { key, update });
    bench.feed(Input::Applied { key, update, state_root });
    let signed = |(by, ready): &(u8, Ready)| {
        let bytes = bench.seal(*by, &Message::Ready(ready.clone()));
        let digest = wire::open(&crate::bench::Keys, &spec.digest(), &bytes).expect("well-formed").digest;
        SignedReady { member: id(*by), ready: ready.clone(), digest, bytes }
    };
    let signed: Vec<SignedReady> = readys.iter().map(signed).collect();
    let record = succession::commit(&parent, parent.digest(), &spec, &signed, update, state_root).expect("it follows");
    let tokens = signed.iter().map(|c| c.ready.tokens).sum();
    let (contributors, members) = (signed.len() as u32, Vec::new());
    let (kind, digest) = (ValueKind::Commit, record.digest());
    let value = Value { kind, digest, tokens, contributors, attempt: 0, set: key.set, members };
    let certificate = bench.certificate(&[2, 3], &value);
    bench.say(2, &Message::Certificate(certificate));
    assert_eq!(bench.record(), record);
    for peer in [2, 3] {
        let head = bench.chain_head(Phase::Training, 0);
        bench.say(peer, &Message::Head(head));
    }
}

/// A wiped disk, and a clock that is behind what the flock knows, or gives the very name of the seat.
#[test]
pub fn a_late_clock_gives_no_name_below_that_of_the_seat() {
    for boot in [3, INCARNATION] {
        let mut bench = Bench::flock(3);
        bench.vote_state = None;
        bench.restart(boot);
        assert!(incarnation(&bench) > INCARNATION, "boot {boot}: its Join is not heard");
        let anew = incarnation(&bench);
        for peer in [2, 3] {
            bench.meet(peer);
        }
        bench.wait(3_000_000);
        let grant = Digest::default();
        decided_by_others(
            &mut bench,
            &[Statement { kind: StatementKind::Joins, id: id(ME), incarnation: anew, grant }],
        );
        assert_eq!(bench.record().member(&id(ME)).map(|m| (m.incarnation, m.role)), Some((anew, Role::Learner)));
        decided_by_others(&mut bench, &[]);
        assert_eq!(bench.record().member(&id(ME)).map(|m| (m.incarnation, m.role)), Some((anew, Role::Voter)));
        let key = bench.all_ready();
        assert_eq!(bench.rebuild(key).incarnation, anew, "and votes again");
    }
}

/// A contribution under a new name makes no voter of the seat that has the old name, whoever has heard the Join: nobody
/// could vote on that seat. Found by the simulator (seed 16360).
#[test]
fn a_learner_with_a_new_name_says_so_itself() {
    let mut bench = Bench::flock(3);
    bench.vote_state = None;
    bench.restart(3);
    let anew = incarnation(&bench);
    for peer in [2, 3] {
        bench.meet(peer);
    }
    bench.wait(3_000_000);
    decided_by_others(&mut bench, &[]);
    assert_eq!(bench.record().member(&id(ME)).map(|m| (m.incarnation, m.role)), Some((anew, Role::Learner)));
    decided_by_others(&mut bench, &[]);
    assert_eq!(bench.record().member(&id(ME)).map(|m| (m.incarnation, m.role)), Some((anew, Role::Voter)));
}

/// Two processes, one after the other, with a wiped disk and a late clock each, and with one head.
#[test]
fn two_late_clocks_give_two_names() {
    let mut names = [2, 3].map(|boot| {
        let mut bench = Bench::flock(3);
        bench.vote_state = None;
        bench.restart(boot);
        incarnation(&bench)
    });
    assert!(names.iter().all(|name| *name > INCARNATION));
    names.sort_unstable();
    assert!(names[0] < names[1], "{names:?}");
}

/// The process was killed between taking another lineage's head and writing the vote state.
#[test]
pub fn a_vote_state_of_another_lineage_is_not_taken_up() {
    let mut bench = Bench::flock(3);
    let mut other = bench.record();
    other.lineage = digest(0x66);
    bench.head = Some((other, None));
    bench.restart(2_000);
    assert!(incarnation(&bench) >= 2_000, "it stays mute under its old name");
    assert_eq!(bench.vote_state.as_ref().map(|vote_state| vote_state.lineage), Some(digest(0x66)));
}

/// The process was killed between taking a FORK record as its head and taking the vote state along.
#[test]
pub fn a_forks_member_takes_its_vote_state_along_also_when_it_was_killed() {
    let mut bench = Bench::flock(3);
    let (record, proof) = fork_of(&bench, &[ME, 2], INCARNATION);
    bench.head = Some((record.clone(), Some(proof)));
    bench.restart(2_000);
    let vote_state = bench.vote_state.clone().expect("a vote_state is on the disk");
    assert_eq!((vote_state.incarnation, vote_state.lineage), (INCARNATION, record.lineage));
    // A fork of another lineage, and a fork that knows the node under another name, is another lineage.
    for (left, incarnation) in [(digest(0x77), INCARNATION), (bench.record().lineage, INCARNATION + 1)] {
        let mut bench = Bench::flock(3);
        let (record, proof) = fork_of(&bench, &[ME, 2], incarnation);
        bench.vote_state.as_mut().expect("a vote state").lineage = left;
        bench.head = Some((record, Some(proof)));
        bench.restart(2_000);
        assert!(bench.vote_state.as_ref().is_some_and(|vote_state| vote_state.incarnation >= 2_000));
    }
}

/// A member has signed a fork, and the last Fork of the others does not arrive: it is given the record. It speaks there
/// under the name that it has in the record, and takes its vote state along.
#[test]
fn a_signer_of_a_fork_that_is_given_the_record_keeps_its_incarnation() {
    let mut spec = spec();
    spec.partition.minority = starling_protocol::run::Minority::Fork;
    let mut bench = Bench::flock_of(spec, &voters(5));
    for peer in [3, 4, 5] {
        bench.feed(Input::PeerDown { peer: id(peer) });
    }
    let (record, proof) = fork_of(&bench, &[ME, 2], INCARNATION);
    let signs = |bench: &Bench, outputs: &[Output]| {
        let fork = |message| matches!(message, Message::Fork(fork) if fork.record == record.digest());
        sent(&bench.spec, outputs).into_iter().any(|(_, message)| fork(message))
    };
    let mut waited = 0;
    loop {
        let outputs = bench.wait(1_000_000);
        if signs(&bench, &outputs) {
            break;
        }
        let here = bench.chain_head(Phase::Training, waited);
        bench.say(2, &Message::Head(here));
        waited += 1;
        assert!(waited < 300, "it does not fork: {:?}", bench.engine.view());
    }
    let Record { lineage, seq, tokens, .. } = record;
    let there = Head { record: record.digest(), lineage, seq, tokens, ..bench.chain_head(Phase::Training, 0) };
    let ancestry = Ancestry::of([&bench.record(), &record]);
    let outputs = bench.claim(2, &there, &ancestry);
    let given = |output: &Output| matches!(output, Output::CatchUp { target, .. } if *target == record.digest());
    assert!(outputs.iter().any(given), "{outputs:?}");
    bench.feed(Input::CaughtUp { record, certificate: Some(proof), ancestry });
    let vote_state = bench.vote_state.clone().expect("a vote state is on the disk");
    assert_eq!((vote_state.incarnation, vote_state.lineage), (INCARNATION, lineage));
}

/// A disk that was restored from a backup does not know what its node has signed since, and nobody is here to ask.
#[test]
pub fn a_restarted_voter_of_two_needs_the_word_of_the_other() {
    let mut bench = senior_of_two(spec());
    bench.restart(2_000);
    bench.wait(3_000_000);
    bench.trained();
    bench.wait(60_000_000);
    assert!(bench.attempt().is_none(), "it votes alone");
    assert!(bench.engine.view().quorum.quorum_lost.is_some(), "and does not say what it waits for");
    bench.meet(2);
    bench.wait(3_000_000);
    bench.trained();
    let ready = bench.ready(2);
    bench.say(2, &Message::Ready(ready));
    let key = bench.running();
    bench.rebuild(key);
}

/// Without the other's word the voter does what the run's policy says.
#[test]
fn a_restarted_voter_of_two_that_hears_nobody_forks_after_the_grace() {
    let mut spec = spec();
    spec.partition.minority = starling_protocol::run::Minority::Fork;
    let mut bench = senior_of_two(spec);
    bench.restart(2_000);
    let outputs: Vec<Output> = (0..80).flat_map(|_| bench.wait(1_000_000)).collect();
    let kinds: Vec<_> = commits(&outputs).iter().map(|record| record.kind).collect();
    assert_eq!(kinds.first(), Some(&starling_protocol::record::RecordKind::Fork), "{kinds:?}");
    assert_eq!(bench.record().voters().count(), 1);
}

/// A learner in a flock of two voters, one of which is gone, and the other waits for its word. The learner does not
/// count on that voter, and goes along into its fork.
#[test]
fn a_voter_that_says_it_lost_the_quorum_does_not_count_for_one() {
    let mut spec = spec();
    spec.partition.minority = starling_protocol::run::Minority::Fork;
    let members = [(ME, Role::Learner), (2, Role::Voter), (3, Role::Voter)];
    let mut bench = Bench::flock_of(spec, &members);
    assert_eq!(bench.engine.view().quorum.distinguished, Some(id(2)));
    bench.feed(Input::PeerDown { peer: id(3) });
    let says = |bench: &mut Bench, phase| {
        for progress in 0..10 {
            let head = bench.chain_head(phase, progress);
            bench.say(2, &Message::Head(head));
            bench.wait(500_000);
        }
        bench.engine.view().quorum
    };
    let quorum = says(&mut bench, Phase::Ready);
    assert!(quorum.in_reach && quorum.quorum_lost.is_none());
    let quorum = says(&mut bench, Phase::QuorumLost);
    assert!(!quorum.in_reach && quorum.quorum_lost.is_some());
    assert!(says(&mut bench, Phase::Ready).in_reach);
}

/// The Head that the engine sends to a peer that comes.
fn told(bench: &mut Bench, peer: u8) -> Head {
    let outputs = bench.greet(peer, BOOT);
    let said = sent(&bench.spec, &outputs).into_iter().find_map(|(_, message)| match message {
        Message::Head(head) => Some(head),
        _ => None,
    });
    said.expect("where it stands is said to whoever comes")
}

/// A voter that was killed in the middle of a vote, and has not heard another voter's word since, casts no vote. A node
/// that counted on it would wait for a quorum that does not exist. Found by the simulator (seed 1209).
#[test]
fn a_voter_that_lacks_the_word_of_another_says_so_in_the_middle_of_a_vote() {
    let mut bench = Bench::flock(3);
    let key = bench.all_ready();
    bench.feed(Input::Reduced { key, update: digest(9) });
    bench.feed(Input::Applied { key, update: digest(9), state_root: digest(10) });
    bench.restart(2_000);
    bench.wait(60_000_000);
    assert_eq!(bench.engine.view().phase, Phase::Settling);
    assert_eq!(told(&mut bench, 2).phase, Phase::QuorumLost);
}

/// Voters that halt without a quorum, as the run says, are a quorum again when they hear each other. Found by the
/// simulator (seed 3308).
#[test]
fn voters_that_halted_go_on_when_they_hear_each_other() {
    let mut spec = spec();
    spec.partition.minority = starling_protocol::run::Minority::Halt;
    let mut bench = Bench::flock_of(spec, &voters(3));
    for peer in [2, 3] {
        bench.feed(Input::PeerDown { peer: id(peer) });
    }
    let outputs = bench.wait(10_000_000);
    assert!(outputs.iter().any(|output| matches!(output, Output::StopTraining { .. })), "{outputs:?}");
    assert_eq!(bench.engine.view().phase, Phase::QuorumLost);
    // The other voter has halted for as long, and says the same as this one.
    let said = told(&mut bench, 2);
    for _ in 0..5 {
        bench.say(2, &Message::Head(said.clone()));
        bench.wait(1_000_000);
    }
    let view = bench.engine.view();
    assert!(view.quorum.in_reach, "{view:?}");
    assert_eq!(view.phase, Phase::Training);
}

/// A copy of a folder, or a backup, may be older than statements that the original has signed since: nobody has to
/// remember them.
#[test]
fn a_copied_folder_speaks_anew() {
    let mut bench = Bench::flock(3);
    bench.commit();
    bench.restart_on(2_000, true);
    assert!(incarnation(&bench) >= 2_000);
    for peer in [2, 3] {
        bench.meet(peer);
    }
    bench.wait(3_000_000);
    bench.trained();
    let mut outputs = Vec::new();
    for peer in [2, 3] {
        let ready = bench.ready(peer);
        outputs.extend(bench.say(peer, &Message::Ready(ready)));
    }
    outputs.extend(bench.wait(3_000_000));
    let votes = |(_, message): &(_, Message)| matches!(message, Message::Estimate(_) | Message::Vote(_));
    assert!(!sent(&bench.spec, &outputs).iter().any(votes), "as a learner first");
    // The vote state that the engine writes from then on is of this disk.
    let anew = incarnation(&bench);
    bench.restart(3_000);
    assert_eq!(incarnation(&bench), anew);
}
