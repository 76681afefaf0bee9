//! A peer that speaks the transport but not the protocols: garbage, oversize and truncated bytes on each of them. The
//! node refuses, stays up, and serves an honest peer as before.

mod flock;

use flock::{Node, RUN, eventually, identity, start};
use futures::StreamExt;
use libp2p::{PeerId, Stream, StreamProtocol};
use starling_bootstrap::addresses::split;
use starling_bootstrap::discovery::{Discovery, DiscoveryOptions};
use starling_bootstrap::identity::peer_id;
use starling_bootstrap::streams::{Control, IncomingStreams, Lane};
use starling_bootstrap::swarm::{self, SwarmOptions};
use starling_node::net::fetch::{Answer, FetchRefusal, FetchRequest, FetchSource};
use starling_node::net::{BULK_PROTOCOL, CONTROL_PROTOCOL, FETCH_PROTOCOL, NetEvent};
use starling_node::reduce::BulkRouter;
use starling_protocol::NodeId;
use starling_protocol::limits::CONTROL_BYTES_MAX;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt};

/// What a control stream begins with, and how it is answered.
const OPENING: [u8; 8] = *b"SCTL\x09\x00\x00\x00";

/// Says of itself what `text` is, and has nothing else.
struct Spec(&'static str);

impl FetchSource for Spec {
    fn serve(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
        match request {
            FetchRequest::Spec => Ok(self.0.as_bytes().to_vec().into()),
            _ => Err(FetchRefusal::NotFound),
        }
    }
}

/// A bare swarm that is connected to one node.
struct Stranger {
    id: NodeId,
    victim: PeerId,
    control: Control,
    /// Control streams that the node opens.
    _incoming: IncomingStreams,
}

impl Stranger {
    /// With an id smaller than the node's, so that it is to open the control stream.
    async fn meet(victim: &Node) -> Self {
        let key = loop {
            let key = identity(flock::fresh_secret());
            if key.node_id() < victim.id() {
                break key;
            }
        };
        let options = SwarmOptions { mdns: false, ..SwarmOptions::default() };
        let mut swarm = swarm::build(&key, &options).unwrap();
        let control = swarm.behaviour().streams.control();
        let incoming = control.accept(CONTROL_PROTOCOL, 4).unwrap();
        let bootstrap = vec![split(&victim.address).unwrap()];
        let mut discovery = Discovery::new(&mut swarm, DiscoveryOptions { bootstrap, ..DiscoveryOptions::default() });
        discovery.tick(&mut swarm);
        tokio::spawn(async move {
            loop {
                let event = swarm.select_next_some().await;
                discovery.on_event(&mut swarm, event);
            }
        });
        let stranger = Self { id: key.node_id(), victim: peer_id(&victim.id()), control, _incoming: incoming };
        eventually(async || victim.net.status().await.peers.iter().any(|peer| peer.node == stranger.id)).await;
        stranger
    }

    async fn open(&self, protocol: StreamProtocol) -> Compat<Stream> {
        self.control.open(self.victim, protocol, Lane::First, None).await.unwrap().compat()
    }

    /// Opens a stream, writes, and reads what comes until the node ends it.
    async fn say(&self, protocol: StreamProtocol, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.open(protocol).await;
        // The node may end the stream before all of this is written.
        drop(stream.write_all(bytes).await);
        drop(stream.flush().await);
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer).await);
        answer
    }
}

async fn still_serves(victim: &mut Node) {
    let mut honest = start(&[victim], Spec("honest")).await;
    honest.wait_for_peers(&[victim.id()]).await;
    victim.wait_for_peers(&[honest.id()]).await;
    honest.net.send_control(victim.id(), b"are you there".to_vec());
    assert_eq!(victim.next_control().await, b"are you there");
    let spec = honest.net.fetch(victim.id(), FetchRequest::Spec, starling_node::net::fetch::Expect::AtMost(9)).await;
    assert_eq!(spec.unwrap(), b"victim");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_garbage_is_refused() {
    let mut victim = start(&[], Spec("victim")).await;
    let stranger = Stranger::meet(&victim).await;
    for bytes in [&[0xff; 5000][..], b"GET / HTTP/1.1\r\n\r\n", b"SCTL\x0a\x00\x00\x00", b"SCTL\x09\x00\x01\x00"] {
        assert_eq!(stranger.say(CONTROL_PROTOCOL, bytes).await, b"", "no answer to {bytes:?}");
    }
    let oversize = (CONTROL_BYTES_MAX as u32 + 1).to_le_bytes();
    for length in [u32::MAX.to_le_bytes(), oversize] {
        let opened = [&OPENING[..], &length, &[0; 100]].concat();
        assert_eq!(stranger.say(CONTROL_PROTOCOL, &opened).await, [1]);
        let down = victim.wait_for(|e| matches!(e, NetEvent::PeerDown { peer, .. } if *peer == stranger.id)).await;
        assert!(matches!(down, NetEvent::PeerDown { reason, .. } if reason.label() == "frame_too_long"));
    }
    // A frame that never ends, and then a second stream in place of the first.
    let mut half = stranger.open(CONTROL_PROTOCOL).await;
    half.write_all(&[&OPENING[..], &100u32.to_le_bytes(), b"half"].concat()).await.unwrap();
    assert_eq!(half.read_u8().await.unwrap(), 1);
    let mut second = stranger.open(CONTROL_PROTOCOL).await;
    second.write_all(&[&OPENING[..], &5u32.to_le_bytes(), b"whole"].concat()).await.unwrap();
    assert_eq!(second.read_u8().await.unwrap(), 1);
    assert_eq!(victim.next_control().await, b"whole");
    still_serves(&mut victim).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_garbage_is_refused() {
    let mut victim = start(&[], Spec("victim")).await;
    let stranger = Stranger::meet(&victim).await;
    // Without a session nobody looks at it.
    assert_eq!(stranger.say(BULK_PROTOCOL, &[0; 500]).await, b"");
    let mut session = stranger.open(CONTROL_PROTOCOL).await;
    session.write_all(&OPENING).await.unwrap();
    assert_eq!(session.read_u8().await.unwrap(), 1);
    victim.wait_for_peers(&[stranger.id]).await;
    let router = BulkRouter::new(RUN);
    let other_version = [&b"SBLK\x0a\x00\x00\x00"[..], &[0; 200]].concat();
    for bytes in [&[0xff; 5000][..], &other_version] {
        let (answer, ()) = tokio::join!(stranger.say(BULK_PROTOCOL, bytes), async {
            let arrived = victim.wait_for(|event| matches!(event, NetEvent::Bulk { .. })).await;
            if let NetEvent::Bulk { from, stream } = arrived {
                router.route(from, stream);
            }
        });
        assert_eq!(answer, b"");
    }
    still_serves(&mut victim).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetch_garbage_is_refused() {
    let mut victim = start(&[], Spec("victim")).await;
    let stranger = Stranger::meet(&victim).await;
    let bad_request = b"FR\x02\x03\0\0\0\0\0\0\0\0";
    for bytes in [&[0xff; 5000][..], b"SF\x01\x01", b"SF\x02\x63", &[b"SF\x02\x04".as_slice(), &[0xff; 10]].concat()] {
        assert_eq!(stranger.say(FETCH_PROTOCOL, bytes).await, bad_request);
    }
    // More streams at once than are allowed, each idle: those beyond the limit are ended.
    let mut open = Vec::new();
    let mut ended = 0;
    for _ in 0..20 {
        let mut stream = stranger.open(FETCH_PROTOCOL).await;
        let asked = async {
            stream.write_all(&FetchRequest::Spec.encode()).await?;
            stream.flush().await?;
            stream.read_exact(&mut [0; 12 + 6]).await
        };
        match asked.await {
            Ok(_) => open.push(stream),
            Err(_) => ended += 1,
        }
    }
    assert_eq!((open.len(), ended), (4, 16));
    still_serves(&mut victim).await;
}
