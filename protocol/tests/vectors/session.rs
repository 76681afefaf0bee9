//! Two engines on an ideal network from the founding to the end of a run's budget: all of their messages, and the
//! records, certificates, updates and states that follow.

use crate::fields;
use crate::json::{Json, floats, hex, object};
use crate::made;
use crate::outer::{initial, schema};
use starling_protocol::ancestry::Ancestry;
use starling_protocol::engine::io::{AttemptKey, Claim, Contribution, Input, Output, Proven, Time};
use starling_protocol::engine::succession::{self, SignedReady};
use starling_protocol::engine::{Candidate, Engine, EngineConfig, Founding, Timing};
use starling_protocol::identity::{Ed25519Signer, Ed25519Verifier};
use starling_protocol::message::{Certificate, Message};
use starling_protocol::outer::Rule;
use starling_protocol::record::{Measured, Record, Span};
use starling_protocol::run::{ModelSpec, RunSpec, SyncMode};
use starling_protocol::state::{self, State};
use starling_protocol::{Digest, NodeId, Signer, update, wire};
use std::collections::BTreeMap;

/// COMMITs of the run.
const ROUNDS: u64 = 3;
/// Microseconds: of a message, between two ticks, of a round's inner steps, and until the test gives up.
const LATENCY: u64 = 1_000;
const TICK: u64 = 100_000;
const TRAINING: u64 = 2_000_000;
const END: u64 = 60_000_000;

type Link = (Record, Option<Certificate>);

/// One process, its disk and its device.
struct Node {
    id: NodeId,
    secret: u8,
    boot: u64,
    engine: Engine,
    chain: Vec<Link>,
    state: State,
    /// The state after the attempt's outer step, until it is decided.
    ahead: Option<State>,
    finished: bool,
}

/// The inputs of nodes by time; events of one time are in the order in which they were caused.
type Events = BTreeMap<(u64, u64), (usize, Input)>;

struct World {
    spec: RunSpec,
    nodes: Vec<Node>,
    events: Events,
    count: u64,
    now: u64,
    /// Contributions by digest, as they were made.
    contributions: Vec<(Digest, usize, u64, Vec<f32>)>,
    updates: BTreeMap<Digest, Vec<u8>>,
    /// The inputs of each COMMIT, by its digest, as nodes wrote them down before they voted.
    candidates: BTreeMap<Digest, Candidate>,
    messages: Vec<Json>,
}

fn spec() -> RunSpec {
    let mut spec = made::spec();
    spec.name = "session".to_owned();
    let sizes = ModelSpec { vocab: 5, d_model: 4, layers: 1, heads: 2, kv_heads: 1, ffn: 3, seq_len: 4, ..spec.model };
    spec.model = sizes;
    (spec.inner.steps, spec.inner.batch, spec.budget.rounds) = (2, 2, ROUNDS);
    assert_eq!(spec.validate(), Ok(()));
    spec
}

impl World {
    fn new() -> Self {
        let spec = spec();
        let state = State::initial(initial(&spec.model, spec.seed), SyncMode::Rounds);
        let root = state::root(&state.manifest(schema(&spec.model)).expect("vectors of one length"));
        let founder = Ed25519Signer::from_secret(&[1; 32]).id();
        let node = |(secret, found): (u8, Option<Founding>)| {
            let signer = Ed25519Signer::from_secret(&[secret; 32]);
            let (id, boot) = (signer.id(), 1_000 * u64::from(secret));
            let engine = Engine::new(EngineConfig {
                signer: Box::new(signer),
                verifier: Box::new(Ed25519Verifier),
                run: spec.digest(),
                spec: spec.clone(),
                boot,
                guides: if found.is_some() { Vec::new() } else { vec![founder] },
                found,
                stored: None,
                copied: false,
                ticket: Vec::new(),
                adopt: None,
                force_fork: false,
                timing: Timing::default(),
            });
            let (chain, state) = (Vec::new(), state.clone());
            Node { id, secret, boot, engine, chain, state, ahead: None, finished: false }
        };
        let nodes: Vec<Node> = [(1, Some(Founding { nonce: 5, state_root: root })), (2, None)].map(node).into();
        let (events, count, now) = (Events::new(), 0, 0);
        let (contributions, updates, messages) = (Vec::new(), BTreeMap::new(), Vec::new());
        let candidates = BTreeMap::new();
        Self { spec, nodes, events, count, now, contributions, updates, candidates, messages }
    }

    fn after(&mut self, micros: u64, node: usize, input: Input) {
        self.count += 1;
        self.events.insert((self.now + micros, self.count), (node, input));
    }

    fn run(&mut self) {
        self.after(0, 0, Input::Tick);
        for (node, other) in [(0, 1), (1, 0)] {
            let peer = self.nodes[other].id;
            self.after(2 * LATENCY, node, Input::PeerUp { peer });
            self.after(TICK, node, Input::Tick);
        }
        while let Some(((at, _), (node, input))) = self.events.pop_first() {
            assert!(at < END, "the run does not end: {:?}", self.nodes[0].engine.view());
            self.now = at;
            if matches!(input, Input::Tick) && !self.nodes[node].finished {
                self.after(TICK, node, Input::Tick);
            }
            for output in self.nodes[node].engine.handle(input, Time(at)) {
                self.execute(node, output);
            }
        }
        assert!(self.nodes.iter().all(|node| node.finished), "all come to the end of the budget");
    }

    fn execute(&mut self, node: usize, output: Output) {
        match output {
            // Disks write at once, so that nothing has to wait for a write.
            Output::Send { to, bytes, .. } => self.send(node, to, bytes),
            Output::Train { round, base, lease, inner_steps, .. } => {
                self.train(node, (round, base), lease, inner_steps)
            }
            Output::Reduce { key, members, .. } => self.reduce(node, key, &members),
            Output::Speculate { key, update, rule } => self.speculate(node, key, update, &rule),
            Output::Persist { token, candidate, .. } => {
                self.candidates.extend(candidate.map(|candidate| (candidate.record.digest(), candidate)));
                self.after(0, node, Input::Durable { token });
            }
            Output::Found { token, record } => {
                self.nodes[node].chain.push((record, None));
                self.after(0, node, Input::Durable { token });
            }
            Output::Commit { token, record, certificate, .. } => {
                let at = &mut self.nodes[node];
                at.chain.push((record, Some(certificate)));
                at.state = at.ahead.take().expect("each record is a commit");
                self.after(0, node, Input::Durable { token });
            }
            Output::Prove { peer, record, .. } => {
                let (chain, head) = (self.chain_to(1 - node, record), self.nodes[1 - node].chain.last().cloned());
                let head = head.expect("it claims one").0;
                let outcome = Claim::Proven(Proven::of(&head, record, chain));
                self.after(LATENCY, node, Input::Claim { peer, record, outcome });
            }
            Output::CatchUp { target, .. } => {
                let ancestry = self.chain_to(1 - node, target);
                let (chain, state) = (self.nodes[1 - node].chain.clone(), self.nodes[1 - node].state.clone());
                let (record, certificate) = chain.last().cloned().expect("it is there");
                (self.nodes[node].chain, self.nodes[node].state) = (chain, state);
                self.after(LATENCY, node, Input::CaughtUp { record, certificate, ancestry });
            }
            Output::Refuse { peer, refusal } => panic!("{node} refuses {peer}: {refusal:?}"),
            Output::Fetch { .. } | Output::VerifyState => panic!("nothing is amiss, and {node} says {output:?}"),
            Output::Finished { .. } => self.nodes[node].finished = true,
            _ => {}
        }
    }

    /// The way to the newest record of a node, which has to be this one.
    fn chain_to(&self, node: usize, record: Digest) -> Ancestry {
        let chain = &self.nodes[node].chain;
        assert_eq!(chain.last().map(|(head, _)| head.digest()), Some(record), "nobody asks late here");
        Ancestry::of(chain.iter().map(|(record, _)| record))
    }

    fn send(&mut self, node: usize, to: NodeId, bytes: Vec<u8>) {
        let opened = wire::open(&Ed25519Verifier, &self.spec.digest(), &bytes).expect("an engine's words open");
        let from = self.nodes[node].id;
        assert_eq!((opened.sender, to), (from, self.nodes[1 - node].id));
        self.messages.push(object! {"from": node, "message": opened.message.kind(), "bytes": hex(&bytes)});
        self.after(LATENCY, 1 - node, Input::Message { from, bytes });
    }

    fn train(&mut self, node: usize, (round, base): (u64, Digest), lease: Span, steps: u32) {
        let element = |i: u64| ((i * (7_919 + 2 * round) + 31 * node as u64) % 2_003) as f32 - 1_001.0;
        let vector: Vec<f32> = (0..self.spec.model.parameters()).map(|i| element(i) / 16_384.0).collect();
        let squares: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let norm_bits = (squares.sqrt() as f32).next_up().to_bits();
        let payload = update::contribution_digest(&vector);
        self.contributions.push((payload, node, round, vector));
        let tokens = lease.count * u64::from(self.spec.model.seq_len);
        let measured = Measured { step_us: 1_000_000, norm_bits, ..Measured::default() };
        let (samples, loss_q16) = (lease.count, 3 << 16);
        self.after(TRAINING, node, Input::Trained { round, base, samples, tokens, steps, loss_q16, payload, measured });
    }

    /// Reduces the contributions of an attempt, by a ring.
    fn reduce(&mut self, node: usize, key: AttemptKey, members: &[Contribution]) {
        let weights = Contribution::weights(members);
        let vector = |(member, weight): (&Contribution, &f32)| {
            let made = self.contributions.iter().find(|(payload, ..)| *payload == member.payload);
            let mut vector = made.expect("it was made").3.clone();
            update::apply_weight(*weight, &mut vector);
            vector
        };
        let vectors: Vec<Vec<f32>> = members.iter().zip(&weights).map(vector).collect();
        let views: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
        let reduced = update::reduce(self.spec.sync.codec, &views).expect("vectors of one length");
        let update = update::digest(&reduced);
        self.updates.insert(update, reduced);
        self.after(LATENCY, node, Input::Reduced { key, update });
    }

    fn speculate(&mut self, node: usize, key: AttemptKey, update: Digest, rule: &Rule) {
        let mut state = self.nodes[node].state.clone();
        let mut decoded = vec![0.0; state.elements()];
        update::decode(self.spec.sync.codec, &self.updates[&update], &mut decoded).expect("it was just encoded");
        assert!(rule.apply(&mut state, &decoded), "the state stays finite");
        let state_root = state::root(&state.manifest(schema(&self.spec.model)).expect("vectors of one length"));
        self.nodes[node].ahead = Some(state);
        self.after(LATENCY, node, Input::Applied { key, update, state_root });
    }

    /// The signed READYs of a record's contributors, in their order. The record has to follow from them alone.
    fn readys(&self, parent: &Record, record: &Record) -> Vec<Vec<u8>> {
        let readys = self.candidates[&record.digest()].readys.clone();
        let signed = |bytes: &Vec<u8>| {
            let opened = wire::open(&Ed25519Verifier, &record.run, bytes).expect("it is signed");
            let Message::Ready(ready) = opened.message else { panic!("no READY: {:?}", opened.message) };
            SignedReady { member: opened.sender, ready, digest: opened.digest, bytes: bytes.clone() }
        };
        let signed: Vec<SignedReady> = readys.iter().map(signed).collect();
        let (update, root) = (record.update, record.state_root);
        let made = succession::commit(parent, parent.digest(), &self.spec, &signed, update, root);
        assert_eq!(made.as_ref(), Some(record), "it is built of its READYs");
        readys
    }

    /// The chain, which is the same at both nodes.
    fn links(&self) -> Vec<Json> {
        let [a, b] = [0, 1].map(|node| self.nodes[node].chain.iter().map(|(record, _)| record).collect::<Vec<_>>());
        assert_eq!(a, b, "both have the same records");
        let parents = std::iter::once(None).chain(a.iter().copied().map(Some));
        let link = |(parent, (record, certificate)): (Option<&Record>, &Link)| {
            let readys = parent.map(|parent| self.readys(parent, record)).unwrap_or_default();
            object! {
                "digest": record.digest(), "record": hex(&wire::encode_record(record)),
                "certificate": certificate.as_ref().map(|c| hex(&wire::encode_certificate(c))),
                "readys": readys.iter().map(|ready| hex(ready)).collect::<Vec<_>>(),
                "update": self.updates.get(&record.update).map(|update| hex(update)),
            }
        };
        parents.zip(&self.nodes[0].chain).map(link).collect()
    }
}

pub fn subject() -> Json {
    let mut world = World::new();
    world.run();
    let node = |node: &Node| object! {"secret": hex(&[node.secret; 32]), "id": node.id, "boot": node.boot};
    let contribution = |(payload, node, round, vector): &(Digest, usize, u64, Vec<f32>)| {
        object! {"node": *node, "round": *round, "payload": *payload, "elements": floats(vector)}
    };
    let state = &world.nodes[0].state;
    let about = "Node 0 founds a lineage, node 1 is let in, learns for a round, and votes. `chain` has each record with the \
                 certificate that decided it, and with the update and the signed READYs that it is built from; the \
                 genesis has none of them. In the first round node 0 is alone: its READY is in `chain`, and is sent to \
                 nobody. `messages` are all envelopes in the \
                 order in which they were sent; the sender's public key is its id. The secrets are given so that \
                 signatures can be made again. When a node speaks, and how often, is its own affair: another program may \
                 send others, and has to accept these.";
    object! {
        "about": about,
        "sections": vec![
            "docs/protocol/README.md", "docs/protocol/1-wire.md §1.5", "docs/protocol/2-records.md §2.2",
            "docs/protocol/4-agreement.md §4.8",
        ],
        "run": fields::run(&world.spec),
        "schema": schema(&world.spec.model),
        "nodes": world.nodes.iter().map(node).collect::<Vec<_>>(),
        "initial_theta": floats(&initial(&world.spec.model, world.spec.seed)),
        "contributions": world.contributions.iter().map(contribution).collect::<Vec<_>>(),
        "chain": world.links(),
        "final_theta": floats(&state.theta),
        "final_momentum": floats(&state.moments[0]),
        "messages": world.messages.clone(),
    }
}
