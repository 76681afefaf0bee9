//! One engine on a bench: a clock, a disk that writes at once, its peers' messages, and a watch over the engine's
//! outputs.

pub use crate::fixture::{BOOT, INCARNATION, Key, Keys, ME, digest, genesis, id, spec, vote_state, voters};

use crate::fixture::mac;
use crate::watch::Watch;
use starling_protocol::ancestry::{Ancestry, Reach};
use starling_protocol::engine::io::{AttemptKey, Claim, Input, Notice, Output, Proven, Refusal, Time};
use starling_protocol::engine::{Candidate, Engine, EngineConfig, Founding, Stored, Timing, View, VoteState};
use starling_protocol::limits::PROTOCOL_VERSION;
use starling_protocol::message::{
    Certificate, Estimate, Evidence, Head, Hello, Message, Phase, Pulse, Question, Ready, Stamp, Value, Vote, Witness,
};
use starling_protocol::mutation::{self, Mutation};
use starling_protocol::record::{Measured, Record, Role, Span};
use starling_protocol::run::RunSpec;
use starling_protocol::{NodeId, certificate, wire};
use std::collections::BTreeMap;

pub struct Bench {
    pub engine: Engine,
    pub now: u64,
    pub spec: RunSpec,
    /// The head as the disk holds it, with its proof, and the newest statements that this identity has signed.
    pub head: Option<(Record, Option<Certificate>)>,
    pub vote_state: Option<VoteState>,
    pub candidates: Vec<Candidate>,
    /// Proofs of the records before the head.
    pub past: Vec<Certificate>,
    /// Evidence that the disk holds, by the node that it is against.
    pub evidence: BTreeMap<NodeId, Evidence>,
    /// Messages of peers, by sender, since the last [`Bench::forget`].
    pub heard: Vec<(u8, Vec<u8>)>,
    /// Writes are answered at once.
    pub writes: bool,
    /// All inputs so far with their times, if a test wants to feed them again.
    pub script: Option<Vec<(u64, Input)>>,
    /// The norm of every contribution.
    pub norm: f32,
    reducing: Option<AttemptKey>,
    /// The engine's last estimate or vote.
    said: Option<Message>,
    watch: Watch,
}

impl Bench {
    pub fn start(spec: RunSpec, found: bool, stored: Option<Stored>, boot: u64) -> Self {
        Self::start_on(spec, found, (stored, false), boot)
    }

    fn start_on(spec: RunSpec, found: bool, (stored, copied): (Option<Stored>, bool), boot: u64) -> Self {
        // Any test can be run with a bug (`tests/scripts/rules.sh`).
        if let Some(mutation) = std::env::var("STARLING_MUTATION").ok().and_then(|name| Mutation::of_name(&name)) {
            mutation::everywhere(mutation);
        }
        let (head, vote_state, candidates) = match &stored {
            Some(s) => (Some((s.head.clone(), s.certificate.clone())), s.vote_state.clone(), s.candidates.clone()),
            None => (None, None, Vec::new()),
        };
        let config = EngineConfig {
            signer: Box::new(Key(id(ME))),
            verifier: Box::new(Keys),
            spec: spec.clone(),
            run: spec.digest(),
            boot,
            found: found.then_some(Founding { nonce: 1, state_root: digest(5) }),
            stored,
            copied,
            ticket: Vec::new(),
            guides: Vec::new(),
            adopt: None,
            force_fork: false,
            timing: Timing::default(),
        };
        let watch = Watch::new(spec.digest());
        let engine = Engine::new(config);
        Self {
            engine,
            now: 77,
            spec,
            head,
            vote_state,
            candidates,
            past: Vec::new(),
            evidence: BTreeMap::new(),
            norm: 0.0,
            heard: Vec::new(),
            writes: true,
            script: None,
            reducing: None,
            said: None,
            watch,
        }
    }

    /// A bench whose engine waits for a flock.
    pub fn seeker() -> Self {
        Self::start(spec(), false, None, BOOT)
    }

    /// A bench whose engine has founded a lineage and trains alone in its first round.
    pub fn founder() -> Self {
        let mut bench = Self::start(spec(), true, None, BOOT);
        let outputs = bench.feed(Input::Tick);
        assert!(outputs.iter().any(|output| matches!(output, Output::Train { round: 1, .. })), "{outputs:?}");
        bench
    }

    /// A bench whose engine is a member of a flock with these members, all of them here; it trains.
    pub fn flock_of(spec: RunSpec, members: &[(u8, Role)]) -> Self {
        let mut bench = Self::recorded(spec, members);
        bench.script = None;
        bench
    }

    /// The same, with a script of all inputs from its start.
    pub fn recorded(spec: RunSpec, members: &[(u8, Role)]) -> Self {
        let head = genesis(&spec, members);
        let stored = Stored {
            vote_state: Some(vote_state(&head)),
            ancestry: Ancestry::of([&head]),
            head,
            certificate: None,
            past: Vec::new(),
            candidates: Vec::new(),
            evidence: Vec::new(),
        };
        let mut bench = Self::start(spec, false, Some(stored), BOOT);
        bench.script = Some(Vec::new());
        bench.feed(Input::Tick);
        for (n, _) in members.iter().filter(|(n, _)| *n != ME) {
            bench.meet(*n);
        }
        // A large flock's Heads are processed together, a little later.
        bench.wait(200_000);
        assert_eq!(bench.engine.view().phase, Phase::Training, "{:?}", bench.engine.view());
        bench
    }

    pub fn flock(count: u8) -> Self {
        Self::flock_of(spec(), &voters(count))
    }

    /// Ends the process and starts it again on the disk's content; nobody is connected.
    pub fn restart(&mut self, boot: u64) {
        self.restart_on(boot, false);
    }

    /// The same, on a disk that is a copy of the former one, or is not.
    pub fn restart_on(&mut self, boot: u64, copied: bool) {
        let (head, certificate) = self.head.clone().expect("a head is on the disk");
        let (vote_state, candidates) = (self.vote_state.clone(), self.candidates.clone());
        let (now, heard, kept) = (self.now, std::mem::take(&mut self.heard), self.evidence.clone());
        let watch = std::mem::replace(&mut self.watch, Watch::new(self.spec.digest())).restarted();
        let evidence = self.evidence.values().cloned().collect();
        let past = std::mem::take(&mut self.past);
        let ancestry = Ancestry::of([&head]);
        let stored = Stored { head, certificate, past: past.clone(), ancestry, vote_state, candidates, evidence };
        *self = Self {
            now,
            heard,
            watch,
            past,
            evidence: kept,
            ..Self::start_on(self.spec.clone(), false, (Some(stored), copied), boot)
        };
        self.feed(Input::Tick);
    }

    pub fn record(&self) -> Record {
        self.head.as_ref().expect("a head is on the disk").0.clone()
    }

    /// Gives an input to the engine a millisecond later, and carries out its writes.
    pub fn feed(&mut self, input: Input) -> Vec<Output> {
        self.now += 1_000;
        let mut all = self.watched(input);
        let mut at = 0;
        while let Some(output) = all.get(at).filter(|_| self.writes) {
            self.note(output);
            let token = match output {
                Output::Persist { token, vote_state, candidate } => {
                    self.vote_state = Some(vote_state.clone());
                    self.candidates.extend(candidate.clone());
                    Some(*token)
                }
                Output::Commit { token, record, certificate, .. } => {
                    let before = self.head.replace((record.clone(), Some(certificate.clone())));
                    self.past.extend(before.and_then(|(_, certificate)| certificate));
                    self.candidates.clear();
                    Some(*token)
                }
                Output::Found { token, record } => {
                    self.head = Some((record.clone(), None));
                    Some(*token)
                }
                _ => None,
            };
            if let Some(token) = token {
                let more = self.watched(Input::Durable { token });
                all.extend(more);
            }
            at += 1;
        }
        all
    }

    fn note(&mut self, output: &Output) {
        match output {
            Output::Reduce { key, .. } => self.reducing = Some(*key),
            Output::Evidence { against, evidence, .. } => drop(self.evidence.insert(*against, evidence.clone())),
            Output::DropEvidence { against } => drop(self.evidence.remove(against)),
            Output::Send { bytes, .. } => {
                let opened = wire::open(&Keys, &self.spec.digest(), bytes).expect("well-formed");
                if matches!(opened.message, Message::Estimate(_) | Message::Vote(_)) {
                    self.said = Some(opened.message);
                }
            }
            _ => {}
        }
    }

    fn watched(&mut self, input: Input) -> Vec<Output> {
        let answered = match &input {
            Input::Durable { token } => Some(*token),
            _ => None,
        };
        if let Some(script) = &mut self.script {
            script.push((self.now, input.clone()));
        }
        let outputs = self.engine.handle(input, Time(self.now));
        self.watch.check(&self.engine, answered, &outputs);
        outputs
    }

    /// Lets time pass, in steps that the engine accepts.
    pub fn wait(&mut self, micros: u64) -> Vec<Output> {
        let end = self.now + micros;
        let mut outputs = Vec::new();
        while self.now < end {
            self.now = (self.now + 99_000).min(end);
            outputs.extend(self.feed(Input::Tick));
        }
        outputs
    }

    pub fn seal(&self, from: u8, message: &Message) -> Vec<u8> {
        wire::seal(&Key(id(from)), &self.spec.digest(), message).expect("a message of good shape")
    }

    /// An envelope around any body, well signed.
    pub fn seal_body(&self, from: u8, body: &[u8]) -> Vec<u8> {
        let signature =
            mac(&id(from), &[b"starling control v1".as_slice(), &self.spec.digest().0, &id(from).0, body].concat());
        let (version, length) = (PROTOCOL_VERSION.to_le_bytes(), (body.len() as u32).to_le_bytes());
        [&version[..], &id(from).0, &length, body, &signature.0].concat()
    }

    pub fn hear(&mut self, from: u8, bytes: Vec<u8>) -> Vec<Output> {
        self.heard.push((from, bytes.clone()));
        self.feed(Input::Message { from: id(from), bytes })
    }

    pub fn say(&mut self, from: u8, message: &Message) -> Vec<Output> {
        let bytes = self.seal(from, message);
        self.hear(from, bytes)
    }

    pub fn hello(&self, boot: u64) -> Message {
        let spec = wire::encode_spec(&self.spec);
        Message::Hello(Hello { version: PROTOCOL_VERSION, spec, boot, incarnation: INCARNATION })
    }

    /// A peer connects, greets, and says that its head is the engine's.
    pub fn meet(&mut self, peer: u8) -> Vec<Output> {
        let mut outputs = self.greet(peer, BOOT);
        outputs
            .extend(self.say(peer, &Message::Witness(Witness { incarnation: INCARNATION, stamp: Stamp::default() })));
        let head = self.chain_head(Phase::Training, 0);
        outputs.extend(self.say(peer, &Message::Head(head)));
        outputs
    }

    pub fn greet(&mut self, peer: u8, boot: u64) -> Vec<Output> {
        let mut outputs = self.feed(Input::PeerUp { peer: id(peer) });
        let hello = self.hello(boot);
        outputs.extend(self.say(peer, &hello));
        outputs
    }

    /// A refused peer comes back on a new connection.
    pub fn reconnect(&mut self, peer: u8) {
        self.feed(Input::PeerDown { peer: id(peer) });
        self.greet(peer, BOOT);
    }

    /// The same, and the peer tells its head again.
    pub fn meet_again(&mut self, peer: u8) {
        self.reconnect(peer);
        let head = self.chain_head(Phase::Training, 0);
        self.say(peer, &Message::Head(head));
    }

    /// A peer claims a head, is asked to show it, and does.
    pub fn claim(&mut self, peer: u8, head: &Head, ancestry: &Ancestry) -> Vec<Output> {
        self.say(peer, &Message::Head(head.clone()));
        let (record, tokens, ancestry) = (head.record, head.tokens, ancestry.clone());
        self.answer(peer, head, Claim::Proven(Proven { record, tokens, ancestry, voters: Vec::new() }))
    }

    /// Gives the engine the outcome of a claim that this peer was asked to show.
    pub fn answer(&mut self, peer: u8, head: &Head, outcome: Claim) -> Vec<Output> {
        self.feed(Input::Claim { peer: id(peer), record: head.record, outcome })
    }

    /// The way to a head in the engine's lineage.
    pub fn way(&self, head: &Head) -> Ancestry {
        [Reach { lineage: head.lineage, last: head.seq, voters: 0 }].into_iter().collect()
    }

    /// The heartbeat of a node whose head is the engine's.
    pub fn chain_head(&self, phase: Phase, progress: u64) -> Head {
        let view = self.engine.view();
        let (lineage, seq, record, tokens) = (view.lineage, view.seq, view.head, view.tokens);
        Head { lineage, seq, record, tokens, phase, progress, awaits: None, pulse: Pulse::default() }
    }

    /// The READY of a member of the round under way.
    pub fn ready(&self, member: u8) -> Ready {
        let record = self.record();
        let lease = *record.lease_of(&id(member)).unwrap_or(&Span { start: 0, count: 1 });
        Ready {
            lineage: record.lineage,
            round: record.round + 1,
            base: record.base_or(record.digest()),
            state_root: record.state_root,
            boot: BOOT,
            start: lease.start,
            samples: lease.count,
            tokens: lease.count * 4,
            steps: record.next.inner_steps.min(2),
            loss_q16: 1,
            payload: digest(member),
            measured: Measured { step_us: 1_000, norm_bits: self.norm.to_bits(), ..Measured::default() },
            statements: Vec::new(),
            leave: false,
            merges: None,
            merged_tokens: 0,
            rtts: Vec::new(),
            amends: None,
        }
    }

    /// Ends the training of the engine's own trainer.
    pub fn trained(&mut self) -> Vec<Output> {
        let Ready { round, base, samples, tokens, steps, loss_q16, payload, measured, .. } = self.ready(ME);
        self.feed(Input::Trained { round, base, samples, tokens, steps, loss_q16, payload, measured })
    }

    /// All members say READY. Returns the attempt that follows.
    pub fn all_ready(&mut self) -> AttemptKey {
        let members = self.record().members().map(|id| id.0[0]).filter(|n| *n != ME).collect::<Vec<_>>();
        self.reducing = None;
        self.trained();
        for member in members {
            let ready = self.ready(member);
            self.say(member, &Message::Ready(ready));
        }
        self.running()
    }

    /// The attempt that the engine was last told to make, if there was any.
    #[allow(dead_code)]
    pub fn attempt(&self) -> Option<AttemptKey> {
        self.reducing
    }

    /// Forgets the attempt that the engine was last told to make.
    pub fn forget_attempt(&mut self) {
        self.reducing = None;
    }

    /// A voter repeats the engine's last statement, if there was one.
    #[allow(dead_code)]
    pub fn echo(&mut self, from: u8) -> Vec<Output> {
        match self.said.clone() {
            Some(message) => self.say(from, &message),
            None => Vec::new(),
        }
    }

    /// The attempt that the engine was last told to make.
    pub fn running(&self) -> AttemptKey {
        let view = self.engine.view();
        let waiting = || format!("no attempt in round {} of {:?}: {:?}", view.round + 1, view.phase, view.waiting);
        self.reducing.unwrap_or_else(|| panic!("{}", waiting()))
    }

    /// Completes the attempt's result here. Returns the engine's estimate of it.
    pub fn rebuild(&mut self, key: AttemptKey) -> Estimate {
        self.feed(Input::Reduced { key, update: digest(9) });
        let outputs = self.feed(Input::Applied { key, update: digest(9), state_root: digest(self.now as u8 | 0x80) });
        let said = sent(&self.spec, &outputs).into_iter().find_map(|(_, message)| match message {
            Message::Estimate(estimate) => Some(estimate),
            _ => None,
        });
        said.unwrap_or_else(|| panic!("no estimate: {outputs:?}"))
    }

    /// Plays one whole round with all members. Returns the outputs at the last vote.
    pub fn commit(&mut self) -> Vec<Output> {
        let key = self.all_ready();
        self.decide(key)
    }

    /// Completes the attempt's result on all nodes, and decides it. Returns the outputs at the votes.
    pub fn decide(&mut self, key: AttemptKey) -> Vec<Output> {
        let before = self.record();
        let said = self.rebuild(key);
        let peers: Vec<u8> = before.voters().map(|member| member.id.0[0]).filter(|n| *n != ME).collect();
        for peer in &peers {
            self.say(*peer, &Message::Estimate(said.clone()));
        }
        let mut outputs = Vec::new();
        let (question, ballot, value) = (said.question, said.ballot, said.value);
        for peer in &peers {
            let (question, value) = (question.clone(), value.clone());
            let vote = Vote { question, incarnation: INCARNATION, ballot, value, voted: true };
            outputs.extend(self.say(*peer, &Message::Vote(vote)));
        }
        assert_eq!(self.record().seq, before.seq + 1, "{outputs:?}");
        for peer in peers {
            let head = self.chain_head(Phase::Training, 0);
            self.say(peer, &Message::Head(head));
        }
        outputs
    }

    /// The vote of a member for a value as the record after the head.
    pub fn vote(&self, member: u8, value: Value, ballot: u32) -> Vec<u8> {
        let vote = Vote { question: self.question(), incarnation: INCARNATION, ballot, value, voted: true };
        self.seal(member, &Message::Vote(vote))
    }

    pub fn question(&self) -> Question {
        let record = self.record();
        Question { seq: record.seq + 1, parent: record.digest(), instance: Question::RECORD }
    }

    /// A certificate of these members' votes for a value.
    pub fn certificate(&self, members: &[u8], value: &Value) -> Certificate {
        let votes: BTreeMap<NodeId, Vec<u8>> =
            members.iter().map(|n| (id(*n), self.vote(*n, value.clone(), 0))).collect();
        let question = self.question();
        let vote = Vote { question, incarnation: INCARNATION, ballot: 0, value: value.clone(), voted: true };
        certificate::of_votes(self.record().lineage, &vote, &votes)
    }

    /// The engine's view without the values that change with time alone.
    pub fn still(&self) -> View {
        let mut view = self.engine.view();
        for member in view.members.iter_mut().chain(&mut view.others) {
            member.heard = member.heard.map(|_| 0);
        }
        view
    }
}

pub fn refusals(outputs: &[Output]) -> Vec<&Refusal> {
    let mut refusals = Vec::new();
    for output in outputs {
        if let Output::Refuse { refusal, .. } | Output::Notice(Notice::Refused { refusal, .. }) = output {
            refusals.push(refusal);
        }
    }
    refusals
}

/// The messages that an engine has sent, each with its receiver.
pub fn sent(spec: &RunSpec, outputs: &[Output]) -> Vec<(NodeId, Message)> {
    let message = |output: &Output| match output {
        Output::Send { to, bytes, .. } => {
            Some((*to, wire::open(&Keys, &spec.digest(), bytes).expect("an engine's words are well-formed").message))
        }
        _ => None,
    };
    outputs.iter().filter_map(message).collect()
}

pub fn commits(outputs: &[Output]) -> Vec<&Record> {
    let mut commits = Vec::new();
    for output in outputs {
        if let Output::Commit { record, .. } = output {
            commits.push(record);
        }
    }
    commits
}
