//! Several requests at once, and requests whose answer depends on who asks.

use super::answer::Answer;
use super::client::{Expect, Patience, request, request_all};
use super::server::{FetchServer, FetchSource, ServerPatience};
use super::wire::{FetchRefusal, FetchRequest, encode_answer};
use crate::standing::Standing;
use starling_protocol::NodeId;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MEMBER: NodeId = NodeId([1; 32]);
const UPDATE: FetchRequest = FetchRequest::Update { seq: 4 };
/// Deadline for what happens at once, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

async fn asks(server: &FetchServer, peer: NodeId, asked: &FetchRequest) -> Vec<u8> {
    let (mut near, mut far) = tokio::io::duplex(4096);
    let server = server.clone();
    tokio::spawn(async move { server.serve(peer, &mut far).await });
    request(&mut near, asked, Expect::AtMost(9), Patience::default()).await.expect("it is served")
}

/// Before, each update took a round trip.
#[tokio::test]
async fn several_things_are_asked_for_before_the_first_is_answered() {
    let requests: Vec<_> = (0..3).map(|seq| (FetchRequest::Update { seq }, Expect::Exactly(2))).collect();
    let asked_for = requests.iter().map(|(request, _)| request.encode().len()).sum::<usize>();
    for (last, fits) in [(Ok(2), true), (Ok(3), false), (Err(FetchRefusal::NotFound), false)] {
        let (mut near, mut far) = tokio::io::duplex(4096);
        let answering = async {
            far.read_exact(&mut vec![0; asked_for]).await.expect("all requests, and no answer yet");
            for head in [Ok(2), Ok(2), last] {
                far.write_all(&encode_answer(head)).await.expect("it is read");
                far.write_all(&[7; 2]).await.expect("it is read");
            }
        };
        let (begun, came) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let begins = || {
            begun.fetch_add(1, Ordering::Relaxed);
        };
        let comes = |bytes| {
            came.fetch_add(bytes, Ordering::Relaxed);
        };
        let asking = request_all(&mut near, &requests, Patience::default(), begins, comes);
        let both = async { tokio::join!(asking, answering) };
        let (answers, ()) = tokio::time::timeout(DEADLINE, both).await.expect("neither waits for the other");
        assert_eq!(answers.ok(), fits.then(|| vec![vec![7; 2]; 3]));
        assert_eq!((begun.into_inner(), came.into_inner()), (1, if fits { 6 } else { 4 }));
    }
}

/// Answers strangers otherwise, and counts how often it was asked whether it does.
struct Choosy(Arc<AtomicUsize>);

impl FetchSource for Choosy {
    fn serve(&self, _: &FetchRequest) -> Result<Answer, FetchRefusal> {
        Ok(vec![1].into())
    }

    fn serve_stranger(&self, _: &FetchRequest) -> Result<Answer, FetchRefusal> {
        Ok(vec![0].into())
    }

    fn minds_strangers(&self, request: &FetchRequest) -> bool {
        *request == UPDATE && self.0.fetch_add(1, Ordering::Relaxed) < usize::MAX
    }
}

#[tokio::test]
async fn a_stranger_that_is_admitted_while_it_asks_is_none() {
    let (standing, stranger, asked) = (Standing::default(), NodeId([2; 32]), Arc::new(AtomicUsize::new(0)));
    standing.set(vec![MEMBER], Vec::new());
    let source = Arc::new(Choosy(Arc::clone(&asked)));
    let server = FetchServer::new(source, ServerPatience::default(), standing.clone());
    assert_eq!(asks(&server, MEMBER, &UPDATE).await, [1]);
    assert_eq!(asks(&server, stranger, &FetchRequest::Spec).await, [0]);
    assert_eq!(asks(&server, stranger, &UPDATE).await, [0], "nobody has admitted it");
    let before = asked.load(Ordering::Relaxed);
    let admitting = async {
        while asked.load(Ordering::Relaxed) == before {
            tokio::task::yield_now().await;
        }
        standing.set(vec![MEMBER], vec![stranger]);
    };
    let both = async { tokio::join!(asks(&server, stranger, &UPDATE), admitting) };
    let (answer, ()) = tokio::time::timeout(DEADLINE, both).await.expect("it waits a second at most");
    assert_eq!(answer, [1]);
}
