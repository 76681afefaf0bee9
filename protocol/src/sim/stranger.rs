//! Strangers: keys of their own, no seat, no ticket. They connect to nodes, greet as any peer may, and forge any
//! message that a peer can send. A stranger's message may cost the node only a refusal.
//!
//! A stranger's answers to requests for proof, or for a state, come from [`World::stranger_answers`].

use super::crowd::KEYS;
use super::disk::Link;
use super::invariant::Observed;
use super::trainer::State;
use super::world::{Event, World};
use super::{MS, SECOND};
use crate::engine::io::Input;
use crate::engine::succession;
use crate::message::{
    Awaited, Awaits, Certificate, Estimate, Evidence, Fork, Head, Hello, Join, Message, Phase, Pulse, Question, Ready,
    Stamp, Start, Value, ValueKind, Vote, Witness, member_bits,
};
use crate::record::{Measured, Record, Role};
use crate::run::AdmissionMode;
use crate::{Digest, NodeId, Signer, limits, wire};

/// Keys that are used only to contradict themselves.
const THROWAWAY: usize = 1 << 22;
/// The number of strangers that come at once, now and then.
const CROWD: u64 = 24;
/// Records of a forged chain.
const FORGED: u64 = 3;

impl World {
    /// Lets strangers come from the beginning on.
    pub(super) fn let_strangers_come(&mut self) {
        for which in 0..self.strangers.len() {
            let at = self.random.between(0, 3 * SECOND);
            self.schedule(at, 0, 0, Event::Strange { which });
        }
    }

    /// Lets a stranger do something.
    pub(super) fn strange(&mut self, which: usize) {
        if self.calm {
            return;
        }
        let again = self.random.between(20 * MS, 2_000 * MS);
        self.schedule(again, 0, 0, Event::Strange { which });
        let crowd = if self.random.chance(5) { self.random.between(2, CROWD) } else { 1 };
        let node = self.random.draw() as usize % self.nodes.len();
        for k in 0..crowd as usize {
            self.approach((which + k) % self.strangers.len(), node);
        }
    }

    fn approach(&mut self, which: usize, node: usize) {
        if !self.nodes[node].working() {
            self.strangers.connected.remove(&(which, node));
            return;
        }
        let peer = self.strangers.ids[which];
        if self.strangers.connected.insert((which, node)) {
            self.marks.hit("stranger came");
            self.feed(node, Input::PeerUp { peer });
            let hello = Hello {
                version: limits::PROTOCOL_VERSION,
                spec: wire::encode_spec(&self.spec),
                boot: 1 + self.now,
                incarnation: 1,
            };
            // Some strangers say nothing of themselves.
            if self.random.chance(90) {
                self.whisper(which, node, &Message::Hello(hello));
            }
        } else if self.random.chance(10) {
            self.strangers.connected.remove(&(which, node));
            return self.feed(node, Input::PeerDown { peer });
        }
        for _ in 0..self.random.between(1, 3) {
            if let Some(message) = self.forge(which, node) {
                self.whisper(which, node, &message);
            }
        }
    }

    /// A node has refused a stranger: the connection ends.
    pub(super) fn stranger_refused(&mut self, node: usize, id: &NodeId) {
        let Some(which) = self.strangers.place(id) else { return };
        self.marks.hit("stranger refused");
        if self.strangers.connected.remove(&(which, node)) {
            let after = self.random.between(0, 200 * MS);
            self.schedule_own(after, node, Event::StrangerGone { which });
        }
    }

    pub(super) fn stranger_gone(&mut self, node: usize, which: usize) {
        if !self.strangers.connected.contains(&(which, node)) {
            self.feed(node, Input::PeerDown { peer: self.strangers.ids[which] });
        }
    }

    /// Delivers a stranger's message to the node; nothing else happens at that moment.
    fn whisper(&mut self, which: usize, node: usize, message: &Message) {
        let signer = self.keys.signer(KEYS + which);
        let Ok(bytes) = wire::seal(signer.as_ref(), &self.run, message) else { return };
        self.feed(node, Input::Tick);
        let from = self.strangers.ids[which];
        let Some(outputs) = self.handle(node, Input::Message { from, bytes }) else { return };
        self.observe(&Observed::Strange { node, from, message, outputs: &outputs });
        for output in outputs {
            self.execute(node, output);
        }
    }

    /// A false message about the node's current round.
    fn forge(&mut self, which: usize, node: usize) -> Option<Message> {
        let head = self.nodes[node].head().cloned();
        let choice = self.random.between(0, 14);
        let Some(head) = head.filter(|_| choice > 0) else { return self.invented(which) };
        let (record, digest) = (&head.record, head.digest);
        let (lineage, seq) = (record.lineage, record.seq + 1);
        let question = |instance| Question { seq, parent: digest, instance };
        let incarnation = record.next.members.first().map_or(1, |member| member.incarnation);
        let chain_head = Head {
            lineage,
            seq,
            record: digest,
            tokens: 0,
            phase: Phase::Ready,
            progress: 9,
            awaits: None,
            pulse: Pulse::default(),
        };
        let next = succession::skip(record, digest)?.digest();
        Some(match choice {
            1 => return self.invented(which),
            2 => Message::Head(Head { seq: seq + self.random.between(0, 1 << 30), tokens: u64::MAX, ..chain_head }),
            3 => Message::Head(Head { record: Digest([3; 32]), seq: seq.saturating_sub(1), ..chain_head }),
            4 => {
                let from = self.random.pick(&record.members().collect::<Vec<_>>())?;
                let awaits = Some(Awaits { what: Awaited::Refused, from });
                Message::Head(Head { seq: seq - 1, awaits, ..chain_head })
            }
            5 => {
                let stamp = Stamp { seq: seq + 5, instance: Question::RECORD, ballot: 3, phase: 2 };
                let own = self.strangers.said.get(&(node, "hello")).and_then(|bytes| self.open(bytes));
                let Some(Message::Hello(hello)) = own.map(|opened| opened.message) else { return None };
                Message::Witness(Witness { incarnation: hello.incarnation, stamp })
            }
            6 => {
                let members = member_bits(0..record.next.members.len());
                Message::Fork(Fork { lineage, seq, parent: digest, incarnation: 1, record: next, members })
            }
            7 => Message::Evidence(self.contradiction(record, digest)?),
            8 => {
                let (first, second) = (self.strangers.said.get(&(node, "head"))?, self.nonsense(which)?);
                Message::Evidence(Evidence { first: first.to_vec(), second })
            }
            9 => Message::Certificate(self.certificate_by_strangers(lineage, &question(Question::RECORD), next)),
            10 if self.spec.admission.mode != AdmissionMode::Open => {
                let ticket = if self.random.chance(50) { Vec::new() } else { vec![7; 40] };
                let state_root = record.state_root;
                Message::Join(Join { lineage, seq: seq - 1, record: digest, state_root, incarnation: 1, ticket })
            }
            11 => Message::Ready(self.false_ready(record, digest)),
            12 => {
                let value = Value::skip(next);
                let question = question(Question::RECORD);
                match self.random.chance(50) {
                    true => Message::Estimate(Estimate { question, incarnation, ballot: 0, value }),
                    false => Message::Vote(Vote { question, incarnation, ballot: 0, value, voted: true }),
                }
            }
            13 => Message::Start(Start { question: question(1), value: set_of(record) }),
            _ => Message::Leave(crate::message::Leave { lineage, seq }),
        })
    }

    /// The head of a lineage that does not exist, with more tokens than any.
    fn invented(&mut self, which: usize) -> Option<Message> {
        let chain = self.forged_chain(which)?;
        let head = chain.last()?;
        let Record { lineage, seq, .. } = *head.record;
        let (record, tokens) = (head.digest, u64::MAX);
        Some(Message::Head(Head {
            lineage,
            seq,
            record,
            tokens,
            phase: Phase::Training,
            progress: 0,
            awaits: None,
            pulse: Pulse::default(),
        }))
    }

    /// A chain that a stranger has made by itself, every record decided by its own vote.
    fn forged_chain(&mut self, which: usize) -> Option<&Vec<Link>> {
        if !self.strangers.chains.contains_key(&which) {
            let signer = self.keys.signer(KEYS + which);
            let root = State::initial(self.spec.sync.mode).root;
            let founder = (self.strangers.ids[which], 1);
            let genesis = succession::genesis(self.run, &self.spec, founder, self.now, root)?;
            let mut chain = vec![Link::new(genesis, None)];
            for _ in 0..FORGED {
                let parent = chain.last()?;
                let record = succession::skip(&parent.record, parent.digest)?;
                let question = Question { seq: record.seq, parent: parent.digest, instance: Question::RECORD };
                let certificate = self.certificate_of(signer.as_ref(), record.lineage, &question, record.digest());
                chain.push(Link::new(record, Some(certificate)));
            }
            self.strangers.chains.insert(which, chain);
        }
        self.strangers.chains.get(&which)
    }

    /// The answer of a stranger that is asked to prove its head, or for the chain and the state behind it: a lineage of
    /// its own, whole and well signed, that has never been an honest node's. Empty if it does not answer.
    ///
    /// The driver's catch-up and its requests for proof call this for sources that are strangers.
    pub fn stranger_answers(&mut self, stranger: &NodeId) -> Vec<Link> {
        let Some(which) = self.strangers.place(stranger).filter(|_| !self.calm) else { return Vec::new() };
        if self.random.chance(30) { Vec::new() } else { self.forged_chain(which).cloned().unwrap_or_default() }
    }

    /// Whether a node asks only strangers for a state. They have nothing to give, of which it hears a little later.
    pub(super) fn asks_strangers(&mut self, node: usize, sources: &[NodeId]) -> bool {
        let strange = !sources.is_empty() && sources.iter().all(|id| self.strangers.place(id).is_some());
        if strange {
            let after = self.random.between(100, 3_000) * MS;
            self.schedule_own(after, node, Event::NothingCame);
        }
        strange
    }

    pub(super) fn nothing_came(&mut self, node: usize) {
        let reason = "a stranger had nothing to give".to_owned();
        self.feed(node, Input::CatchUpFailed { reason });
    }

    /// Two READYs of a key that was made only for this.
    fn contradiction(&mut self, record: &Record, digest: Digest) -> Option<Evidence> {
        self.strangers.thrown += 1;
        let signer = self.keys.signer(THROWAWAY + self.strangers.thrown);
        let ready = self.false_ready(record, digest);
        let other = Ready { loss_q16: ready.loss_q16 ^ 1, ..ready.clone() };
        let seal = |ready| wire::seal(signer.as_ref(), &self.run, &Message::Ready(ready)).ok();
        Some(Evidence { first: seal(ready)?, second: seal(other)? })
    }

    fn nonsense(&self, which: usize) -> Option<Vec<u8>> {
        let witness = Message::Witness(Witness { incarnation: 1, stamp: Stamp::default() });
        wire::seal(self.keys.signer(KEYS + which).as_ref(), &self.run, &witness).ok()
    }

    fn certificate_by_strangers(&self, lineage: Digest, question: &Question, record: Digest) -> Certificate {
        let mut all: Vec<(NodeId, usize)> = self.strangers.ids.iter().copied().zip(0..).collect();
        all.sort_unstable();
        let votes = all.into_iter().map(|(_, which)| {
            let signer = self.keys.signer(KEYS + which);
            self.certificate_of(signer.as_ref(), lineage, question, record).votes
        });
        let votes = votes.flatten().take(limits::VOTERS_MAX).collect();
        Certificate { lineage, seq: question.seq, record, votes }
    }

    fn certificate_of(&self, by: &dyn Signer, lineage: Digest, question: &Question, record: Digest) -> Certificate {
        let (question, value) = (question.clone(), Value::skip(record));
        let seq = question.seq;
        let vote = Vote { question, incarnation: 1, ballot: 0, value, voted: true };
        let votes = wire::seal(by, &self.run, &Message::Vote(vote)).into_iter().collect();
        Certificate { lineage, seq, record, votes }
    }

    fn false_ready(&mut self, record: &Record, digest: Digest) -> Ready {
        let lease = record.next.members.first().map(|member| member.lease).unwrap_or_default();
        Ready {
            lineage: record.lineage,
            round: record.round + 1,
            base: record.base_or(digest),
            state_root: record.state_root,
            boot: 1 + self.now,
            start: lease.start,
            samples: lease.count.max(1),
            tokens: 1,
            steps: 1,
            loss_q16: self.random.draw() as u32,
            payload: Digest([9; 32]),
            measured: Measured { step_us: 1, upload_kbps: 0, reduce_us: 0, overhead_us: 0, norm_bits: 0 },
            statements: Vec::new(),
            leave: false,
            merges: None,
            merged_tokens: 0,
            rtts: Vec::new(),
            amends: None,
        }
    }
}

/// A set of all voters for which no member has said READY.
fn set_of(record: &Record) -> Value {
    let voters = record.next.members.iter().enumerate().filter(|(_, member)| member.role == Role::Voter);
    let places: Vec<usize> = voters.map(|(place, _)| place).collect();
    let digest = Digest([5; 32]);
    let contributors = places.len() as u32;
    Value {
        kind: ValueKind::Set,
        digest,
        tokens: 1,
        contributors,
        attempt: 1,
        set: digest,
        members: member_bits(places),
    }
}
