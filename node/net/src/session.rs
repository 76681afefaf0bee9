//! One control session: a substream that carries control messages both ways between two nodes.
//!
//! The node with the smaller id opens it. The other node answers one byte, so that both know that the stream works in
//! both directions. After that each side writes frames:
//!
//! ```text
//! opening    magic u32 = 0x4c54_4353 ("SCTL") | version u16 | reserved u16 = 0      -> answer 0x01
//! frame      length u32 (at most CONTROL_BYTES_MAX) | message
//! ```
//!
//! A session ends at the first fault; the network then opens a new one. Nothing is kept from one session to the next,
//! so a peer that is up again is greeted afresh.

use super::budget::Purse;
use super::ear::Ear;
use super::options::Verify;
use super::queue::PeerSender;
use super::reason::{DownReason, WRITE_TIMEOUT};
use super::standing::Standing;
use starling_bootstrap::framing::{Deadlines, FrameReader};
use starling_protocol::NodeId;
use starling_protocol::limits::{CONTROL_BYTES_MAX, PROTOCOL_VERSION};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::compat::TokioAsyncReadCompatExt;
use tokio_util::sync::CancellationToken;

const MAGIC: u32 = 0x4c54_4353;
const OPENING_BYTES: usize = 8;
const ANSWER: u8 = 1;
/// Opening and answer must be done in this time.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that a session closed here has to deliver its last messages.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// A node sends its Head once a second. A peer that sends nothing for so long is dead, though its link may not be.
pub(super) const DEADLINES: Deadlines = Deadlines {
    first_byte: Duration::from_secs(30),
    frame: Duration::from_secs(20),
    idle: Some(Duration::from_secs(60)),
};

/// The reason why an opening failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpeningError {
    #[error("no answer in {} s", OPENING_TIMEOUT.as_secs())]
    Timeout,
    #[error("control protocol version {0}; this node speaks {PROTOCOL_VERSION}")]
    Version(u16),
    #[error("these are not the bytes of a control stream")]
    Malformed,
    #[error("{}", starling_words::of(.0))]
    Io(#[from] std::io::Error),
}

fn opening() -> [u8; OPENING_BYTES] {
    let mut bytes = [0; OPENING_BYTES];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes
}

/// The opener's part.
pub(super) async fn offer<S: AsyncRead + AsyncWrite + Unpin>(io: &mut S) -> Result<(), OpeningError> {
    let exchange = async {
        io.write_all(&opening()).await?;
        io.flush().await?;
        match io.read_u8().await? {
            ANSWER => Ok(()),
            _ => Err(OpeningError::Malformed),
        }
    };
    timeout(OPENING_TIMEOUT, exchange).await.map_err(|_| OpeningError::Timeout)?
}

/// The other side's part.
pub(super) async fn answer<S: AsyncRead + AsyncWrite + Unpin>(io: &mut S) -> Result<(), OpeningError> {
    let exchange = async {
        let mut bytes = [0; OPENING_BYTES];
        io.read_exact(&mut bytes).await?;
        let [m0, m1, m2, m3, v0, v1, reserved @ ..] = bytes;
        if u32::from_le_bytes([m0, m1, m2, m3]) != MAGIC || reserved != [0, 0] {
            return Err(OpeningError::Malformed);
        }
        let version = u16::from_le_bytes([v0, v1]);
        if version != PROTOCOL_VERSION {
            return Err(OpeningError::Version(version));
        }
        io.write_u8(ANSWER).await?;
        io.flush().await?;
        Ok(())
    };
    timeout(OPENING_TIMEOUT, exchange).await.map_err(|_| OpeningError::Timeout)?
}

/// The parts that a running session is given.
pub(super) struct SessionLinks {
    pub peer: NodeId,
    /// Messages to send.
    pub queue: mpsc::Receiver<Vec<u8>>,
    pub standing: Standing,
    pub verify: Option<Verify>,
    /// The node shuts down, and takes no more events.
    pub closing: CancellationToken,
    pub end: EndSwitch,
    pub deadlines: Deadlines,
}

/// Ends a session from outside, once, with a reason.
#[derive(Clone, Default)]
pub(super) struct EndSwitch {
    token: CancellationToken,
    reason: std::sync::Arc<std::sync::OnceLock<DownReason>>,
}

impl EndSwitch {
    /// Only the first reason counts.
    pub fn end(&self, reason: DownReason) {
        // A second reason finds the cell taken, and is dropped.
        drop(self.reason.set(reason));
        self.token.cancel();
    }

    #[cfg(test)]
    pub fn is_ended(&self) -> bool {
        self.token.is_cancelled()
    }

    pub async fn ended(&self) -> DownReason {
        self.token.cancelled().await;
        self.reason.get().cloned().unwrap_or(DownReason::Shutdown)
    }
}

/// Carries messages until something ends the session. Received ones go to `sender`, whose back-pressure reaches the
/// peer.
pub(super) async fn carry<S>(io: S, links: SessionLinks, sender: &mut PeerSender) -> DownReason
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let SessionLinks { peer, queue, standing, verify, closing, end, deadlines } = links;
    let (reader, writer) = tokio::io::split(io);
    let reader = BufReader::with_capacity(CONTROL_BYTES_MAX, reader).compat();
    let frames = FrameReader::new(reader, CONTROL_BYTES_MAX, deadlines);
    let mut ear = Ear { peer, standing, verify, closing, purse: Purse::new(Instant::now()), sender, foreign: false };
    let mut reading = std::pin::pin!(ear.read_frames(frames));
    let mut writing = std::pin::pin!(write_frames(writer, queue));
    let reason = tokio::select! {
        biased;
        reason = end.ended() => {
            // A refused peer may find its fault in the queued messages: our Hello shows that it runs with other
            // settings.
            if matches!(reason, DownReason::Refused(_)) {
                drop(timeout(CLOSE_TIMEOUT, async { tokio::join!(writing, reading) }).await);
            }
            reason
        }
        reason = &mut reading => reason,
        reason = &mut writing => {
            // All is written and our side is closed. The peer closes its own when it has read to the end.
            drop(timeout(CLOSE_TIMEOUT, reading).await);
            reason
        }
    };
    // The session may have been ended, and its queue with it, just after the switch was polled.
    end.reason.get().cloned().unwrap_or(reason)
}

async fn write_frames<W: AsyncWrite + Unpin>(writer: W, mut queue: mpsc::Receiver<Vec<u8>>) -> DownReason {
    let mut writer = BufWriter::with_capacity(CONTROL_BYTES_MAX, writer);
    // The queue's other end lives as long as the session is known, so it ends with the session's removal.
    while let Some(first) = queue.recv().await {
        let batch = async {
            let mut next = Some(first);
            // One flush sends all messages that wait already.
            while let Some(bytes) = next {
                writer.write_u32_le(bytes.len() as u32).await?;
                writer.write_all(&bytes).await?;
                next = queue.try_recv().ok();
            }
            writer.flush().await
        };
        match timeout(WRITE_TIMEOUT, batch).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return DownReason::of(&error),
            Err(_) => return DownReason::Stalled,
        }
    }
    // A failed goodbye is no reason of its own.
    drop(timeout(CLOSE_TIMEOUT, writer.shutdown()).await);
    DownReason::Shutdown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Cost;
    use crate::event::NetEvent;
    use crate::options::{Checked, Unfit};
    use crate::queue::{self, NetEvents};
    use crate::reason::QUEUE_CAP;
    use starling_bootstrap::source::Source;
    use starling_protocol::Digest;
    use starling_protocol::message::{Leave, Message};
    use starling_protocol::wire::Opened;

    const PEER: NodeId = NodeId([7; 32]);

    /// A session with a member, and its other ends.
    struct Rig {
        links: SessionLinks,
        sender: PeerSender,
        to_peer: mpsc::Sender<Vec<u8>>,
        received: NetEvents,
        end: EndSwitch,
    }

    fn rig() -> Rig {
        let standing = Standing::default();
        standing.set(vec![PEER], Vec::new());
        rig_of(standing)
    }

    fn rig_of(standing: Standing) -> Rig {
        let (to_peer, queue) = mpsc::channel(QUEUE_CAP);
        let (teller, received) = queue::queue(standing.clone());
        let end = EndSwitch::default();
        let links = SessionLinks {
            peer: PEER,
            queue,
            standing,
            verify: None,
            closing: CancellationToken::new(),
            end: end.clone(),
            deadlines: DEADLINES,
        };
        Rig { links, sender: teller.sender(PEER), to_peer, received, end }
    }

    fn run<S>(io: S, links: SessionLinks, mut sender: PeerSender) -> tokio::task::JoinHandle<DownReason>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        tokio::spawn(async move { carry(io, links, &mut sender).await })
    }

    #[tokio::test]
    async fn messages_cross_both_ways_and_an_end_is_told() {
        let (mut a, mut b) = tokio::io::duplex(256);
        let (offered, answered) = tokio::join!(offer(&mut a), answer(&mut b));
        offered.unwrap();
        answered.unwrap();
        let Rig { links, sender, to_peer: to_far, received: mut at_near, end } = rig();
        let near = run(a, links, sender);
        let Rig { links, sender, to_peer: to_near, received: mut at_far, .. } = rig();
        let far = run(b, links, sender);
        to_far.send(vec![1; CONTROL_BYTES_MAX]).await.unwrap();
        to_near.send(vec![2]).await.unwrap();
        assert!(
            matches!(at_far.recv().await, Some(NetEvent::Control { bytes, .. }) if bytes.len() == CONTROL_BYTES_MAX)
        );
        assert!(matches!(at_near.recv().await, Some(NetEvent::Control { bytes, .. }) if bytes == [2]));
        to_far.send(vec![3]).await.unwrap();
        assert!(matches!(at_far.recv().await, Some(NetEvent::Control { bytes, .. }) if bytes == [3]));
        end.end(DownReason::Refused("test".into()));
        end.end(DownReason::Replaced);
        assert_eq!(near.await.unwrap(), DownReason::Refused("test".into()));
        assert!(matches!(far.await.unwrap(), DownReason::Lost(_)));
    }

    #[tokio::test]
    async fn queued_messages_are_delivered_before_the_session_ends() {
        let (a, b) = tokio::io::duplex(16);
        let Rig { links: near, sender: near_voice, to_peer: to_far, received: _at_near, .. } = rig();
        let Rig { links: far, sender: far_voice, to_peer: _to_near, received: mut at_far, .. } = rig();
        for i in 0..100 {
            to_far.send(vec![i; 100]).await.unwrap();
        }
        drop(to_far);
        let near = run(a, near, near_voice);
        let far = run(b, far, far_voice);
        for i in 0..100 {
            assert!(matches!(at_far.recv().await, Some(NetEvent::Control { bytes, .. }) if bytes == [i; 100]));
        }
        assert_eq!(near.await.unwrap(), DownReason::Shutdown);
        assert!(matches!(far.await.unwrap(), DownReason::Lost(_)));
    }

    /// A peer of another run speaks on after its Hello, and its messages are not signed for ours. That must not end the
    /// session before our Hello has told the peer which settings differ.
    #[tokio::test]
    async fn messages_after_the_hello_of_another_run_do_not_end_the_session() {
        let (mut a, b) = tokio::io::duplex(64);
        let Rig { mut links, sender, to_peer: _queue, mut received, .. } = rig();
        links.verify = Some(std::sync::Arc::new(|_, bytes| match bytes {
            [1] => Ok(Checked::Foreign),
            _ => Err(Unfit { label: "bad_signature", why: "not signed for this run".into() }),
        }));
        let near = run(b, links, sender);
        for byte in [1, 2] {
            a.write_all(&[1, 0, 0, 0, byte]).await.unwrap();
        }
        a.shutdown().await.unwrap();
        assert!(matches!(received.recv().await, Some(NetEvent::Control { bytes, .. }) if bytes == [1]));
        assert!(matches!(near.await.unwrap(), DownReason::Lost(_)));
    }

    #[tokio::test]
    async fn bad_openings_are_refused() {
        for (bytes, version) in [
            (*b"GETHTTP1", false),
            (
                {
                    let mut o = opening();
                    o[4] = 99;
                    o
                },
                true,
            ),
        ] {
            let (mut a, mut b) = tokio::io::duplex(64);
            a.write_all(&bytes).await.unwrap();
            match answer(&mut b).await.unwrap_err() {
                OpeningError::Version(99) => assert!(version),
                OpeningError::Malformed => assert!(!version),
                other => panic!("{other}"),
            }
        }
        let (mut a, b) = tokio::io::duplex(64);
        drop(b);
        assert!(matches!(offer(&mut a).await, Err(OpeningError::Io(_))));
    }

    #[tokio::test]
    async fn oversize_and_truncated_frames_end_the_session() {
        let oversize = CONTROL_BYTES_MAX as u32 + 1;
        for (bytes, expected) in [
            (u32::MAX.to_le_bytes().to_vec(), "frame_too_long"),
            (oversize.to_le_bytes().to_vec(), "frame_too_long"),
            ([&9u32.to_le_bytes()[..], b"trunc"].concat(), "frame_truncated"),
            (Vec::new(), "lost"),
        ] {
            let (mut a, b) = tokio::io::duplex(64);
            let Rig { links, mut sender, to_peer: _to_far, received: _received, .. } = rig();
            a.write_all(&bytes).await.unwrap();
            drop(a);
            assert_eq!(carry(b, links, &mut sender).await.label(), expected);
        }
    }

    #[tokio::test]
    async fn silence_ends_the_session() {
        let (_a, b) = tokio::io::duplex(64);
        let Rig { mut links, mut sender, to_peer: _to_far, received: _received, .. } = rig();
        links.deadlines.first_byte = Duration::from_millis(5);
        assert_eq!(carry(b, links, &mut sender).await.label(), "stream_silent");
    }

    fn frames(message: &[u8], count: usize) -> Vec<u8> {
        [&(message.len() as u32).to_le_bytes()[..], message].concat().repeat(count)
    }

    /// A stranger's session that sends so many messages at once; returns how many are heard, and the session.
    async fn a_stranger_says(count: usize, listening: Duration) -> (usize, tokio::task::JoinHandle<DownReason>) {
        let standing = Standing::default();
        standing.set(Vec::new(), Vec::new());
        is_heard(standing, count, listening).await
    }

    async fn is_heard(
        standing: Standing,
        count: usize,
        listening: Duration,
    ) -> (usize, tokio::task::JoinHandle<DownReason>) {
        let (mut a, b) = tokio::io::duplex(1 << 20);
        let Rig { links, sender, to_peer, mut received, .. } = rig_of(standing);
        let session = run(b, links, sender);
        a.write_all(&frames(b"noise", count)).await.unwrap();
        let mut heard = 0;
        let hearing = async {
            while received.recv().await.is_some() {
                heard += 1;
            }
            // Both ends stay open until then.
            drop((a, to_peer));
        };
        drop(timeout(listening, hearing).await);
        (heard, session)
    }

    #[tokio::test]
    async fn a_stranger_is_heard_as_fast_as_its_budget_allows() {
        let (heard, session) = a_stranger_says(100, Duration::from_millis(500)).await;
        assert!((64..=80).contains(&heard), "{heard}");
        assert!(matches!(session.await.unwrap(), DownReason::Shutdown | DownReason::Lost(_)));
    }

    #[tokio::test]
    async fn a_stranger_that_floods_is_sent_away_at_once() {
        let (heard, session) = a_stranger_says(5000, Duration::from_secs(10)).await;
        assert_eq!(session.await.unwrap(), DownReason::Flood);
        assert!((64..=80).contains(&heard), "{heard}");
    }

    /// An address that brought 32 keys cost a joiner most of a core, since to a joiner any peer may be a member.
    #[tokio::test]
    async fn before_the_first_record_an_address_is_heard_at_its_pace() {
        let standing = Standing::default();
        let address = Source::Address([45, 2, 0, 9].into());
        for peer in [PEER, NodeId([8; 32])] {
            standing.came(peer, address);
        }
        let message = Cost { messages: 1, bytes: 5 };
        let other = (0..1000).filter(|_| standing.charge(&NodeId([8; 32]), message, Instant::now()).is_none()).count();
        let (heard, session) = is_heard(standing, 1000, Duration::from_millis(500)).await;
        assert!(other == 1000 && (20..=500).contains(&heard), "{heard}");
        assert!(matches!(session.await.unwrap(), DownReason::Shutdown | DownReason::Lost(_)), "it is no flood");
    }

    /// A message that has passed the check.
    fn opened() -> Opened {
        let message = Message::Leave(Leave { lineage: Digest([1; 32]), seq: 4 });
        Opened { sender: PEER, digest: Digest([2; 32]), message }
    }

    /// In a large flock members pass the words of others on, between words of their own.
    #[tokio::test]
    async fn words_of_others_do_not_end_what_is_heard_of_a_peer() {
        let (mut a, b) = tokio::io::duplex(4096);
        let Rig { mut links, sender, to_peer: _to_far, mut received, .. } = rig();
        links.verify = Some(std::sync::Arc::new(|_, bytes: &[u8]| match bytes {
            b"other" => Ok(Checked::PassedOn),
            _ => Ok(Checked::Own(Box::new(opened()))),
        }));
        let session = run(b, links, sender);
        a.write_all(&[frames(b"own", 1), frames(b"other", 2), frames(b"own", 1)].concat()).await.unwrap();
        a.shutdown().await.unwrap();
        session.await.unwrap();
        let mut heard = Vec::new();
        while let Some(NetEvent::Control { opened, .. }) = received.recv().await {
            heard.push(opened.is_some());
        }
        assert_eq!(heard, [true, false, false, true]);
    }

    #[tokio::test]
    async fn too_many_words_of_others_are_dropped_and_the_peers_own_are_not() {
        let (mut a, b) = tokio::io::duplex(1 << 16);
        let Rig { mut links, sender, to_peer: _to_far, mut received, .. } = rig();
        links.verify = Some(std::sync::Arc::new(|_, bytes: &[u8]| match bytes {
            b"other" => Ok(Checked::PassedOn),
            _ => Ok(Checked::Own(Box::new(opened()))),
        }));
        let session = run(b, links, sender);
        a.write_all(&[frames(b"other", 600), frames(b"own", 100)].concat()).await.unwrap();
        a.shutdown().await.unwrap();
        session.await.unwrap();
        let (mut own, mut others) = (0, 0);
        while let Some(NetEvent::Control { opened, .. }) = received.recv().await {
            *if opened.is_some() { &mut own } else { &mut others } += 1;
        }
        assert_eq!(own, 100);
        assert!((256..400).contains(&others), "{others}");
    }

    #[tokio::test]
    async fn an_unfit_message_ends_the_session_before_the_node_hears_of_it() {
        let (mut a, b) = tokio::io::duplex(4096);
        let Rig { mut links, sender, to_peer: _to_far, mut received, .. } = rig();
        let unfit = Unfit { label: "bad_signature", why: "a signature of its does not hold".into() };
        let reason = unfit.clone();
        links.verify = Some(std::sync::Arc::new(move |from: &NodeId, bytes: &[u8]| {
            assert_eq!(*from, PEER);
            if bytes == b"bad" { Err(unfit.clone()) } else { Ok(Checked::Own(Box::new(opened()))) }
        }));
        let session = run(b, links, sender);
        a.write_all(&[frames(b"good", 2), frames(b"bad", 1), frames(b"good", 1)].concat()).await.unwrap();
        assert_eq!(session.await.unwrap(), DownReason::Unfit(reason));
        let mut heard = 0;
        while received.recv().await.is_some() {
            heard += 1;
        }
        assert_eq!(heard, 2);
    }
}
