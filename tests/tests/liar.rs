//! A member that equivocates, among real nodes: a small peer that speaks the protocol with a key of its own, joins like
//! any other, and then sends two nodes different READYs for one round.

use serde_json::Value;
use starling_bootstrap::addresses::split;
use starling_bootstrap::identity::Identity;
use starling_node::net::fetch::{Expect, FetchRequest, NothingToFetch, decode_records};
use starling_node::net::{NetEvent, NetEvents, NetHandle, NetOptions, Network};
use starling_protocol::identity::{Ed25519Signer, Ed25519Verifier, Signer};
use starling_protocol::limits::PROTOCOL_VERSION;
use starling_protocol::message::{Head, Hello, Join, Message, Phase, Ready};
use starling_protocol::record::{Measured, Record};
use starling_protocol::{Digest, NodeId, wire};
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Process, run};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(120);
const SEQ_LEN: u64 = 32;

/// The lying peer.
struct Liar {
    net: NetHandle,
    events: NetEvents,
    signer: Ed25519Signer,
    run: Digest,
    spec: Vec<u8>,
    boot: u64,
    /// The newest head that a peer has sent, and the peer.
    told: Option<(Head, NodeId)>,
}

impl Liar {
    async fn meet(run: Digest, bootstrap: &str) -> Self {
        let identity = Identity::generate().expect("a key");
        let options = NetOptions {
            run,
            listen: vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")],
            advertise: Vec::new(),
            bootstrap: vec![split(&bootstrap.parse().expect("an address")).expect("of a peer")],
            mdns: false,
            relay: false,
            name: None,
            hidden: false,
            source: Arc::new(NothingToFetch),
            verify: None,
        };
        let (net, events) = Network::start(&identity, options).expect("a network");
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
        let boot = since_epoch.as_micros() as u64;
        Self { net, events, signer: identity.signer(), run, spec: Vec::new(), boot, told: None }
    }

    fn say(&self, to: NodeId, message: &Message) {
        self.net.send_control(to, wire::seal(&self.signer, &self.run, message).expect("of good form"));
    }

    /// Answers events for some time: sends Hellos, and Heads that repeat the newest head.
    async fn go_on(&mut self, time: Duration) {
        let deadline = tokio::time::Instant::now() + time;
        while let Ok(Some(event)) = tokio::time::timeout_at(deadline, self.events.recv()).await {
            match event {
                NetEvent::PeerUp { peer } => self.greet(peer).await,
                NetEvent::Control { from, bytes, .. } => {
                    let opened = wire::open(&Ed25519Verifier, &self.run, &bytes).expect("nodes are honest");
                    if let Message::Head(head) = opened.message
                        && self.told.as_ref().is_none_or(|(known, _)| known.seq <= head.seq)
                        && head.record != Digest::default()
                    {
                        self.told = Some((head, from));
                    }
                }
                _ => {}
            }
        }
        if let Some((head, _)) = &self.told {
            let beat = Message::Head(Head { phase: Phase::Joining, progress: 0, ..head.clone() });
            self.net.peers().into_iter().for_each(|peer| self.say(peer, &beat));
        }
    }

    async fn greet(&mut self, peer: NodeId) {
        if self.spec.is_empty() {
            let fetched = self.net.fetch(peer, FetchRequest::Spec, Expect::of(&FetchRequest::Spec)).await;
            self.spec = fetched.expect("every node has it");
        }
        let (spec, boot) = (self.spec.clone(), self.boot);
        self.say(peer, &Message::Hello(Hello { version: PROTOCOL_VERSION, spec, boot, incarnation: boot }));
    }

    /// The newest record, from the peer that sent its head.
    async fn record(&self) -> Option<Record> {
        let (head, from) = self.told.as_ref()?;
        let request = FetchRequest::Records { from_seq: head.seq, max: 1 };
        let expected = Expect::of(&request);
        let bytes = self.net.fetch(*from, request, expected).await.ok()?;
        let links = decode_records(&bytes).expect("nodes are honest");
        wire::decode_record(&links.first()?.0).ok()
    }

    /// Asks to join until a record lists it.
    async fn become_member(&mut self) -> Record {
        loop {
            self.go_on(Duration::from_millis(300)).await;
            let Some(record) = self.record().await else { continue };
            if record.member(&self.signer.id()).is_some() {
                return record;
            }
            let join = Message::Join(Join {
                lineage: record.lineage,
                seq: record.seq,
                record: record.digest(),
                state_root: record.state_root,
                incarnation: self.boot,
                ticket: Vec::new(),
            });
            self.net.peers().into_iter().for_each(|peer| self.say(peer, &join));
        }
    }

    /// A well-formed READY after this record; `payload` names a contribution that was never trained.
    fn ready(&self, record: &Record, payload: u8) -> Message {
        let lease = *record.lease_of(&self.signer.id()).expect("every member has one");
        Message::Ready(Ready {
            lineage: record.lineage,
            round: record.round + 1,
            base: record.base_or(record.digest()),
            state_root: record.state_root,
            boot: self.boot,
            start: lease.start,
            samples: lease.count,
            tokens: lease.count * SEQ_LEN,
            steps: 1,
            loss_q16: 1,
            payload: Digest([payload; 32]),
            measured: Measured::default(),
            statements: Vec::new(),
            leave: false,
            merges: None,
            merged_tokens: 0,
            rtts: Vec::new(),
            amends: None,
        })
    }

    /// Sends one READY to `first`, another for the same round to `second`, and then the first one to `second` too. Then
    /// it joins again and repeats this: rounds are so short that one may be over before its READY arrives.
    async fn lie(&mut self, first: NodeId, second: NodeId) {
        loop {
            let record = self.become_member().await;
            let (one, other) = (self.ready(&record, 1), self.ready(&record, 2));
            self.say(first, &one);
            self.say(second, &other);
            self.go_on(Duration::from_millis(500)).await;
            self.say(second, &one);
        }
    }
}

fn flock() -> (tempfile::TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let run_toml = format!(
        "name = \"liar\"\n[model]\npreset = \"0.1m\"\nseq_len = {SEQ_LEN}\n[data]\nsources = [\"text.txt\"]\n\
         holdout = 0.1\n[inner]\nsteps = 2\nbatch = 2\n"
    );
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), &run_toml).expect("a bootstrap peer");
    (folder, flock)
}

fn nodes(flock: &Flock) -> Vec<Process> {
    let arguments = ["--device", "cpu", "--threads", "1", "--log", "info"].map(String::from).to_vec();
    let mut nodes: Vec<Process> = Vec::new();
    for n in 0..3 {
        let options = NodeOptions { found: n == 0, arguments: arguments.clone(), ..NodeOptions::default() };
        let mut node = flock.node(&format!("node-{n}"), &options).expect("a node");
        if n == 0 {
            node.wait(LIMIT, "founded", |_| true).expect("it founds");
        }
        nodes.push(node);
    }
    for node in &mut nodes {
        node.wait(LIMIT, "committed", |e| e["voters"] == 3).expect("all vote");
    }
    nodes
}

fn status(flock: &Flock, name: &str, arguments: &[&str]) -> String {
    let home = flock.home(name).to_string_lossy().into_owned();
    let arguments = [&["status", "--home", home.as_str()], arguments].concat();
    run(&flock.bin_dir.join("starling"), &arguments, LIMIT).expect("it ends").stdout
}

fn said_by(node: &mut Process, event: &str, field: &str) -> String {
    let event = node.wait(LIMIT, event, |_| true).expect("it says so");
    event[field].as_str().expect("text").to_owned()
}

/// Two nodes get different contributions for one round: all nodes hold the evidence, and the liar is removed for good.
#[test]
fn a_liar_that_tells_two_nodes_two_things_is_shown_by_all_and_removed() {
    let (_folder, flock) = flock();
    let mut nodes = nodes(&flock);
    let id = |node: &mut Process| NodeId::from_hex(&said_by(node, "started", "node")).expect("an id");
    let (first, second) = (id(&mut nodes[0]), id(&mut nodes[1]));
    let digest = said_by(&mut nodes[0], "started", "run_digest");
    let address = flock.address.clone();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let met = Liar::meet(Digest::from_hex(&digest).expect("a digest"), &address);
    let (liar, mut peer) = runtime.block_on(async {
        let liar = met.await;
        (liar.signer.id().to_string(), liar)
    });
    let lying = runtime.spawn(async move { timeout(LIMIT, peer.lie(first, second)).await });

    // All nodes learn of the evidence that one has found.
    for node in &mut nodes {
        let shown =
            node.wait(LIMIT, "evidence", |e| e["against"] == *liar && e["what"] == "ready").expect("it is shown");
        let envelopes = ["first", "second"].map(|which| shown[which].as_str().expect("hex").to_owned());
        assert_ne!(envelopes[0], envelopes[1]);
    }
    // The liar was a member and is none any more, and the three go on.
    let was_member = |e: &Value| e["members"] == 4;
    assert!(nodes[0].events().iter().any(|e| e["event"] == "committed" && was_member(e)), "it was let in");
    for (n, node) in nodes.iter_mut().enumerate() {
        let removed = |e: &Value| e["members"] == 3 && e["voters"] == 3;
        let shown = node.events().iter().position(|e| e["event"] == "evidence").expect("it was there");
        node.wait_since(shown, LIMIT, "committed", removed).expect("it is removed");
        let mark = node.mark();
        let three = |e: &Value| e["members"] == 3 && e["contributors"].as_array().map(Vec::len) == Some(3);
        node.wait_since(mark, LIMIT, "committed", three).expect("the flock goes on");
        let told: Value = serde_json::from_str(&status(&flock, &format!("node-{n}"), &["--json"])).expect("JSON");
        let evidence = told["evidence"].as_array().expect("a list").clone();
        assert_eq!(evidence.len(), 1, "{told}");
        assert_eq!((&evidence[0]["against"], &evidence[0]["revoked"]), (&liar.as_str().into(), &true.into()), "{told}");
        let text = status(&flock, &format!("node-{n}"), &[]);
        assert!(
            text.contains(&format!("EVIDENCE against {}", &liar[..8])) && text.contains("removed for good"),
            "{text}"
        );
    }
    lying.abort();
    for node in &nodes {
        assert!(!node.events().iter().any(|e| e["event"] == "split_brain" || e["event"] == "own_fault"));
    }
}
