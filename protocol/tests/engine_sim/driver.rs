//! The fake driver: does what an engine says, in virtual time.

use crate::disk::{Link, Write};
use crate::keys::{self, id};
use crate::process::applied_root;
use crate::world::{Event, MS, STEPS, World};
use starling_protocol::engine::io::{AttemptKey, Contribution, Finish, Input, Notice, Output, PersistToken, Refusal};
use starling_protocol::message::Certificate;
use starling_protocol::record::{Measured, Record, Span};
use starling_protocol::{Digest, NodeId};

impl World {
    pub fn execute(&mut self, node: usize, output: Output) {
        if self.tracing && !matches!(output, Output::Send { .. }) {
            println!("{:>12} n{node} -> {output:?}", self.now);
        }
        match output {
            Output::Send { to, bytes, after } => self.send(node, keys::node(&to), bytes, after),
            Output::CutShort { .. } => {
                self.check.mark("training was cut short");
                self.process(node).cut_short = true;
            }
            Output::Train { round, base, lease, inner_steps, tokens } => {
                self.train(node, round, base, &lease, inner_steps, tokens);
            }
            Output::StopTraining { .. } => self.process(node).training = None,
            Output::Reduce { key, members, .. } => self.reduce(node, key, members),
            Output::Abandon { key } => self.abandon(node, key),
            Output::Speculate { key, update, outer_lr, momentum } => {
                self.speculate(node, (key, update), outer_lr, momentum);
            }
            Output::Persist { token, register, candidate } => {
                if let Some(candidate) = &candidate {
                    let process = self.process(node);
                    assert_eq!(
                        process.updates.get(&candidate.key),
                        Some(&candidate.record.update),
                        "its update is here"
                    );
                }
                self.write(node, token, Write::Said(Box::new((register, candidate))));
            }
            Output::Commit { token, key, record, certificate, mine } => {
                self.commit(node, token, key, record, certificate, mine);
            }
            Output::VerifyState => {
                self.check.mark("an own state was looked at");
                let after = self.random.between(5, 300) * MS;
                self.schedule_own(after, node, Event::Verified);
            }
            Output::Fetch { key, record, sources } => {
                self.check.mark("a result was fetched");
                let sources = sources.iter().map(keys::node).collect();
                let after = self.random.between(20, 900) * MS;
                self.schedule_own(after, node, Event::Candidate { key, record, sources });
            }
            Output::Found { token, record } => {
                let link = Link::new(record, None);
                self.check.holds(node, &link.digest, link.record.state_root);
                self.process(node).chain = vec![link.clone()];
                self.write(node, token, Write::Found(link));
            }
            Output::CatchUp { target, sources, afresh, .. } => self.catch_up(node, target, &sources, afresh),
            Output::Evidence { against, what, .. } => {
                panic!("node {node} holds evidence against node {}: {what}", keys::node(&against));
            }
            Output::Refuse { refusal, peer } => {
                panic!("node {node} refuses node {}: {refusal:?}", keys::node(&peer));
            }
            Output::Notice(notice) => self.hear(notice),
            Output::Finished { reason } => {
                assert!(matches!(reason, Finish::BudgetSpent | Finish::Left), "node {node} ends: {reason:?}");
                self.process(node).finished = true;
            }
        }
    }

    fn process(&mut self, node: usize) -> &mut crate::process::Process {
        self.nodes[node].process.as_mut().expect("outputs come from a running process")
    }

    fn hear(&mut self, notice: Notice) {
        match notice {
            Notice::RolledBack { .. } => self.check.mark("rolled back"),
            // Who hears the decision before its own result is complete has lost nothing.
            Notice::AttemptFailed { reason, .. } if reason == "the flock is elsewhere" => {}
            Notice::AttemptFailed { .. } => self.check.mark("an attempt failed"),
            Notice::AttemptStarted { attempt, .. } if attempt > 0 => self.check.mark("a later attempt began"),
            Notice::MemberJoined { .. } => self.check.mark("a member joined"),
            Notice::CatchUpFailed { .. } => self.check.mark("a catch-up failed"),
            Notice::Refused { refusal: Refusal::Stale, .. } => self.check.mark("a message was stale"),
            Notice::Skipped { .. } => self.check.mark("a round was skipped"),
            Notice::Forked { .. } => self.check.mark("a fork"),
            Notice::LineageMet { .. } => self.check.mark("another lineage was met"),
            Notice::CutOff { .. } => self.check.mark("cut off from the quorum"),
            Notice::NewIncarnation { .. } => self.check.mark("a new incarnation"),
            Notice::OwnFault { .. } => self.check.mark("an own fault"),
            Notice::SplitBrain { .. } => panic!("two certified records contradict each other"),
            _ => {}
        }
    }

    fn send(&mut self, node: usize, to: usize, bytes: Vec<u8>, after: Option<PersistToken>) {
        let process = self.process(node);
        if let Some(token) = after.filter(|token| process.writes.iter().any(|(waiting, _)| waiting == token)) {
            return process.waiting.push((token, to, bytes));
        }
        self.post(node, to, bytes);
    }

    /// Remembers the attempts that a node has said it would make: it may not report in earlier ones any more.
    fn train(&mut self, node: usize, round: u64, base: Digest, lease: &Span, steps: u32, tokens: u64) {
        let process = self.process(node);
        let head = process.chain.last().expect("only a node with a head trains");
        assert_eq!(
            (head.record.base_or(head.digest), head.record.tokens),
            (base, tokens),
            "training starts from the head"
        );
        assert_eq!(head.record.lease_of(&id(node)), Some(lease));
        assert!(process.training.is_none(), "one training at a time");
        assert!((1..=STEPS).contains(&steps));
        let job = process.job();
        process.training = Some(job);
        process.cut_short = false;
        let step = self.nodes[node].step;
        let after = self.random.between(step / 2, step * 2);
        self.schedule_own(after, node, Event::Step { job, round, step: 1, of: steps, base });
    }

    pub fn step(&mut self, node: usize, job: u64, round: u64, step: u32, of: u32, base: Digest) {
        let pace = self.nodes[node].step;
        let after = self.random.between(pace / 2, pace * 2);
        let process = self.process(node);
        if process.training != Some(job) {
            return;
        }
        if step < of && !process.cut_short {
            self.schedule_own(after, node, Event::Step { job, round, step: step + 1, of, base });
            return self.feed(node, Input::TrainProgress { round, step });
        }
        process.training = None;
        let start = self.nodes[node].starts;
        let payload = Digest::of("sim gradient", &[&base.0, &[node as u8], &start.to_le_bytes(), &job.to_le_bytes()]);
        let process = self.process(node);
        process.contribution = Some((base, payload));
        let samples = u64::from(step) * self.spec.inner.samples(1);
        let tokens = samples * u64::from(self.spec.model.seq_len);
        let measured = Measured { step_us: pace as u32, ..Measured::default() };
        let done = Input::Trained { round, base, samples, tokens, steps: step, loss_q16: 7, payload, measured };
        self.feed(node, done);
    }

    fn reduce(&mut self, node: usize, key: AttemptKey, contributions: Vec<Contribution>) {
        let process = self.process(node);
        assert!(process.reducing.is_none(), "one reduction at a time");
        process.reducing = Some(key);
        let own = contributions.iter().find(|c| c.member == id(node)).expect("this node takes part");
        let held = process.contribution.expect("a contribution is held");
        assert_eq!(own.payload, held.1, "the contribution named is the one held");
        let members: Vec<usize> = contributions.iter().map(|c| keys::node(&c.member)).collect();
        if !self.reductions.join(key, node, members.clone(), contributions) {
            return;
        }
        let fails = self.options.failing_reductions && self.now < self.faults_until && self.random.chance(15);
        let slowest = if self.random.chance(80) { 500 } else { 4_000 };
        let failing = self.random.pick(&members);
        for member in members {
            let after = self.random.between(5, slowest) * MS;
            if fails && self.random.chance(60) {
                let suspect = failing.filter(|suspect| *suspect != member);
                self.schedule_own(after, member, Event::Failed { key, suspect });
            } else {
                self.schedule_own(after / 2, member, Event::Moved { key, bytes: 1 + after / 2 });
                self.schedule_own(after, member, Event::Reduced { key });
            }
        }
    }

    pub fn reduced(&mut self, node: usize, key: AttemptKey) {
        let now = self.now;
        let Some(group) = self.reductions.0.get_mut(&key) else { return };
        if group.broken || self.nodes[node].process.as_ref().is_none_or(|p| p.reducing != Some(key)) {
            return;
        }
        // A ring moves at the pace of its slowest member; one that is stopped holds all up.
        let held_up = group.members.iter().any(|m| !group.done.contains(m) && self.nodes[*m].frozen_until > now);
        if held_up {
            return self.schedule_own(500 * MS, node, Event::Reduced { key });
        }
        group.done.insert(node);
        let parts: Vec<u8> = group.contributions.iter().flat_map(|c| c.payload.0).collect();
        let update = Digest::of("sim update", &[&parts]);
        let process = self.process(node);
        process.reducing = None;
        process.updates.insert(key, update);
        self.feed(node, Input::Reduced { key, update });
    }

    fn abandon(&mut self, node: usize, key: AttemptKey) {
        let process = self.process(node);
        process.updates.remove(&key);
        if process.reducing.take_if(|running| *running == key).is_some() {
            self.break_reduction(node, key);
        }
    }

    fn speculate(&mut self, node: usize, (key, update): (AttemptKey, Digest), outer_lr: f64, momentum: f64) {
        let named = |c: &starling_protocol::engine::Candidate| c.key == key && c.record.update == update;
        let stored = self.nodes[node].disk.candidates.iter().any(named);
        let process = self.process(node);
        assert!(stored || process.updates.get(&key) == Some(&update), "the update is in memory or on disk");
        let root = applied_root(&process.state, &update, outer_lr, momentum);
        let after = self.random.between(5, 300) * MS;
        self.schedule_own(after, node, Event::Applied { key, update, root });
    }

    fn commit(
        &mut self,
        node: usize,
        token: PersistToken,
        key: Option<AttemptKey>,
        record: Record,
        certificate: Certificate,
        mine: bool,
    ) {
        let parent = self.process(node).chain.last().expect("a record follows a head").clone();
        starling_protocol::certificate::verify(
            &keys::PlainVerifier,
            &parent.record,
            &parent.digest,
            &record,
            &certificate,
        )
        .expect("a commit comes with its proof");
        match &key {
            None => self.check.mark("a record without an update"),
            Some(key) if key.attempt > 0 => self.check.mark("a later attempt committed"),
            Some(_) => {}
        }
        self.reductions.prune(record.seq);
        let link = Link::new(record, Some(certificate));
        let held = self.nodes[node].disk.candidates.iter().find(|c| Some(c.key) == key).map(|c| c.record.update);
        let process = self.process(node);
        assert_eq!(parent.digest, link.record.parent, "a record follows the head");
        assert!(process.training.is_none(), "nobody trains while a round is decided");
        if let Some(key) = key {
            let update = process.updates.get(&key).copied().or(held).expect("the update is in memory or on disk");
            assert_eq!(update, link.record.update);
            let outer = self.spec.outer.clone();
            let lr = outer.lr_for(link.record.contributors.len());
            let root = applied_root(&self.process(node).state, &update, lr, outer.momentum);
            self.process(node).state = root;
        }
        if self.options.damage && self.process(node).state != link.record.state_root {
            // The driver notices and repairs; that is not the engine's.
            self.process(node).state = link.record.state_root;
        }
        let process = self.process(node);
        assert_eq!(process.state, link.record.state_root, "the state adopted is the record's");
        process.chain.push(link.clone());
        process.updates.clear();
        if mine {
            process.contribution = None;
        }
        let state = process.state;
        self.check.holds(node, &link.digest, state);
        self.write(node, token, Write::Commit(link));
    }

    pub fn fetch_candidate(&mut self, node: usize, key: AttemptKey, record: Digest, sources: &[usize]) {
        let holds = |source: &&usize| {
            self.net.connected(node, **source)
                && self.nodes[**source].alive()
                && self.nodes[**source].disk.candidates.iter().any(|c| c.record.digest() == record)
        };
        let Some(source) = sources.iter().find(holds).copied() else {
            self.check.mark("a fetch failed");
            return self.feed(node, Input::FetchFailed { key, record });
        };
        let candidates = &self.nodes[source].disk.candidates;
        let candidate = candidates.iter().find(|c| c.record.digest() == record).expect("just found").clone();
        self.process(node).updates.insert(key, candidate.record.update);
        self.feed(node, Input::Fetched { candidate });
    }

    fn write(&mut self, node: usize, token: PersistToken, write: Write) {
        self.process(node).writes.push((token, write));
        let slow = self.nodes[node].slow_disk && self.random.chance(30);
        let after = if slow { self.random.between(200, 4_000) * MS } else { self.random.between(1, 40) * MS };
        self.schedule_own(after, node, Event::Written { token });
    }

    fn catch_up(&mut self, node: usize, target: Digest, sources: &[NodeId], afresh: bool) {
        assert!(!sources.is_empty(), "a catch-up names its sources");
        let sources: Vec<usize> = sources.iter().map(keys::node).collect();
        let source = self.random.pick(&sources);
        let process = self.process(node);
        assert!(process.catching.is_none(), "one catch-up at a time");
        assert!(process.training.is_none() && process.reducing.is_none(), "nothing else runs meanwhile");
        let job = process.job();
        process.catching = Some(job);
        let after = if afresh { self.random.between(200, 4_000) } else { self.random.between(20, 800) } * MS;
        self.schedule_own(after, node, Event::Fetched { job, source, target, afresh });
    }

    pub fn fetched(&mut self, node: usize, job: u64, source: Option<usize>, target: Digest, afresh: bool) {
        let process = self.process(node);
        if process.catching.take_if(|running| *running == job).is_none() {
            return;
        }
        let mine = process.chain.last().map(|head| head.digest);
        let reachable = source.filter(|source| self.net.connected(node, *source));
        let chain = reachable.map(|source| self.nodes[source].disk.chain.clone()).unwrap_or_default();
        let failed = |reason: &str, diverged| Input::CatchUpFailed { reason: reason.to_owned(), diverged };
        let Some(place) = chain.iter().position(|link| link.digest == target) else {
            return self.feed(node, failed("no source has the target", false));
        };
        if !afresh && !chain.iter().any(|link| Some(link.digest) == mine) {
            self.check.mark("a chain had diverged");
            return self.feed(node, failed("the chain does not contain this node's head", true));
        }
        // The source may have gone on; sometimes that is followed, too.
        let end = if self.random.chance(70) { chain.len() } else { place + 1 };
        let chain = chain[..end].to_vec();
        let head = chain.last().expect("at least the target").clone();
        let disk = &mut self.nodes[node].disk;
        disk.chain = chain.clone();
        disk.candidates.clear();
        let process = self.process(node);
        process.chain = chain;
        process.state = head.record.state_root;
        process.contribution = None;
        process.updates.clear();
        self.check.holds(node, &head.digest, head.record.state_root);
        self.check.mark("caught up");
        let certificate = head.certificate.as_ref().map(|c| (**c).clone());
        self.feed(node, Input::CaughtUp { record: (*head.record).clone(), certificate });
    }
}

/// A run whose rounds are short.
pub fn spec() -> starling_protocol::run::RunSpec {
    use starling_protocol::run::{
        AdmissionMode, AdmissionSpec, Budget, Codec, DataSpec, InnerSpec, Minority, ModelSpec,
    };
    use starling_protocol::run::{OuterSpec, PartitionSpec, RunSpec, SyncSpec};
    RunSpec {
        name: "sim".to_owned(),
        seed: 1,
        creator: None,
        model: ModelSpec {
            vocab: 256,
            d_model: 8,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            ffn: 8,
            seq_len: 4,
            tied: true,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
        },
        data: DataSpec { manifest: Digest([1; 32]), tokenizer: Digest([2; 32]) },
        inner: InnerSpec {
            steps: STEPS,
            batch: 2,
            accumulate: 1,
            lr: 1e-3,
            lr_final: 0.1,
            warmup_steps: 0,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
        },
        outer: OuterSpec { lr: vec![(1, 0.9), (2, 0.8), (4, 0.7)], momentum: 0.9 },
        sync: SyncSpec { codec: Codec::Int8 },
        partition: PartitionSpec { minority: Minority::Fork, grace_ms: 20_000 },
        admission: AdmissionSpec { mode: AdmissionMode::Open, allow: Vec::new() },
        budget: Budget { rounds: 0, tokens: 0 },
    }
}
