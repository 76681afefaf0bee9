//! A stranger with an invented lineage, among real nodes: a small peer that claims the head of a lineage with the
//! greatest possible number of tokens, and offers a snapshot of its own. Neither a node with a head nor a newcomer
//! takes any of it (`docs/protocol/6-sync.md` §6.2).

use serde_json::Value;
use starling_bootstrap::addresses::split;
use starling_bootstrap::identity::{self, Identity};
use starling_kernels::initial_parameters;
use starling_node::config::model_table::model_config;
use starling_node::net::fetch::{
    Answer, Expect, FetchError, FetchRefusal, FetchRequest, FetchSource, Link, Start, decode_records, encode_records,
    encode_start,
};
use starling_node::net::{NetEvent, NetEvents, NetHandle, NetOptions, Network};
use starling_protocol::engine::succession;
use starling_protocol::identity::Signer;
use starling_protocol::limits::PROTOCOL_VERSION;
use starling_protocol::message::{Certificate, Head, Hello, Message, Phase, Pulse, Question, Value as Estimate, Vote};
use starling_protocol::record::Record;
use starling_protocol::run::RunSpec;
use starling_protocol::state::{self, State};
use starling_protocol::{Digest, NodeId, certificate, wire};
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::Process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
/// Time in which a process that asks meets the founder and has its answers, or another one asks.
const ASKS_FOR: Duration = Duration::from_secs(10);
/// Interval between two Heads of the stranger.
const BEAT: Duration = Duration::from_millis(300);

/// The records that the stranger serves, and the requests that it got.
#[derive(Default)]
struct Bait {
    spec: Vec<u8>,
    path: Vec<Link>,
    snapshot: Option<(u64, State, Digest)>,
    records: Vec<Link>,
    asked: Vec<FetchRequest>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Bait>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Bait> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FetchSource for Shared {
    fn serve(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
        let mut bait = self.lock();
        bait.asked.push(request.clone());
        let links = |links: &[Link]| encode_records(links).map(Answer::from).map_err(|_| FetchRefusal::Internal);
        match request {
            FetchRequest::Spec => Ok(bait.spec.clone().into()),
            FetchRequest::Path { .. } => links(&bait.path),
            FetchRequest::Records { from_seq, .. } => {
                links(&bait.records[bait.records.len().min(*from_seq as usize)..])
            }
            FetchRequest::Start { .. } => {
                let (seq, state, schema) = bait.snapshot.as_ref().ok_or(FetchRefusal::NotFound)?;
                let manifest = state.manifest(*schema).map_err(|_| FetchRefusal::Internal)?;
                let path = encode_records(&bait.path).map_err(|_| FetchRefusal::Internal)?;
                let start = Start { seq: *seq, manifest: manifest.encode(), path, records: vec![0; 2] };
                encode_start(&start).map(Answer::from).map_err(|_| FetchRefusal::Internal)
            }
            _ => Err(FetchRefusal::NotFound),
        }
    }
}

struct Stranger {
    net: NetHandle,
    events: NetEvents,
    identity: Identity,
    spec: RunSpec,
    bait: Shared,
    claims: Head,
}

impl Stranger {
    /// Invents a lineage with a record of its own, whose state is the initial one.
    fn new(spec: RunSpec, bootstrap: &str) -> Self {
        let identity = Identity::generate().expect("a key");
        let model = model_config(&spec.model);
        let (theta, schema) = (initial_parameters(&model, spec.seed), Digest(model.schema().digest()));
        let state = State::initial(theta, spec.sync.mode);
        let root = state::root(&state.manifest(schema).expect("of a sound size"));
        let me = identity.node_id();
        let genesis = succession::genesis(spec.digest(), &spec, (me, 1), 7, root).expect("it fits");
        let child = succession::skip(&genesis, genesis.digest()).expect("it fits");
        let records = vec![link(&genesis, None), link(&child, Some(&vote(&identity, &child)))];
        let claims = Head {
            lineage: child.lineage,
            seq: child.seq,
            record: child.digest(),
            tokens: u64::MAX,
            phase: Phase::Training,
            progress: 0,
            awaits: None,
            pulse: Pulse::default(),
        };
        let bait = Shared::default();
        *bait.lock() = Bait {
            spec: wire::encode_spec(&spec),
            path: records.clone(),
            snapshot: Some((child.seq, state, schema)),
            records,
            asked: Vec::new(),
        };
        let options = NetOptions {
            run: spec.digest(),
            listen: vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")],
            advertise: Vec::new(),
            bootstrap: vec![split(&bootstrap.parse().expect("an address")).expect("of a peer")],
            mdns: false,
            relay: false,
            name: None,
            hidden: false,
            source: Arc::new(bait.clone()),
            verify: None,
        };
        let (net, events) = Network::start(&identity, options).expect("a network");
        Self { net, events, identity, spec, bait, claims }
    }

    fn say(&self, to: NodeId, message: &Message) {
        let bytes = wire::seal(&self.identity.signer(), &self.spec.digest(), message).expect("of good form");
        self.net.send_control(to, bytes);
    }

    /// Sends a Hello to each new peer, and its Head again and again.
    async fn claim(&mut self) -> ! {
        let mut beat = tokio::time::interval(BEAT);
        loop {
            tokio::select! {
                Some(event) = self.events.recv() => {
                    let NetEvent::PeerUp { peer } = event else { continue };
                    let spec = wire::encode_spec(&self.spec);
                    self.say(peer, &Message::Hello(Hello { version: PROTOCOL_VERSION, spec, boot: 1, incarnation: 1 }));
                }
                _ = beat.tick() => {
                    for peer in self.net.peers() {
                        self.say(peer, &Message::Head(self.claims.clone()));
                    }
                }
            }
        }
    }

    /// Claims its head until the node reports an event.
    async fn claim_until(&mut self, node: &mut Process, name: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + LIMIT;
        loop {
            let found = node.events().into_iter().find(|e| e["event"] == name && fits(e));
            if let Some(found) = found {
                return found;
            }
            assert!(Instant::now() < deadline && !node.has_exited(), "no {name}: {}", node.last_words());
            tokio::select! {
                _ = self.claim() => {}
                () = tokio::time::sleep(BEAT) => {}
            }
        }
    }

    /// Checks that no node asked for anything that leads to the stranger's state.
    fn was_not_followed(&self) {
        let state = |request: &FetchRequest| {
            use FetchRequest::{Records, Start, StateChunk, Update};
            matches!(request, Start { .. } | StateChunk(_) | Records { .. } | Update { .. })
        };
        let asked = &self.bait.lock().asked;
        assert!(!asked.iter().any(state), "{asked:?}");
        assert!(asked.iter().any(|request| matches!(request, FetchRequest::Path { .. })), "it was asked to show it");
    }
}

fn link(record: &Record, votes: Option<&Certificate>) -> Link {
    (wire::encode_record(record), votes.map(wire::encode_certificate).unwrap_or_default())
}

/// The stranger's own vote.
fn vote(identity: &Identity, record: &Record) -> Certificate {
    let question = Question { seq: record.seq, parent: record.parent, instance: Question::RECORD };
    let value = Estimate::skip(record.digest());
    let vote = Vote { question, incarnation: 1, ballot: 0, value, voted: true };
    let sealed = wire::seal(&identity.signer(), &record.run, &Message::Vote(vote.clone())).expect("of good form");
    certificate::of_votes(record.lineage, &vote, [(&identity.signer().id(), &sealed)])
}

/// A run that admits its founder alone.
fn closed_run() -> (tempfile::TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let home = folder.path().join("nodes").join("founder");
    std::fs::create_dir_all(&home).expect("a folder");
    let founder = identity::load_or_create(&home.join("key")).expect("a key").node_id();
    let run_toml = format!(
        "name = \"usurper\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\nholdout = 0.1\n\
         [inner]\nsteps = 2\nbatch = 2\n[admission]\nmode = \"list\"\nallow = [\"{founder}\"]\n"
    );
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), &run_toml).expect("a bootstrap peer");
    (folder, flock)
}

/// The run that a node serves, and its first record.
async fn origin_of(net: &NetHandle, peer: NodeId) -> Result<(RunSpec, Link), FetchError> {
    let bytes = net.fetch(peer, FetchRequest::Spec, Expect::of(&FetchRequest::Spec)).await?;
    let spec = wire::decode_spec(&bytes).expect("of good form");
    let request = FetchRequest::Records { from_seq: 0, max: 1 };
    let bytes = net.fetch(peer, request, Expect::AtMost(1 << 20)).await?;
    Ok((spec, decode_records(&bytes).expect("of good form").remove(0)))
}

/// Fetches the run's specification and genesis from a node. Any peer that knows the run's digest may do so.
async fn look_up(node: &mut Process, bootstrap: &str) -> (RunSpec, Link) {
    let digest = node.wait(LIMIT, "started", |_| true).expect("it starts")["run_digest"].clone();
    let run = digest.as_str().and_then(Digest::from_hex).expect("a digest");
    let deadline = Instant::now() + LIMIT;
    loop {
        // Two nodes that dial each other at once give one connection up, and with it the session that was on it. Another
        // process that asks is met at once; this one would wait for its next dial.
        if let Ok(Some(origin)) = tokio::time::timeout(ASKS_FOR, ask(run, bootstrap)).await {
            return origin;
        }
        assert!(Instant::now() < deadline, "the founder answers");
    }
}

/// Asks the first peer that is met, as a process of its own. None if the connection is given up meanwhile.
async fn ask(run: Digest, bootstrap: &str) -> Option<(RunSpec, Link)> {
    let options = NetOptions {
        run,
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")],
        advertise: Vec::new(),
        bootstrap: vec![split(&bootstrap.parse().expect("an address")).expect("of a peer")],
        mdns: false,
        relay: false,
        name: None,
        hidden: false,
        source: Arc::new(Shared::default()),
        verify: None,
    };
    let (net, mut events) = Network::start(&Identity::generate().expect("a key"), options).expect("a network");
    let peer = loop {
        if let NetEvent::PeerUp { peer } = events.recv().await? {
            break peer;
        }
    };
    let origin = origin_of(&net, peer).await;
    net.shutdown().await;
    match origin {
        Ok(origin) => Some(origin),
        Err(FetchError::NoStream(_) | FetchError::Io(_)) => None,
        Err(error) => panic!("the founder has both: {error}"),
    }
}

fn is_false_claim(event: &Value) -> bool {
    event["reason"].as_str().is_some_and(|reason| reason.contains("showed to its head proves nothing"))
}

fn took_nothing(node: &Process) {
    let events = node.events();
    let took = |e: &&Value| ["catching_up", "caught_up", "rolled_back"].iter().any(|name| e["event"] == *name);
    assert_eq!(events.iter().find(took), None, "it went after the stranger");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_lineage_is_not_followed() {
    let (_folder, flock) = closed_run();
    let mut options = NodeOptions::small(true);
    let mut founder = flock.node("founder", &options).expect("a node");
    let lineage = founder.wait(LIMIT, "founded", |_| true).expect("it founds")["lineage"].clone();
    founder.wait(LIMIT, "committed", |_| true).expect("it trains");
    let (spec, genesis) = look_up(&mut founder, &flock.address).await;

    // The node does not look at a chain that has nothing in common with its own; it tells its user.
    let mut stranger = Stranger::new(spec, &flock.address);
    let invented = stranger.claims.lineage.to_string();
    let met = stranger.claim_until(&mut founder, "lineage_met", |e| e["lineage"] == *invented).await;
    assert_eq!(met["yields"], false);
    took_nothing(&founder);

    // A chain on top of the node's record, with voters of the stranger's choice, is a false claim and ends the session.
    let stolen = wire::decode_record(&genesis.0).expect("of good form");
    let mut stone = succession::skip(&stolen, stolen.digest()).expect("it fits");
    (stone.seq, stone.lineage) = (1_000_000, stolen.lineage);
    let child = succession::skip(&stone, stone.digest()).expect("it fits");
    let proof = vote(&stranger.identity, &child);
    stranger.bait.lock().path = vec![genesis, link(&stone, None), link(&child, Some(&proof))];
    stranger.claims =
        Head { lineage: child.lineage, seq: child.seq, record: child.digest(), ..stranger.claims.clone() };
    stranger.claim_until(&mut founder, "refused", is_false_claim).await;
    stranger.was_not_followed();
    took_nothing(&founder);
    let mark = founder.mark();
    founder.wait_since(mark, LIMIT, "committed", |e| e["lineage"] == lineage).expect("it goes on");
    drop(stranger);

    // The newcomer knows only a stranger, which its user has named.
    let (spec, _) = look_up(&mut founder, &flock.address).await;
    let mut stranger = Stranger::new(spec, &flock.address);
    founder.kill();
    options = NodeOptions::small(false);
    let mut newcomer = flock.node("newcomer", &options).expect("a node");
    stranger.claim_until(&mut newcomer, "refused", is_false_claim).await;
    stranger.was_not_followed();
    took_nothing(&newcomer);
}
