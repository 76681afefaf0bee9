//! Any bytes, any words, in any order. What must hold of every answer is in [`crate::watch`].

use crate::bench::{BOOT, Bench, INCARNATION, id};
use proptest::prelude::*;
use starling_protocol::engine::io::{Input, Output};
use starling_protocol::message::{
    Certificate, Estimate, Fork, Head, Join, Leave, Message, Phase, Question, Ready, Stamp, Start, Statement,
    StatementKind, Value, ValueKind, Vote, Witness,
};
use starling_protocol::record::Measured;
use starling_protocol::{Digest, wire};

/// Where nonsense takes its numbers from.
pub struct Words {
    state: u64,
}

impl Words {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Near what is true most of the time, and anything at times.
    pub fn near(&mut self, truth: u64) -> u64 {
        match self.below(12) {
            0 => self.next(),
            1 => u64::MAX,
            2 => 0,
            3 => truth.wrapping_add(1),
            4 => truth.wrapping_sub(1),
            _ => truth,
        }
    }

    fn pick(&mut self, digests: &[Digest]) -> Digest {
        digests[self.below(digests.len() as u64) as usize]
    }
}

/// A message of any kind, of good shape and with any content, but often about the round under way.
pub fn nonsense(bench: &Bench, from: u8, words: &mut Words) -> Message {
    let record = bench.record();
    let (head, fill) = (record.digest(), words.below(4) as u8);
    let digests = [Digest::default(), head, record.lineage, Digest([fill; 32]), record.state_root];
    let lineage = if words.below(8) > 0 { record.lineage } else { words.pick(&digests) };
    let parent = if words.below(8) > 0 { head } else { words.pick(&digests) };
    let seq = words.near(record.seq + 1).max(1);
    let instance = [Question::RECORD, 1, 2, 3, words.next() as u32 | 1][words.below(5) as usize];
    let question = Question { lineage, seq, parent, instance };
    let incarnation = words.near(INCARNATION);
    let ballot = words.near(0) as u32;
    let value = any_value(instance, &digests, words);
    let members = vec![1 | words.next() as u8];
    let voted = words.below(2) == 1;
    match words.below(11) {
        0 => bench.hello(words.near(BOOT).max(INCARNATION)),
        1 => {
            let phase = Phase::ALL[words.below(Phase::ALL.len() as u64) as usize];
            let (tokens, progress) = (words.near(record.tokens), words.next());
            Message::Head(Head { lineage, seq: words.near(record.seq), record: parent, tokens, phase, progress })
        }
        2 => {
            let (seq, state_root) = (words.near(record.seq), words.pick(&digests));
            let ticket = vec![fill; words.below(200) as usize];
            Message::Join(Join { lineage, seq, record: parent, state_root, incarnation, ticket })
        }
        3 => Message::Ready(any_ready(bench.ready(from), lineage, parent, words)),
        4 => Message::Leave(Leave { lineage, seq }),
        5 => Message::Estimate(Estimate { question, incarnation, ballot, value }),
        6 => Message::Vote(Vote { question, incarnation, ballot, value, voted }),
        7 => {
            let vote = Message::Vote(Vote { question, incarnation, ballot, value: value.clone(), voted: true });
            let votes = (2..2 + words.below(4) as u8).map(|n| bench.seal(n, &vote)).collect();
            Message::Certificate(Certificate { lineage, seq, record: value.digest, votes })
        }
        8 => {
            let (instance, ballot, phase) = (words.next() as u32, words.next() as u32, fill % 3);
            let stamp = Stamp { seq: words.near(record.seq), instance, ballot, phase };
            Message::Witness(Witness { incarnation, stamp })
        }
        9 => Message::Fork(Fork { lineage, seq, parent, incarnation, members }),
        _ => {
            let question = Question { instance: if instance == Question::RECORD { 1 } else { instance }, ..question };
            let value = any_value(question.instance, &digests, words);
            Message::Start(Start { question, value })
        }
    }
}

fn any_value(instance: u32, digests: &[Digest], words: &mut Words) -> Value {
    let digest = words.pick(digests);
    if instance != Question::RECORD {
        let members = vec![1 | words.next() as u8];
        let contributors = members[0].count_ones();
        let tokens = words.next();
        return Value { kind: ValueKind::Set, digest, tokens, contributors, attempt: instance, set: digest, members };
    }
    if words.below(3) == 0 {
        return Value::skip(digest);
    }
    let (tokens, contributors) = (words.near(64).max(1), words.near(4).max(1) as u32 | 1);
    let (attempt, set) = (words.below(4) as u32, Digest([7; 32]));
    Value { kind: ValueKind::Commit, digest, tokens, contributors, attempt, set, members: Vec::new() }
}

fn any_ready(truth: Ready, lineage: Digest, base: Digest, words: &mut Words) -> Ready {
    let kind = StatementKind::ALL[words.below(2) as usize];
    let incarnation = if kind == StatementKind::Joins { words.next() } else { 0 };
    let statement = Statement { kind, id: id(words.below(6) as u8), incarnation, grant: Digest::default() };
    Ready {
        lineage,
        base,
        round: words.near(truth.round).max(1),
        boot: words.near(truth.boot),
        start: words.near(truth.start) >> 8,
        samples: words.near(truth.samples).clamp(1, 1 << 40),
        tokens: words.near(truth.tokens).clamp(1, 1 << 50),
        measured: Measured { step_us: words.next() as u32, ..Measured::default() },
        statements: if words.below(2) == 0 { vec![statement] } else { Vec::new() },
        leave: words.below(4) == 0,
        merges: (words.below(6) == 0).then_some(Digest([9; 32])),
        ..truth
    }
}

/// Something that the engine's own driver may answer, or a connection may do.
pub fn upheaval(bench: &mut Bench, words: &mut Words) -> Vec<Output> {
    let peer = id(2 + words.below(4) as u8);
    match words.below(8) {
        0 => bench.feed(Input::PeerDown { peer }),
        1 => bench.feed(Input::PeerUp { peer }),
        2 => bench.trained(),
        3 => bench.feed(Input::CatchUpFailed { reason: "nonsense".to_owned(), diverged: words.below(2) == 0 }),
        4 => bench.feed(Input::Rtt { peer, micros: words.next() as u32 }),
        5 => bench.feed(Input::CatchUpProgress { bytes: words.next() }),
        _ => {
            bench.now += words.below(2_000_000);
            bench.feed(Input::Tick)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever bytes come in, each is refused by name, and nothing else happens.
    #[test]
    fn garbage_is_survived(
        junk in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..20),
        flips in prop::collection::vec((0usize..11, any::<prop::sample::Index>(), 1u8..), 1..20),
    ) {
        let mut bench = Bench::flock(3);
        let before = bench.still();
        for bytes in junk {
            let outputs = bench.feed(Input::Message { from: id(2), bytes });
            prop_assert_eq!(crate::bench::refusals(&outputs).len(), 1);
            bench.reconnect(2);
        }
        for (which, at, flip) in flips {
            let message = nonsense(&bench, 2, &mut Words::new(which as u64));
            let mut bytes = bench.seal(2, &message);
            *at.get_mut(&mut bytes[..]) ^= flip;
            let outputs = bench.feed(Input::Message { from: id(2), bytes });
            prop_assert_eq!(crate::bench::refusals(&outputs).len(), 1, "{:?}", message);
            bench.reconnect(2);
        }
        prop_assert_eq!(bench.still(), before);
    }

    /// Well-signed nonsense from every peer: any numbers in any message, in any order, with time passing.
    #[test]
    fn nonsense_is_survived(seed: u64, count in 1usize..150) {
        let mut bench = Bench::flock(4);
        let mut words = Words::new(seed);
        for _ in 0..count {
            let from = 2 + words.below(4) as u8;
            let message = nonsense(&bench, from, &mut words);
            prop_assert!(message.validate_shape().is_ok(), "{message:?}");
            let outputs = bench.say(from, &message);
            let refused = outputs.iter().any(|output| matches!(output, Output::Refuse { .. }));
            if refused || words.below(8) == 0 {
                bench.reconnect(from);
            }
            if words.below(4) == 0 {
                upheaval(&mut bench, &mut words);
            }
            let _ = bench.engine.view();
            let _ = bench.engine.wake_at();
        }
    }
}

#[test]
fn nonsense_has_every_kind_of_message_in_it() {
    let bench = Bench::flock(4);
    let mut words = Words::new(1);
    let kinds: std::collections::BTreeSet<&str> = (0..500).map(|_| nonsense(&bench, 2, &mut words).kind()).collect();
    assert_eq!(kinds.len(), 11, "{kinds:?}");
    assert!(wire::decode_spec(&wire::encode_spec(&bench.spec)).is_ok(), "the bench's run is a run");
}
