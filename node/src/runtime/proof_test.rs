use super::super::sample_test::spec as open_spec;
use super::super::source::Source;
use super::*;
use crate::net::fetch::{Answer, FetchSource, decode_records, encode_records};
use starling_protocol::identity::{Ed25519Signer, Signer};
use starling_protocol::record;
use starling_protocol::run::{AdmissionMode, SyncMode};
use starling_protocol::sample::{self, link_after};
use starling_protocol::state::{self, State};
use starling_protocol::wire;
use starling_store::StoreOptions;
use std::sync::Mutex;
use std::time::Instant;

const LEASE: u64 = 4;
const SCHEMA: Digest = Digest([3; 32]);

fn key(n: u64) -> Ed25519Signer {
    Ed25519Signer::from_secret(&Digest::of("starling proof test", &[&n.to_le_bytes()]).0)
}

fn keys(from: u64, count: usize) -> Vec<Ed25519Signer> {
    sample::keys(key, from, count)
}

fn state() -> State {
    State::initial(vec![0.5; 16], SyncMode::Rounds)
}

/// The genesis of `founder`, its only member. No later record changes the state.
fn founded(spec: &RunSpec, founder: u64) -> Link {
    let id = key(founder).id();
    let root = state::root(&state().manifest(SCHEMA).unwrap());
    let lineage = record::lineage(&spec.digest(), &id, founder);
    let record = sample::genesis(spec, lineage, root, sample::voters([id], 1, 0, LEASE));
    Link { digest: record.digest(), record, certificate: None }
}

fn flock(spec: &RunSpec, length: u64, every: u64) -> Vec<Link> {
    sample::flock(founded(spec, 0).record, key, length, every)
}

/// A node, with a store in a folder of its own.
struct Node {
    _folder: tempfile::TempDir,
    store: Arc<Store>,
    spec: Arc<RunSpec>,
    id: NodeId,
}

impl Node {
    fn with(spec: &RunSpec, id: u64, way: &[Link]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = StoreOptions { ballast_bytes: 0, reserve_bytes: 0, max_bytes: 0 };
        let store = Arc::new(Store::open(folder.path(), options).unwrap().store);
        store.bind_run(&wire::encode_spec(spec)).unwrap();
        let node = Self { _folder: folder, store, spec: Arc::new(spec.clone()), id: key(id).id() };
        if !way.is_empty() {
            node.adopt(way);
        }
        node
    }

    fn adopt(&self, way: &[Link]) {
        let manifest = state().manifest(SCHEMA).unwrap();
        for digest in self.store.begin_adopt(&manifest).unwrap() {
            let index = manifest.chunks.iter().position(|chunk| *chunk == digest).unwrap();
            self.store.put_chunk(&digest, &state().chunk_bytes(index).unwrap()).unwrap();
        }
        self.store.finish_adopt(&manifest, way).unwrap();
    }

    fn asked(&self, of: &Self, head: &Link, foreign: bool) -> Asked {
        let (seq, record) = (head.record.seq, head.digest);
        let (spec, store, patience) = (self.spec.clone(), self.store.clone(), Duration::from_secs(20));
        Asked { peer: of.id, seq, record, foreign, spec, store, patience }
    }

    fn serve(&self, request: &FetchRequest) -> Result<Vec<u8>, FetchError> {
        match Source::new(self.store.clone(), Vec::new()).serve(request)? {
            Answer::Bytes(bytes) => Ok(bytes.to_vec()),
            Answer::File { .. } => panic!("no path is a file"),
        }
    }

    async fn prove(&self, of: &Self, head: &Link, foreign: bool) -> Result<Proof, Unproven> {
        self.asked(of, head, foreign).prove(async |request, _| of.serve(&request)).await
    }

    /// The result of a proof with this answer in place of a path.
    async fn shown(&self, head: &Link, foreign: bool, answer: Vec<Link>) -> Result<Proof, Unproven> {
        let answer = encode_records(&answer.iter().map(encoded).collect::<Vec<_>>()).unwrap();
        self.asked(self, head, foreign).prove(async |_, _| Ok(answer.clone())).await
    }
}

fn encoded(link: &Link) -> (Vec<u8>, Vec<u8>) {
    (wire::encode_record(&link.record), link.certificate.as_ref().map(wire::encode_certificate).unwrap_or_default())
}

fn ancestry(links: &[Link]) -> Ancestry {
    Ancestry::of(links.iter().map(|link| &link.record))
}

fn is_false(outcome: Result<Proof, Unproven>, label: &str) {
    match outcome {
        Err(Unproven::False(why)) => assert_eq!(why, label),
        other => panic!("{label}: {other:?}"),
    }
}

#[tokio::test]
async fn a_head_is_proven_from_what_is_held_or_from_a_founders_genesis() {
    let spec = open_spec();
    let flock = flock(&spec, 60, 6);
    let server = Node::with(&spec, 0, &flock);
    for (from, to) in [(30, 60), (59, 60), (10, 50), (60, 60), (60, 40), (0, 60)] {
        let asker = Node::with(&spec, 1, &flock[..=from]);
        let proof = asker.prove(&server, &flock[to], false).await.unwrap();
        assert_eq!(proof.ancestry, ancestry(&flock[..=to]), "{from} to {to}");
        assert_eq!(proof.links[0].record.seq, from.min(to) as u64, "from what is held, which is not looked at again");
        let children = proof.children_of(&flock[from].digest).map(<[Link]>::len);
        assert_eq!(children.is_some(), to >= from && to - from <= 16, "few records come whole: {children:?}");
    }
    let newcomer = Node::with(&spec, 1, &[]);
    assert!(matches!(newcomer.prove(&server, &flock[60], false).await, Err(Unproven::Foreign)));
    let proof = newcomer.prove(&server, &flock[60], true).await.unwrap();
    assert_eq!(proof.claim().unwrap().tokens, flock[60].record.tokens);
    assert!(proof.links.len() < 40, "{}", proof.links.len());
    // A peer that does not have the record has not lied.
    assert!(matches!(newcomer.prove(&newcomer, &flock[60], true).await, Err(Unproven::Open(_))));
}

/// A node that joined late shows others the path along which it came.
#[tokio::test]
async fn a_newcomer_hands_its_way_on() {
    let spec = open_spec();
    let flock = flock(&spec, 80, 5);
    let server = Node::with(&spec, 0, &flock);
    let newcomer = Node::with(&spec, 1, &[]);
    let proof = Arc::new(newcomer.prove(&server, &flock[77], true).await.unwrap());
    // A snapshot's record before the head, and one after it.
    for seq in [64, 77, 80] {
        let asked = newcomer.asked(&server, &flock[77], true);
        let (way, passed) = match proof.way_to(seq) {
            Some(way) => (way.to_vec(), proof.ancestry.until(seq)),
            None => Asked { seq, ..asked }.extend(&proof, async |request, _| server.serve(&request)).await.unwrap(),
        };
        assert_eq!(way.last().unwrap().digest, flock[seq as usize].digest);
        // A newcomer does not know the snapshot's number when it asks for the path to it.
        let request = FetchRequest::Path { to: seq, known: proof.places(u64::MAX).into() };
        let path = server.serve(&request).unwrap();
        let asked = Asked { seq, ..newcomer.asked(&server, &flock[77], true) };
        let (blind, by) = asked.extend(&proof, async |_, _| Ok(path.clone())).await.unwrap();
        assert_eq!((blind.last(), by), (way.last(), passed.clone()));
        assert_eq!(passed, ancestry(&flock[..=seq as usize]));
        let late = Node::with(&spec, 1, &way);
        assert_eq!(late.store.ancestry(), passed);
        for held in [0, 1, 20, 64] {
            let asker = Node::with(&spec, 2, if held == 0 { &[] } else { &flock[..=held] });
            let proof = asker.prove(&late, &flock[seq as usize], held == 0).await;
            let proof = proof.unwrap_or_else(|why| panic!("record {seq} for one that holds {held}: {why:?}"));
            assert_eq!(proof.ancestry, passed, "record {seq} for one that holds {held}");
        }
    }
}

#[tokio::test]
async fn a_stranger_proves_nothing() {
    let mut spec = open_spec();
    spec.admission.mode = AdmissionMode::List;
    spec.admission.allow = keys(0, 20).iter().map(Signer::id).collect();
    let flock = flock(&spec, 40, 8);
    let (member, newcomer) = (Node::with(&spec, 1, &flock), Node::with(&spec, 2, &[]));
    // A founded lineage, in a run that does not admit its founder.
    let mut usurped = vec![founded(&spec, 900)];
    usurped.push(link_after(&usurped[0], &keys(900, 1), &keys(900, 1)));
    let head = &usurped[1];
    is_false(newcomer.shown(head, true, usurped.clone()).await, "path_founder");
    assert!(
        matches!(member.shown(head, false, usurped.clone()).await, Err(Unproven::Foreign)),
        "it is not even checked"
    );
    is_false(member.shown(head, true, usurped.clone()).await, "path_founder");
    // Its own voters on top of a record of the flock that the member has named: a child without the flock's votes, and
    // a jump to one.
    let graft = link_after(&flock[33], &keys(900, 3), &keys(900, 3));
    is_false(member.shown(&graft, false, vec![flock[33].clone(), graft.clone()]).await, "path_certificate");
    let child = link_after(&graft, &keys(900, 3), &keys(900, 3));
    let stone = Link { certificate: None, ..graft.clone() };
    is_false(member.shown(&child, false, vec![flock[33].clone(), stone.clone(), child.clone()]).await, "path_broken");
    is_false(newcomer.shown(&child, true, vec![flock[0].clone(), stone, child.clone()]).await, "path_broken");
    // The founder was the only voter once: its key can sign another child of a record of that time, and children of
    // that.
    let mut forged = flock[..=1].to_vec();
    while forged.len() < 44 {
        forged.push(link_after(&forged[forged.len() - 1], &keys(0, 1), &keys(0, 1)));
    }
    let stone = |at: usize| Link { certificate: None, ..forged[at].clone() };
    for (to, answer) in [
        (30, [&forged[..3], &[stone(29), forged[30].clone()][..]].concat()),
        (43, vec![flock[0].clone(), stone(42), forged[43].clone()]),
    ] {
        let outcome = member.shown(&forged[to], false, answer).await;
        assert!(matches!(&outcome, Err(Unproven::Open(why)) if why.contains("on this node's chain")), "{outcome:?}");
    }
    is_false(member.shown(&graft, false, Vec::new()).await, "path_empty");
    let garbage = member.asked(&newcomer, head, false);
    is_false(garbage.prove(async |_, _| Ok(vec![7; 99])).await, "path_malformed");
    // A silent peer has not lied.
    let silent = Asked { patience: Duration::from_millis(20), ..garbage };
    assert!(matches!(silent.prove(async |_, _| std::future::pending().await).await, Err(Unproven::Open(_))));
    assert!(newcomer.store.head().is_none() && member.store.head_digest() == Some(flock[40].digest));
}

/// A path that does not fit into one answer goes on from its last record.
#[tokio::test]
async fn a_long_path_comes_in_several_answers() {
    let spec = open_spec();
    let flock = flock(&spec, 60, 2);
    let (server, newcomer) = (Node::with(&spec, 0, &flock), Node::with(&spec, 1, &[]));
    let asked = Mutex::new(0);
    let short = async |most: usize, request: FetchRequest| {
        *asked.lock().unwrap() += 1;
        let mut links = decode_records(&server.serve(&request)?).unwrap();
        links.truncate(most);
        while links.len() > 1 && links.last().is_some_and(|last| last.1.is_empty()) {
            links.pop();
        }
        Ok(encode_records(&links).unwrap())
    };
    let wanted = || newcomer.asked(&server, &flock[60], true);
    let proof = wanted().prove(async |request, _| short(12, request).await).await.unwrap();
    assert!(*asked.lock().unwrap() > 2);
    assert_eq!(proof.ancestry, ancestry(&flock));
    newcomer.store.reset_chain().unwrap();
    newcomer.adopt(&proof.links);
    assert_eq!(newcomer.store.head_digest(), Some(flock[60].digest));
    newcomer.store.reset_chain().unwrap();
    *asked.lock().unwrap() = 0;
    let crept = wanted().prove(async |request, _| short(3, request).await).await;
    assert!(matches!(&crept, Err(Unproven::Open(why)) if why.contains("longer than")), "{crept:?}");
    assert_eq!(*asked.lock().unwrap(), ANSWERS_MAX, "no end of it");
}

/// A newcomer's fetches from a chain of 10,000 records: the path to the head, and the one to a snapshot before it,
/// which replaces the request for the snapshot's record.
#[tokio::test]
async fn a_newcomers_way_in_is_short() {
    let spec = open_spec();
    for every in [25, 500] {
        let flock = flock(&spec, 10_000, every);
        let server = Node::with(&spec, 0, &flock);
        let newcomer = Node::with(&spec, 1, &[]);
        let (counted, took) = (Mutex::new(Vec::new()), Mutex::new(Duration::ZERO));
        let ask = async |request: FetchRequest, _| {
            let began = Instant::now();
            let answer = server.serve(&request)?;
            *took.lock().unwrap() += began.elapsed();
            counted.lock().unwrap().push(request.encode().len() + answer.len());
            Ok(answer)
        };
        let began = Instant::now();
        let asked = newcomer.asked(&server, &flock[10_000], true);
        let proof = Arc::new(asked.prove(ask).await.unwrap());
        let (way, _) = Asked { seq: 9_984, ..asked }.extend(&proof, ask).await.unwrap();
        let checked = began.elapsed() - *took.lock().unwrap();
        newcomer.adopt(&way);
        let counted = counted.into_inner().unwrap();
        println!(
            "one voter of five goes every {every} records: {} answers, {counted:?} bytes, {} links; built in {:?}, \
             checked in {checked:?}",
            counted.len(),
            proof.links.len(),
            took.into_inner().unwrap(),
        );
        assert!(counted.len() <= 9 && (every < 100 || counted.len() == 2), "{counted:?}");
        assert!(every < 100 || counted.iter().sum::<usize>() <= 1 << 20, "{counted:?}");
    }
}
