//! Well-signed nonsense: any numbers in any message, in any order. Its choices come from a seed, or from the bytes of a
//! fuzzer.

use crate::bench::{BOOT, Bench, INCARNATION, Key, id};
use starling_protocol::Digest;
use starling_protocol::amendment::{Amendment, Changes};
use starling_protocol::engine::io::{Input, Output};
use starling_protocol::message::{
    Alive, Awaited, Awaits, Certificate, Estimate, Evidence, Fork, Head, Join, Leave, Message, Phase, Pulse, Question,
    Ready, Stamp, Start, Statement, StatementKind, Value, ValueKind, Vote, Want, Witness,
};
use starling_protocol::record::Measured;

/// The source of nonsense's numbers.
pub struct Words<'a> {
    state: u64,
    bytes: Option<&'a [u8]>,
}

impl<'a> Words<'a> {
    #[allow(dead_code)]
    pub fn new(seed: u64) -> Self {
        Self { state: seed, bytes: None }
    }

    /// Choices that follow these bytes, one byte for most of them, and then are all zero.
    #[allow(dead_code)]
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { state: 0, bytes: Some(bytes) }
    }

    /// Whether bytes are left.
    #[allow(dead_code)]
    pub fn more(&self) -> bool {
        self.bytes.is_none_or(|bytes| !bytes.is_empty())
    }

    pub fn next(&mut self) -> u64 {
        if self.bytes.is_some() {
            return (0..8).fold(0, |number, _| number << 8 | self.byte());
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn byte(&mut self) -> u64 {
        let Some((first, rest)) = self.bytes.and_then(|bytes| bytes.split_first()) else { return 0 };
        self.bytes = Some(rest);
        (*first).into()
    }

    /// Random bytes, so many of them.
    #[allow(dead_code)]
    pub fn take(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        if self.bytes.is_some() && limit <= 256 { self.byte() % limit } else { self.next() % limit }
    }

    /// A number near the truth most of the time, and any number at times.
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

/// A message of any kind, of valid shape and with any content, but often about the round under way.
pub fn nonsense(bench: &Bench, from: u8, words: &mut Words<'_>) -> Message {
    let record = bench.record();
    let (head, fill) = (record.digest(), words.below(4) as u8);
    let digests = [Digest::default(), head, record.lineage, Digest([fill; 32]), record.state_root];
    let lineage = if words.below(8) > 0 { record.lineage } else { words.pick(&digests) };
    let parent = if words.below(8) > 0 { head } else { words.pick(&digests) };
    let seq = words.near(record.seq + 1).max(1);
    let instance = [Question::RECORD, 1, 2, 3, words.next() as u32 | 1][words.below(5) as usize];
    let question = Question { seq, parent, instance };
    let incarnation = words.near(INCARNATION);
    let ballot = words.near(0) as u32;
    let value = any_value(instance, &digests, words);
    let members = vec![1 | words.next() as u8];
    let voted = words.below(2) == 1;
    match words.below(15) {
        0 => bench.hello(words.near(BOOT).max(INCARNATION)),
        1 => {
            let phase = Phase::ALL[words.below(Phase::ALL.len() as u64) as usize];
            let (tokens, progress) = (words.near(record.tokens), words.next());
            let what = Awaited::ALL[words.below(Awaited::ALL.len() as u64) as usize];
            let awaits = (words.below(2) == 1).then(|| Awaits { what, from: id(words.below(10) as u8) });
            let seq = words.near(record.seq);
            Message::Head(Head {
                lineage,
                seq,
                record: parent,
                tokens,
                phase,
                progress,
                awaits,
                pulse: Pulse::default(),
            })
        }
        2 => {
            let (seq, state_root) = (words.near(record.seq), words.pick(&digests));
            let ticket = vec![fill; words.below(200) as usize];
            Message::Join(Join { lineage, seq, record: parent, state_root, incarnation, ticket })
        }
        3 => {
            let amends = (words.below(8) == 0).then(|| Box::new(any_amendment(bench, words)));
            Message::Ready(Ready { amends, ..any_ready(bench.ready(from), lineage, parent, words) })
        }
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
        9 => Message::Fork(Fork { lineage, seq, parent, incarnation, record: words.pick(&digests), members }),
        10 => {
            let other = any_value(instance, &digests, words);
            let vote =
                |value: &Value| Vote { question: question.clone(), incarnation, ballot, value: value.clone(), voted };
            let by = 2 + words.below(4) as u8;
            let first = bench.seal(by, &Message::Vote(vote(&value)));
            let second = bench.seal(if words.below(4) == 0 { from } else { by }, &Message::Vote(vote(&other)));
            let second = if first == second { vec![fill; 1 + fill as usize] } else { second };
            Message::Evidence(Evidence { first, second })
        }
        11 => {
            let boot = words.near(BOOT).min(u64::MAX - 1);
            Message::Alive(Alive { boot, newer: words.near(boot + 1).max(boot + 1) })
        }
        12 => Message::Amend(any_amendment(bench, words)),
        13 => Message::Want(Want { lineage, round: words.near(record.round + 1).max(1), base: parent, members }),
        _ => {
            let question = Question { instance: if instance == Question::RECORD { 1 } else { instance }, ..question };
            let value = any_value(question.instance, &digests, words);
            Message::Start(Start { question, value })
        }
    }
}

fn any_value(instance: u32, digests: &[Digest], words: &mut Words<'_>) -> Value {
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

fn any_ready(truth: Ready, lineage: Digest, base: Digest, words: &mut Words<'_>) -> Ready {
    let kind = StatementKind::ALL[words.below(2) as usize];
    let incarnation = if kind == StatementKind::Joins { words.next() } else { 0 };
    let merges = (words.below(6) == 0).then_some(Digest([9; 32]));
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
        merges,
        merged_tokens: if merges.is_some() { words.near(1_000).clamp(1, 1 << 50) } else { 0 },
        ..truth
    }
}

/// An amendment by the run's creator, by another node or by nobody, often the next one.
fn any_amendment(bench: &Bench, words: &mut Words<'_>) -> Amendment {
    let (run, settings) = (bench.spec.digest(), bench.record().next.settings);
    let (rounds, lr) = (words.near(100), words.below(20) as f64 / 16.0);
    let changes = Changes { rounds: Some(rounds), lr: Some(lr), ..Changes::default() };
    let next = Amendment::next(&settings, words.near(0), changes);
    let number = (words.near(next.number.into()) as u32).max(1);
    let amendment = Amendment { number, ..next };
    match words.below(6) {
        0 => amendment,
        1 => amendment.sign(&Key(id(2)), &run),
        _ => amendment.sign(&Key(id(99)), &run),
    }
}

/// A random answer of the engine's own driver, or event of a connection.
pub fn upheaval(bench: &mut Bench, words: &mut Words<'_>) -> Vec<Output> {
    let peer = id(2 + words.below(4) as u8);
    match words.below(9) {
        0 => bench.feed(Input::PeerDown { peer }),
        1 => bench.feed(Input::PeerUp { peer }),
        2 => bench.trained(),
        3 => bench.feed(Input::CatchUpFailed { reason: "nonsense".to_owned() }),
        4 => bench.feed(Input::Rtt { peer, micros: words.next() as u32 }),
        5 => bench.feed(Input::CatchUpProgress { bytes: words.next() }),
        6 => {
            let hello = bench.hello(words.near(BOOT + 1).max(INCARNATION));
            let hello = bench.seal(if words.below(8) == 0 { 1 } else { peer.0[0] }, &hello);
            bench.feed(Input::Duplicate { peer, hello })
        }
        _ => {
            bench.now += words.below(2_000_000);
            bench.feed(Input::Tick)
        }
    }
}
