//! Proofs of a record, bytes that prove none, and two proofs for one place.

use crate::bench::{Bench, INCARNATION, Keys, ME, commits, digest, id, refusals, sent, spec, voters};
use starling_protocol::certificate::{self, CertificateError, Split};
use starling_protocol::engine::io::{Input, Notice, Output, Refusal};
use starling_protocol::engine::succession;
use starling_protocol::message::{
    Certificate, Estimate, Fork, Join, Message, Phase, Question, Ready, Value, ValueKind, Vote, member_bits,
};
use starling_protocol::quorum::Quorum;
use starling_protocol::record::{Record, RecordKind, Role};

/// The SKIP after the head, as a value and as a record.
fn skip(bench: &Bench) -> (Value, Record) {
    let head = bench.record();
    let record = succession::skip(&head, head.digest()).unwrap();
    (Value::skip(record.digest()), record)
}

fn verify(bench: &Bench, record: &Record, certificate: &Certificate) -> Result<(), CertificateError> {
    let parent = bench.record();
    certificate::verify(&Keys, &bench.spec, &parent, &parent.digest(), record, certificate)
}

#[test]
fn a_quorum_of_votes_in_one_ballot_proves_a_record() {
    let bench = Bench::flock_of(spec(), &[(1, Role::Voter), (2, Role::Voter), (3, Role::Voter), (4, Role::Learner)]);
    let (value, record) = skip(&bench);
    let proof = |members: &[u8]| bench.certificate(members, &value);
    assert_eq!(verify(&bench, &record, &proof(&[2, 3])), Ok(()));
    assert_eq!(verify(&bench, &record, &proof(&[1, 2, 3])), Ok(()));
    assert_eq!(verify(&bench, &record, &proof(&[3])), Err(CertificateError::NoQuorum(1)), "too few");
    assert_eq!(verify(&bench, &record, &proof(&[])), Err(CertificateError::NoQuorum(0)));
    assert_eq!(verify(&bench, &record, &proof(&[2, 4])), Err(CertificateError::NotAVoter(id(4))), "a learner");
    assert_eq!(verify(&bench, &record, &proof(&[2, 9])), Err(CertificateError::NotAVoter(id(9))), "a stranger");
    let changed = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut certificate = proof(&[2, 3]);
        change(&mut certificate.votes);
        verify(&bench, &record, &certificate)
    };
    assert_eq!(changed(&|votes| votes.reverse()), Err(CertificateError::NotAscending));
    assert_eq!(changed(&|votes| votes[1] = votes[0].clone()), Err(CertificateError::NotAscending), "one twice");
    assert!(matches!(changed(&|votes| votes[0][50] ^= 1), Err(CertificateError::Malformed(_))), "forged");
    assert!(matches!(changed(&|votes| votes[0].truncate(9)), Err(CertificateError::Malformed(_))));
    let other = |vote: Vote| changed(&move |votes| votes[1] = bench_seal(3, &Message::Vote(vote.clone())));
    let vote =
        Vote { question: bench.question(), incarnation: INCARNATION, ballot: 0, value: value.clone(), voted: true };
    assert_eq!(other(vote.clone()), Ok(()));
    assert_eq!(other(Vote { ballot: 1, ..vote.clone() }), Err(CertificateError::OtherVote), "another ballot");
    assert_eq!(other(Vote { voted: false, ..vote.clone() }), Err(CertificateError::OtherVote), "an abstention");
    assert_eq!(other(Vote { value: Value::skip(digest(1)), ..vote.clone() }), Err(CertificateError::OtherVote));
    assert_eq!(other(Vote { incarnation: 8, ..vote.clone() }), Err(CertificateError::NotAVoter(id(3))));
    let asked = |question: Question| other(Vote { question, ..vote.clone() });
    let question = bench.question();
    assert_eq!(asked(Question { seq: 2, ..question.clone() }), Err(CertificateError::OtherVote));
    assert_eq!(asked(Question { parent: digest(1), ..question.clone() }), Err(CertificateError::OtherVote));
    let said = Estimate { question, incarnation: INCARNATION, ballot: 0, value: value.clone() };
    let estimate = changed(&move |votes| votes[1] = bench_seal(3, &Message::Estimate(said.clone())));
    assert_eq!(estimate, Err(CertificateError::OtherVote), "an estimate decides nothing");
}

fn bench_seal(from: u8, message: &Message) -> Vec<u8> {
    starling_protocol::wire::seal(&crate::bench::Key(id(from)), &spec().digest(), message).unwrap()
}

/// A vote on a set decides the members of an attempt, never a record.
#[test]
fn votes_on_sets_prove_no_record() {
    let bench = Bench::flock(3);
    let (value, record) = skip(&bench);
    let set = Value { kind: ValueKind::Set, set: value.digest, members: vec![0b111], attempt: 1, ..value };
    let set = Value { contributors: 3, ..set };
    let question = Question { instance: 1, ..bench.question() };
    let vote = |n| {
        let (question, value) = (question.clone(), set.clone());
        bench.seal(n, &Message::Vote(Vote { question, incarnation: INCARNATION, ballot: 0, value, voted: true }))
    };
    let certificate = Certificate {
        lineage: record.lineage,
        seq: record.seq,
        record: record.digest(),
        votes: vec![vote(2), vote(3)],
    };
    assert_eq!(verify(&bench, &record, &certificate), Err(CertificateError::OtherVote));
}

#[test]
fn a_certificate_proves_one_record_that_follows() {
    let bench = Bench::flock(3);
    let (value, record) = skip(&bench);
    let certificate = bench.certificate(&[2, 3], &value);
    let other = Record { state_root: digest(1), ..record.clone() };
    assert_eq!(verify(&bench, &other, &certificate), Err(CertificateError::OtherRecord));
    let other = Record { tokens: 1, ..record };
    let certificate = bench.certificate(&[2, 3], &Value::skip(other.digest()));
    assert!(matches!(verify(&bench, &other, &certificate), Err(CertificateError::DoesNotFollow(_))));
}

#[test]
fn a_certificate_that_proves_nothing_is_refused_and_one_that_does_is_believed() {
    let mut bench = Bench::flock(4);
    let (value, record) = skip(&bench);
    let before = bench.still();
    // Two of four are half of the voters: they are a quorum only with the distinguished one.
    let distinguished = Quorum::after(&record).distinguished();
    let half: Vec<u8> = (2..=4).filter(|n| id(*n) != distinguished).take(2).collect();
    let stranger = [half[0], half[1], 9];
    let bad = [bench.certificate(&half, &value), bench.certificate(&stranger, &value)];
    let bad = bad.into_iter().chain([Certificate { votes: Vec::new(), ..bench.certificate(&[2], &value) }]);
    for certificate in bad.collect::<Vec<_>>() {
        let outputs = bench.say(4, &Message::Certificate(certificate));
        let what = "certificate that proves nothing";
        assert_eq!(refusals(&outputs), [&Refusal::Malformed { what }]);
        assert_eq!(commits(&outputs), Vec::<&Record>::new());
        bench.reconnect(4);
        assert_eq!(bench.still(), before);
    }
    let mut outputs = bench.say(4, &Message::Certificate(bench.certificate(&[2, 3, 4], &value)));
    // The engine's own inner steps are ended first, so that they count in the next record.
    outputs.extend(bench.trained());
    assert_eq!(commits(&outputs), [&record]);
}

#[test]
fn two_proofs_for_one_place_freeze_the_node_and_show_both() {
    let mut bench = Bench::flock(3);
    let (value, _) = skip(&bench);
    // A quorum of liars, or of cloned disks, could sign this as well.
    let theirs = bench.certificate(&[2, 3], &value);
    let outputs = bench.commit();
    let ours = bench.head.clone().and_then(|(_, certificate)| certificate).unwrap();
    assert_eq!(commits(&outputs).len(), 1);
    let outputs = bench.say(2, &Message::Certificate(theirs.clone()));
    assert!(outputs.contains(&Output::Notice(Notice::SplitBrain { ours: ours.clone(), theirs: theirs.clone() })));
    assert!(outputs.iter().any(|output| matches!(output, Output::StopTraining { .. })), "{outputs:?}");
    let told = sent(&bench.spec, &outputs);
    assert!(told.iter().any(|(_, m)| matches!(m, Message::Head(head) if head.phase == Phase::Frozen)), "{told:?}");
    let view = bench.engine.view();
    assert!(view.phase == Phase::Frozen && view.quorum.frozen);
    assert_eq!(view.waiting.map(|waiting| waiting.why), Some("a person: two certified records contradict each other"));
    // Nothing is decided any more, and nothing signed, although time passes and votes come in.
    let (value, _) = skip(&bench);
    let mut outputs = bench.say(3, &Message::Certificate(theirs));
    outputs.extend(bench.say(3, &Message::Certificate(bench.certificate(&[2, 3], &value))));
    outputs.extend(bench.trained());
    outputs.extend(bench.wait(30_000_000));
    let silent = |(_, message): &(_, Message)| matches!(message, Message::Head(_) | Message::Hello(_));
    assert!(sent(&bench.spec, &outputs).iter().all(silent), "{outputs:?}");
    assert!(commits(&outputs).is_empty());
    assert!(!outputs.iter().any(|o| matches!(o, Output::Notice(Notice::SplitBrain { .. }))), "it is told once");
}

/// The place is further back than the engine remembers: a catch-up's finding counts if both records are proven.
#[test]
fn two_proofs_for_a_place_long_ago_freeze_the_node_as_well() {
    let mut bench = Bench::flock(3);
    let parent = bench.record();
    let (value, other) = skip(&bench);
    let theirs = (other, bench.certificate(&[2, 3], &value));
    let thin = (theirs.0.clone(), bench.certificate(&[2], &value));
    bench.commit();
    let ours = bench.head.clone().map(|(record, certificate)| (record, certificate.unwrap())).unwrap();
    for _ in 0..9 {
        bench.commit();
    }
    let elsewhere = |mut proven: (Record, Certificate)| {
        proven.0.lineage = digest(0x77);
        proven.1.lineage = digest(0x77);
        proven
    };
    let splits = [
        Split { parent: parent.clone(), ours: ours.clone(), theirs: thin },
        Split { parent: parent.clone(), ours: ours.clone(), theirs: ours.clone() },
        Split { parent: parent.clone(), ours: ours.clone(), theirs: elsewhere(theirs.clone()) },
        Split { parent: ours.0.clone(), ours: ours.clone(), theirs: theirs.clone() },
    ];
    for split in splits {
        bench.feed(Input::Contradicted { split: Box::new(split.clone()) });
        assert!(!bench.engine.view().quorum.frozen, "{split:?}");
    }
    let split = Split { parent, ours: ours.clone(), theirs: theirs.clone() };
    let outputs = bench.feed(Input::Contradicted { split: Box::new(split) });
    assert!(outputs.contains(&Output::Notice(Notice::SplitBrain { ours: ours.1, theirs: theirs.1 })), "{outputs:?}");
    assert!(bench.engine.view().quorum.frozen);
}

/// Another past that former voters have signed says nothing about the present flock, however well it is proven.
#[test]
fn an_old_key_freezes_nobody() {
    let mut bench = Bench::flock(5);
    let (value, _) = skip(&bench);
    // Only 3 signs both: the own record takes the votes of 1, 2 and 3 first.
    let theirs = bench.certificate(&[3, 4, 5], &value);
    bench.commit();
    let ours = bench.head.clone().and_then(|(_, certificate)| certificate).unwrap();
    assert_eq!(certificate::signers(&ours), [1, 2, 3].map(id).into());
    bench.trained();
    for member in 2..=5 {
        let ready = Ready { leave: member == 3, ..bench.ready(member) };
        bench.say(member, &Message::Ready(ready));
    }
    let key = bench.running();
    bench.decide(key);
    assert!(bench.record().member(&id(3)).is_none(), "it has left");
    let outputs = bench.say(2, &Message::Certificate(theirs));
    assert_eq!(refusals(&outputs), [&Refusal::FalseEvidence { why: "former_voters" }]);
    assert!(!bench.engine.view().quorum.frozen);
    bench.meet_again(2);
    bench.commit();

    // A founder that was the only voter has signed two children of its record; now it votes, learns, or is gone.
    let mut alone = Bench::flock(1);
    let parent = alone.record();
    let (value, other) = skip(&alone);
    let theirs = (other, alone.certificate(&[ME], &value));
    let key = alone.all_ready();
    alone.feed(Input::Reduced { key, update: digest(9) });
    alone.feed(Input::Applied { key, update: digest(9), state_root: digest(10) });
    let ours = alone.head.clone().map(|(record, certificate)| (record, certificate.unwrap())).unwrap();
    let split = Split { parent, ours, theirs };
    for (role, freezes) in [(Role::Voter, true), (Role::Learner, false)] {
        let mut bench = Bench::flock_of(spec(), &[(ME, role), (2, Role::Voter), (3, Role::Voter)]);
        let outputs = bench.feed(Input::Contradicted { split: Box::new(split.clone()) });
        assert_eq!(bench.engine.view().quorum.frozen, freezes, "{role:?}");
        let what = "records of former voters";
        let told = Notice::Refused { peer: id(ME), refusal: Refusal::Equivocation { what } };
        assert_eq!(outputs.contains(&Output::Notice(told)), !freezes);
    }
}

/// A node that hears of another record at a place that it holds hands out its own proof, so that both sides see both.
#[test]
fn a_head_that_contradicts_is_answered_with_the_proof() {
    let mut bench = Bench::flock(3);
    bench.commit();
    let ours = bench.head.clone().and_then(|(_, certificate)| certificate).unwrap();
    let mut head = bench.chain_head(Phase::Training, 3);
    head.record = digest(0x77);
    bench.wait(2_000_000);
    let outputs = bench.say(2, &Message::Head(head));
    assert!(sent(&bench.spec, &outputs).contains(&(id(2), Message::Certificate(ours))), "{outputs:?}");
}

pub fn fork_of(bench: &Bench, members: &[u8], incarnation: u64) -> (Record, Certificate) {
    let parent = bench.record();
    let ids: Vec<_> = members.iter().map(|n| (id(*n), incarnation)).collect();
    let record = succession::fork(&parent, parent.digest(), &bench.spec, &ids).unwrap();
    let bits = member_bits(members.iter().filter_map(|n| parent.member_index(&id(*n))));
    let (lineage, seq, named) = (parent.lineage, parent.seq + 1, record.digest());
    let says = Fork { lineage, seq, parent: parent.digest(), incarnation, record: named, members: bits };
    let votes = members.iter().map(|n| bench.seal(*n, &Message::Fork(says.clone()))).collect();
    let certificate = Certificate { lineage: record.lineage, seq: record.seq, record: record.digest(), votes };
    (record, certificate)
}

fn opened(bench: &Bench, bytes: &[u8]) -> Message {
    starling_protocol::wire::open(&Keys, &bench.spec.digest(), bytes).unwrap().message
}

#[test]
fn a_fork_is_proven_by_all_its_members_and_nobody_else() {
    let bench = Bench::flock(4);
    let (record, good) = fork_of(&bench, &[2, 3], INCARNATION);
    assert_eq!(record.kind, RecordKind::Fork);
    assert_eq!(verify(&bench, &record, &good), Ok(()));
    let changed = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut certificate = good.clone();
        change(&mut certificate.votes);
        verify(&bench, &record, &certificate)
    };
    assert_eq!(changed(&|votes| votes.truncate(1)), Err(CertificateError::NoQuorum(1)), "one is silent");
    assert_eq!(changed(&|votes| votes.clear()), Err(CertificateError::NoQuorum(0)));
    assert_eq!(changed(&|votes| votes.reverse()), Err(CertificateError::NotAscending));
    let (_, three) = fork_of(&bench, &[2, 3, 4], INCARNATION);
    let other_set = three.votes[1].clone();
    assert_eq!(changed(&|votes| votes[1] = other_set.clone()), Err(CertificateError::OtherVote), "of other members");
    assert_eq!(changed(&|votes| votes.push(three.votes[2].clone())), Err(CertificateError::OtherVote));
    let (_, anew) = fork_of(&bench, &[2, 3], 9);
    assert_eq!(changed(&|votes| *votes = anew.votes.clone()), Err(CertificateError::OtherVote), "incarnations");
    // The Fork is under another incarnation than the one in the record that it names.
    let Message::Fork(said) = opened(&bench, &good.votes[1]) else { panic!("a fork's proof are Forks") };
    let other = bench.seal(3, &Message::Fork(Fork { incarnation: 9, ..said }));
    assert_eq!(
        changed(&|votes| votes[1] = other.clone()),
        Err(CertificateError::DoesNotFollow("a fork follows from its members alone".to_owned())),
    );
    let votes = bench.certificate(&[2, 3], &Value::skip(record.digest())).votes;
    assert_eq!(changed(&|own| *own = votes.clone()), Err(CertificateError::OtherVote), "votes make no fork");
}

/// The record of a fork follows from its members: its proof is no proof for other leases, roles or names.
#[test]
fn a_forks_record_is_the_one_that_follows() {
    let bench = Bench::flock(4);
    let (record, good) = fork_of(&bench, &[2, 3], INCARNATION);
    let proves = |change: &dyn Fn(&mut Record)| {
        let mut other = record.clone();
        change(&mut other);
        assert_ne!(other, record);
        let named = Certificate { lineage: other.lineage, record: other.digest(), ..good.clone() };
        let by_names = verify(&bench, &other, &named);
        // This holds even if its members' statements name the other record.
        let sign = |(bytes, by): (&Vec<u8>, u8)| {
            let Message::Fork(said) = opened(&bench, bytes) else { panic!("a fork's proof are Forks") };
            bench.seal(by, &Message::Fork(Fork { record: other.digest(), ..said }))
        };
        let votes = good.votes.iter().zip([2, 3]).map(sign).collect();
        assert_eq!(verify(&bench, &other, &Certificate { votes, ..named }).is_ok(), by_names.is_ok());
        by_names
    };
    assert!(proves(&|r| (r.next.members[1].lease.count += 1, r.cursor += 1).1).is_err(), "how long its leases are");
    assert!(proves(&|r| r.next.members[0].role = Role::Learner).is_err(), "who voted still votes");
    assert!(proves(&|r| r.lineage = digest(0x33)).is_err(), "its name follows from its members");
    assert!(proves(&|r| r.next.members[1].expected = false).is_err());
    assert!(proves(&|r| r.next.members[1].absent = 1).is_err());
    assert!(proves(&|r| r.revoked.push(digest(1))).is_err(), "what is revoked is carried along");
    assert!(proves(&|r| r.next.inner_steps += 1).is_err(), "settings are carried along");
}

/// Without a quorum, with the policy `fork`: the fork has the members that all of them name, after the grace and not
/// before.
#[test]
fn a_fork_needs_the_word_of_everybody_in_it() {
    let mut run = spec();
    run.partition.minority = starling_protocol::run::Minority::Fork;
    let mut bench = Bench::flock_of(run, &voters(5));
    for gone in [3, 4, 5] {
        bench.feed(Input::PeerDown { peer: id(gone) });
    }
    let parent = bench.record();
    let (record, proof) = fork_of(&bench, &[ME, 2], INCARNATION);
    let Message::Fork(theirs) = opened(&bench, &proof.votes[1]) else { panic!("a fork's proof are Forks") };
    let mut outputs = Vec::new();
    let beat = |bench: &mut Bench, seconds: u64| {
        let mut outputs = Vec::new();
        for progress in 0..seconds {
            let head = bench.chain_head(Phase::Training, progress);
            outputs.extend(bench.say(2, &Message::Head(head)));
            outputs.extend(bench.wait(1_000_000));
        }
        outputs
    };
    outputs.extend(beat(&mut bench, 50));
    assert!(outputs.iter().any(|o| matches!(o, Output::Notice(Notice::QuorumLost { grace: 60_000_000, .. }))));
    // One member says it too early: no node goes before its own grace is over.
    outputs.extend(bench.say(2, &Message::Fork(theirs)));
    assert!(commits(&outputs).is_empty());
    let outputs = beat(&mut bench, 20);
    assert_eq!(commits(&outputs), [&record], "the same record that the other builds");
    let proven = bench.head.clone().and_then(|(_, proof)| proof).unwrap();
    assert_eq!(proven.votes, proof.votes);
    assert!(
        outputs.contains(&Output::Notice(Notice::Forked { lineage: record.lineage, members: vec![id(ME), id(2)] }))
    );
    // No honest node shows a certificate that names another record: a node that shows one is refused, and nobody
    // freezes.
    let shown = Certificate { record: digest(0x55), ..proven };
    let refused = bench.say(2, &Message::Certificate(shown));
    assert_eq!(refusals(&refused), [&Refusal::Malformed { what: "certificate that proves nothing" }]);
    assert!(!bench.engine.view().quorum.frozen);
    // A node that was left behind comes over under a new incarnation, and asks under that one.
    bench.reconnect(4);
    let ask = |bench: &mut Bench, at: &Record, incarnation| {
        let (lineage, seq, state_root) = (at.lineage, at.seq, at.state_root);
        let join = Join { lineage, seq, record: at.digest(), state_root, incarnation, ticket: Vec::new() };
        bench.say(4, &Message::Join(join)).into_iter().find(|o| matches!(o, Output::Notice(Notice::Refused { .. })))
    };
    let stale = Output::Notice(Notice::Refused { peer: id(4), refusal: Refusal::Stale });
    assert_eq!(ask(&mut bench, &parent, INCARNATION), Some(stale), "still of the lineage before");
    assert_eq!(ask(&mut bench, &record, INCARNATION + 1), None);
}

/// A SKIP follows from its parent alone, so a quorum's votes for another one are worth nothing.
#[test]
fn a_skip_is_the_one_that_follows() {
    let bench = Bench::flock(4);
    let (_, record) = skip(&bench);
    let proves = |other: &Record| verify(&bench, other, &bench.certificate(&[2, 3, 4], &Value::skip(other.digest())));
    assert_eq!(proves(&record), Ok(()));
    for other in [Record { revoked: vec![digest(1)], ..record.clone() }, Record { cursor: record.cursor + 1, ..record }]
    {
        assert!(matches!(proves(&other), Err(CertificateError::DoesNotFollow(_))));
    }
}

/// Any node that has read a FORK record can lengthen a lease by one without any key, and show both: that is no split.
#[test]
pub fn a_fork_with_another_lease_is_no_split_and_freezes_nobody() {
    let mut bench = Bench::flock(4);
    let parent = bench.record();
    let ours = fork_of(&bench, &[2, 3], INCARNATION);
    let mut forged = ours.0.clone();
    let last = forged.next.members.len() - 1;
    forged.next.members[last].lease.count += 1;
    forged.cursor += 1;
    let proof = Certificate { record: forged.digest(), ..ours.1.clone() };
    let split = Split { parent, ours, theirs: (forged, proof) };
    bench.feed(Input::Contradicted { split: Box::new(split) });
    assert!(!bench.engine.view().quorum.frozen, "a split without a key");
}
