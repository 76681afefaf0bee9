//! Rows of the threat table: each test is named after its row. T6, T9 to T13 and others are tests of other crates; T8
//! is in [`crate::admission`], T7 in [`crate::restart`], T20 and T21 in [`crate::stalling`].

use crate::bench::{BOOT, Bench, INCARNATION, Key, commits, digest, id, refusals, spec, voters};
use starling_protocol::codec;
use starling_protocol::engine::io::{Finish, Input, Notice, Output, Refusal};
use starling_protocol::limits::PROTOCOL_VERSION;
use starling_protocol::message::{
    Certificate, Estimate, Fork, Head, Hello, Leave, Message, Phase, Pulse, Question, Ready, Start, Value, ValueKind,
    Vote,
};
use starling_protocol::run::Codec;
use starling_protocol::{NodeId, Signature, Signer, update, wire};

fn kind(bench: &Bench, bytes: &[u8]) -> &'static str {
    wire::open(&crate::bench::Keys, &bench.spec.digest(), bytes).unwrap().message.kind()
}

/// Whether there are only notices and messages.
fn harmless(outputs: &[Output]) -> bool {
    outputs.iter().all(|output| matches!(output, Output::Send { .. } | Output::Notice(_)))
}

/// The messages of peers in a round, and others that they might have sent.
fn frames_of_a_round(bench: &mut Bench) -> Vec<(u8, Vec<u8>)> {
    let record = bench.record();
    let question = bench.question();
    let (lineage, seq, parent) = (record.lineage, question.seq, question.parent);
    let value = Value { kind: ValueKind::Set, set: digest(8), members: vec![0b11], ..Value::skip(digest(8)) };
    let value = Value { contributors: 2, attempt: 1, ..value };
    let besides = [
        Message::Leave(Leave { lineage, seq: record.seq }),
        Message::Fork(Fork { lineage, seq, parent, incarnation: INCARNATION, record: digest(7), members: vec![0b110] }),
        Message::Start(Start { question: Question { instance: 1, ..question.clone() }, value }),
    ];
    let mut frames: Vec<(u8, Vec<u8>)> = besides.iter().map(|message| (2, bench.seal(2, message))).collect();
    bench.heard.clear();
    bench.commit();
    frames.append(&mut bench.heard);
    let proof = bench.head.clone().and_then(|(_, proof)| proof).unwrap();
    frames.push((3, bench.seal(3, &Message::Certificate(proof))));
    frames
}

/// T3: a message of a round is stale when it is said again after the round, also to a process that was not there.
#[test]
fn t3_replayed_frames_are_stale_and_change_nothing() {
    let mut bench = Bench::flock(4);
    let frames = frames_of_a_round(&mut bench);
    bench.commit();
    for restarted in [false, true] {
        if restarted {
            bench.restart(2_000);
            for peer in [2, 3, 4] {
                bench.meet(peer);
            }
        }
        let before = bench.still();
        let mut stale = 0;
        for (from, bytes) in &frames {
            let outputs = bench.feed(Input::Message { from: id(*from), bytes: bytes.clone() });
            assert_eq!(refusals(&outputs), [&Refusal::Stale], "{} again", kind(&bench, bytes));
            assert!(harmless(&outputs), "{outputs:?}");
            stale += 1;
        }
        assert_eq!(stale, frames.len());
        assert_eq!(bench.still(), before);
    }
    let kinds: std::collections::BTreeSet<_> = frames.iter().map(|(_, bytes)| kind(&bench, bytes)).collect();
    assert_eq!(kinds.len(), 8, "{kinds:?}");
    // The round goes on as if nothing had been said.
    bench.commit();
}

/// T4: the same identities in another run, even with a lineage of the same name.
#[test]
fn t4_frames_of_another_run_are_worth_nothing() {
    let mut first = Bench::flock(4);
    let mut frames = frames_of_a_round(&mut first);
    frames.push((3, first.seal(3, &first.hello(BOOT))));
    let mut run = spec();
    run.seed += 1;
    let mut second = Bench::flock_of(run, &voters(4));
    assert_eq!(second.record().lineage, Bench::flock(4).record().lineage);
    let before = second.still();
    for (from, bytes) in frames {
        let outputs = second.feed(Input::Message { from: id(from), bytes: bytes.clone() });
        let keys = vec!["seed: 2 here, 1 there".to_owned()];
        let expected =
            if kind(&first, &bytes) == "hello" { Refusal::RunMismatch { keys } } else { Refusal::BadSignature };
        assert_eq!(refusals(&outputs), [&expected]);
        assert!(!outputs.iter().any(|o| matches!(o, Output::Finished { .. })));
        second.reconnect(from);
        let head = second.chain_head(Phase::Training, 0);
        second.say(from, &Message::Head(head));
    }
    assert_eq!(second.still(), before);
}

/// Signs with its own key under another node's name.
struct Impostor(NodeId, Key);

impl Signer for Impostor {
    fn id(&self) -> NodeId {
        self.0
    }

    fn sign(&self, bytes: &[u8]) -> Signature {
        self.1.sign(bytes)
    }
}

/// T5: an envelope is for its signer and for one kind of message, and no other node can hand it in.
#[test]
fn t5_an_envelope_is_one_senders_and_one_kind() {
    let mut bench = Bench::flock(4);
    let before = bench.still();
    let mut refused = |from: u8, bytes: Vec<u8>| {
        let outputs = bench.feed(Input::Message { from: id(from), bytes });
        assert!(harmless(&outputs) || matches!(outputs[0], Output::Refuse { .. }), "{outputs:?}");
        let refusals: Vec<Refusal> = refusals(&outputs).into_iter().cloned().collect();
        bench.meet_again(from);
        refusals
    };
    let run = spec().digest();
    let said = Bench::flock(4);
    let estimate = Message::Estimate(Estimate {
        question: said.question(),
        incarnation: INCARNATION,
        ballot: 0,
        value: Value::skip(digest(3)),
    });
    let good = said.seal(3, &estimate);
    assert_eq!(refused(2, good.clone()), [Refusal::Malformed { what: "sender" }], "A hands in what B said");
    let named = wire::seal(&Impostor(id(3), Key(id(2))), &run, &estimate).unwrap();
    assert_eq!(refused(3, named.clone()), [Refusal::BadSignature], "A signs what names B");
    assert_eq!(refused(2, named), [Refusal::Malformed { what: "sender" }], "whom it names is looked at first");
    for tag in 0..=255u8 {
        let mut other = good.clone();
        other[38] = tag;
        if other != good {
            assert_eq!(refused(3, other), [Refusal::BadSignature], "kind {tag}");
        }
    }
    for at in 2..good.len() {
        let mut other = good.clone();
        other[at] ^= 0x10;
        // The length of the body frames it.
        let framed = (34..38).contains(&at);
        let named = if at < 34 { Refusal::Malformed { what: "sender" } } else { Refusal::BadSignature };
        let refusals = refused(3, other);
        assert!(refusals == [named] || framed && refusals.len() == 1, "byte {at}: {refusals:?}");
    }
    assert_eq!(bench.still(), before);
}

/// T14: each way in which a payload can be malformed has a name of its own.
#[test]
fn t14_malformed_payloads_are_refused_by_name() {
    let scale = |bits: u16| {
        let mut block = bits.to_le_bytes().to_vec();
        block.extend([1u8, 2, 3]);
        block
    };
    let reason = |bytes: &[u8], elements| codec::check(Codec::Int8, bytes, elements).unwrap_err().reason();
    assert_eq!(codec::check(Codec::Int8, &scale(0x3f80), 3), Ok(()));
    let bad_scales = [0x7fc0, 0xffc0, 0x7f80, 0xff80, 0xbf80, 0x8000, 0x0001, 0x0040];
    for bits in bad_scales {
        assert!(["bad_scale", "zero_block"].contains(&reason(&scale(bits), 3)), "NaN, infinite, negative, tiny");
    }
    assert_eq!(reason(&scale(0), 3), "zero_block", "a scale of zero over values");
    let mut zero = scale(0x3f80);
    zero[2..].fill(0);
    assert_eq!(reason(&zero, 3), "zero_block", "a scale over no values");
    let mut edge = scale(0x3f80);
    edge[3] = 0x80;
    assert_eq!(reason(&edge, 3), "bad_quant");
    assert_eq!(reason(&scale(0x3f80), 4), "length");
    assert_eq!(reason(&scale(0x3f80)[..4], 3), "length");
    let bf16 = |bits: u16| codec::check(Codec::Bf16, &bits.to_le_bytes(), 1).map_err(|error| error.reason());
    assert_eq!(bf16(0x3f80), Ok(()));
    for bits in [0x7fc0, 0xffc0, 0x7f80, 0xff80] {
        assert_eq!(bf16(bits), Err("not_finite"));
    }
}

/// T15: a value that is not finite never gets into a sum, nor into a decision about sums.
#[test]
fn t15_what_is_not_finite_is_void_before_it_counts() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for codec in [Codec::Bf16, Codec::Int8] {
            assert!(update::encode(codec, &[1.0, bad]).is_err());
            assert!(update::reduce(codec, &[&[1.0, 1.0], &[1.0, bad]]).is_err());
        }
    }
    let mut bench = Bench::flock(4);
    let ready = Ready {
        measured: starling_protocol::record::Measured { norm_bits: 0x1234_5678, ..Default::default() },
        ..bench.ready(3)
    };
    let good = bench.seal(3, &Message::Ready(ready.clone()));
    let body = &good[38..good.len() - 64];
    let at = body.windows(4).position(|window| window == 0x1234_5678u32.to_le_bytes()).unwrap();
    let before = bench.still();
    for norm in [f32::NAN, f32::INFINITY, -1.0, -0.0] {
        let mut body = body.to_vec();
        body[at..at + 4].copy_from_slice(&norm.to_bits().to_le_bytes());
        let bytes = bench.seal_body(3, &body);
        assert_eq!(refusals(&bench.hear(3, bytes)), [&Refusal::Malformed { what: "invalid" }], "a norm of {norm}");
        bench.meet_again(3);
        assert_eq!(bench.still(), before);
    }
    let outputs = bench.hear(3, good);
    assert!(refusals(&outputs).is_empty(), "{outputs:?}");
}

/// T19: a node that says two things at one place is refused, its first statement stays, and the others decide.
#[test]
fn t19_equivocation_is_refused_and_the_first_word_stays() {
    let equivocates = |outputs: &[Output]| matches!(refusals(outputs)[..], [Refusal::Equivocation { .. }]);
    let mut bench = Bench::flock(5);
    let first = bench.ready(4);
    let second = Ready { payload: digest(7), ..first.clone() };
    assert!(refusals(&bench.say(4, &Message::Ready(first.clone()))).is_empty());
    assert!(refusals(&bench.say(4, &Message::Ready(first.clone()))).is_empty(), "a repetition is none");
    assert!(equivocates(&bench.say(4, &Message::Ready(second))));
    bench.meet_again(4);

    let key = bench.all_ready();
    let said = bench.rebuild(key);
    let other = Value { digest: digest(0x66), ..said.value.clone() };
    bench.say(4, &Message::Estimate(said.clone()));
    assert!(equivocates(&bench.say(4, &Message::Estimate(Estimate { value: other.clone(), ..said.clone() }))));
    bench.meet_again(4);
    bench.say(2, &Message::Estimate(said.clone()));
    let vote = |value: &Value| Vote {
        question: said.question.clone(),
        incarnation: INCARNATION,
        ballot: 0,
        value: value.clone(),
        voted: true,
    };
    // A voter that abstained and then votes has said two things as well.
    bench.say(4, &Message::Vote(Vote { voted: false, ..vote(&other) }));
    assert!(equivocates(&bench.say(4, &Message::Vote(vote(&said.value)))));
    bench.meet_again(4);
    assert!(commits(&bench.say(2, &Message::Vote(vote(&said.value)))).is_empty(), "two of five, and a liar");
    bench.say(3, &Message::Estimate(said.clone()));
    let outputs = bench.say(3, &Message::Vote(vote(&said.value)));
    assert_eq!(commits(&outputs).len(), 1);
    assert_eq!(bench.record().digest(), said.value.digest);
    let proof = bench.head.clone().and_then(|(_, proof)| proof).unwrap();
    assert_eq!(proof.votes.len(), 3, "the liar's votes prove nothing");
}

/// T23: an old but valid head draws no node back; neither does a head that nobody can prove.
#[test]
fn t23_nobody_is_drawn_back_to_an_old_head() {
    let mut bench = Bench::flock(4);
    let old = bench.chain_head(Phase::Training, 0);
    for _ in 0..3 {
        bench.commit();
    }
    let before = bench.record();
    bench.restart(2_000);
    assert_eq!(bench.record(), before);
    // The bootstrap peer serves the past, under any number of tokens.
    for tokens in [old.tokens, u64::MAX] {
        bench.greet(9, BOOT + tokens % 2);
        let outputs = bench.say(9, &Message::Head(Head { tokens, ..old.clone() }));
        assert!(!outputs.iter().any(|o| matches!(o, Output::CatchUp { .. })), "{outputs:?}");
    }
    assert_eq!(bench.engine.view().head, before.digest());
    // A joiner that met the past first goes to the newest head that it is told of.
    let mut joiner = Bench::seeker();
    joiner.greet(9, BOOT);
    let way = bench.way(&old);
    joiner.claim(9, &old, &way);
    joiner.feed(Input::CatchUpFailed { reason: "no snapshot".to_owned() });
    joiner.greet(2, BOOT);
    let (lineage, seq, tokens) = (before.lineage, before.seq, before.tokens);
    let head = Head {
        lineage,
        seq,
        record: before.digest(),
        tokens,
        phase: Phase::Training,
        progress: 0,
        awaits: None,
        pulse: Pulse::default(),
    };
    joiner.wait(2_000_000);
    let way = bench.way(&head);
    let mut outputs = joiner.claim(2, &head, &way);
    outputs.extend(joiner.wait(2_000_000));
    let target = |o: &Output| matches!(o, Output::CatchUp { target, .. } if *target == before.digest());
    assert!(outputs.iter().any(target), "{outputs:?}");
    // Votes for a record after an old one decide nothing here.
    let stale = Certificate { seq: old.seq + 1, ..bench.certificate(&[2, 3, 4], &Value::skip(digest(4))) };
    bench.greet(2, BOOT);
    assert_eq!(refusals(&bench.say(2, &Message::Certificate(stale))), [&Refusal::Stale]);
    assert_eq!(bench.engine.view().head, before.digest());
}

/// T27: a node with another version, or of another run, is told the differences, and does not get in.
#[test]
fn t27_other_versions_and_settings_are_named() {
    let mut bench = Bench::flock(3);
    let before = bench.still();
    for theirs in [0, 1, PROTOCOL_VERSION + 1, u16::MAX] {
        bench.feed(Input::PeerUp { peer: id(9) });
        let mut bytes = bench.seal(9, &bench.hello(BOOT));
        bytes[..2].copy_from_slice(&theirs.to_le_bytes());
        let outputs = bench.hear(9, bytes);
        assert_eq!(refusals(&outputs), [&Refusal::Version { theirs, ours: PROTOCOL_VERSION }]);
        bench.feed(Input::PeerDown { peer: id(9) });
    }
    let mut other = spec();
    other.sync.codec = Codec::Int8;
    other.partition.grace_ms = 1_000;
    let hello = Hello { version: PROTOCOL_VERSION, spec: wire::encode_spec(&other), boot: 1, incarnation: 1 };
    let foreign = wire::seal(&Key(id(9)), &other.digest(), &Message::Hello(hello.clone())).unwrap();
    bench.feed(Input::PeerUp { peer: id(9) });
    let outputs = bench.hear(9, foreign);
    let [Refusal::RunMismatch { keys }] = refusals(&outputs)[..] else { panic!("{outputs:?}") };
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().any(|key| key.contains("codec")) && keys.iter().any(|key| key.contains("grace")), "{keys:?}");
    // The Hello is under this run's name, or has a version inside that differs from the one outside.
    bench.reconnect(9);
    let outputs = bench.say(9, &Message::Hello(hello.clone()));
    assert!(matches!(refusals(&outputs)[..], [Refusal::Malformed { .. }]), "{outputs:?}");
    bench.reconnect(9);
    let good = bench.seal(9, &bench.hello(BOOT));
    let mut body = good[38..good.len() - 64].to_vec();
    body[2] ^= 1;
    let inside = bench.seal_body(9, &body);
    assert_eq!(refusals(&bench.hear(9, inside)), [&Refusal::Malformed { what: "invalid" }]);
    bench.feed(Input::PeerDown { peer: id(9) });
    assert_eq!(bench.still(), before);
    // A node that has met no other was started with the wrong file, and ends with the names of the keys.
    let mut lost = Bench::start(other.clone(), false, None, BOOT);
    lost.feed(Input::PeerUp { peer: id(2) });
    let theirs = Hello { spec: wire::encode_spec(&spec()), ..hello };
    let bytes = wire::seal(&Key(id(2)), &spec().digest(), &Message::Hello(theirs)).unwrap();
    let outputs = lost.hear(2, bytes);
    let named =
        |o: &Output| matches!(o, Output::Finished { reason: Finish::RunMismatch { keys, .. } } if keys.len() == 2);
    assert!(outputs.iter().any(named), "{outputs:?}");
    assert!(!outputs.iter().any(|o| matches!(o, Output::Notice(Notice::Founded { .. }))));
}
