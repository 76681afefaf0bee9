//! Reads a peer's messages on its control session, at the rate that the peer may send, and passes on those that are
//! fit.

use super::budget::{Backlog, Cost, Purse};
use super::event::NetEvent;
use super::options::{Checked, Verify};
use super::queue::PeerSender;
use super::reason::{DownReason, refused};
use super::standing::{Rank, Standing};
use starling_bootstrap::discovery::reason::CLOSED;
use starling_bootstrap::framing::{FrameError, FrameReader};
use starling_protocol::NodeId;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

/// Reads the messages of a peer.
pub(super) struct Ear<'a> {
    pub peer: NodeId,
    pub standing: Standing,
    pub verify: Option<Verify>,
    pub closing: CancellationToken,
    pub purse: Purse,
    pub sender: &'a mut PeerSender,
    /// The peer runs another release or another run, and the node is about to refuse it: later messages are not looked
    /// at. If the session ended here, before our own Hello is on its way, the peer would not learn why.
    pub foreign: bool,
}

impl Ear<'_> {
    /// Reads until a message is unfit, or the peer ends the session.
    pub async fn read_frames<R: futures::AsyncRead + Unpin>(&mut self, mut reader: FrameReader<R>) -> DownReason {
        let mut ahead = Backlog::default();
        loop {
            let next = match ahead.pop() {
                Some(bytes) => Ok(bytes),
                None => self.read(&mut reader).await,
            };
            let heard = match next {
                Ok(bytes) => self.hear(bytes, &mut reader, &mut ahead).await,
                Err(reason) => Err(reason),
            };
            if let Err(reason) = heard {
                return reason;
            }
        }
    }

    /// Reads the next message. May be dropped while it waits for one.
    async fn read<R: futures::AsyncRead + Unpin>(
        &mut self,
        reader: &mut FrameReader<R>,
    ) -> Result<Vec<u8>, DownReason> {
        let bytes = match reader.next().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Err(DownReason::Lost(CLOSED.into())),
            Err(FrameError::Io(error)) => return Err(DownReason::of(&error)),
            Err(error) => return Err(DownReason::Frame { label: error.reason(), what: error.to_string() }),
        };
        Ok(bytes)
    }

    /// Passes a message on in its turn, if it is fit.
    async fn hear<R: futures::AsyncRead + Unpin>(
        &mut self,
        bytes: Vec<u8>,
        reader: &mut FrameReader<R>,
        ahead: &mut Backlog,
    ) -> Result<(), DownReason> {
        let now = Instant::now();
        let cost = Cost { messages: 1, bytes: bytes.len() };
        let of_address = self.standing.charge(&self.peer, cost, now);
        if self.standing.speaks_as(&self.peer) == Rank::Stranger {
            if let Some(wait) = self.purse.hear_stranger(cost, now).max(of_address) {
                metrics::counter!("starling_control_throttled_total").increment(1);
                self.read_ahead(reader, ahead, now + wait).await?;
            }
        } else if let Some(wait) = self.purse.read(now).max(of_address) {
            // Before the first record any peer may turn out to be a member. All peers of an address are heard then,
            // together at one member's rate.
            metrics::counter!("starling_control_throttled_total").increment(1);
            sleep(wait).await;
        }
        if self.foreign {
            return Ok(());
        }
        let opened = match &self.verify {
            Some(verify) => match verify(&self.peer, &bytes).map_err(DownReason::Unfit)? {
                Checked::Own(opened) => Some(opened),
                // It is dropped and not read later, as the peer's own words would wait behind it. The node asks other
                // neighbours for a READY that it lacks.
                Checked::PassedOn if !self.purse.pass_on(Instant::now()) => {
                    refused("passed_on_too_often");
                    return Ok(());
                }
                Checked::PassedOn => None,
                Checked::Foreign => {
                    self.foreign = true;
                    None
                }
            },
            None => None,
        };
        tokio::select! {
            told = self.sender.tell(NetEvent::Control { from: self.peer, bytes, opened }) => {
                told.map_err(|_| DownReason::Shutdown)
            }
            // Reading goes on to where the peer closes its side.
            () = self.closing.cancelled() => Ok(()),
        }
    }

    /// Reads a stranger's stream until `until`, and keeps the newest messages. Unread messages would fill the stream's
    /// window, 256 KiB of this node's memory for each session.
    async fn read_ahead<R: futures::AsyncRead + Unpin>(
        &mut self,
        reader: &mut FrameReader<R>,
        ahead: &mut Backlog,
        until: Instant,
    ) -> Result<(), DownReason> {
        while let Ok(next) = timeout_at(until, self.read(reader)).await {
            let dropped = ahead.push(next?);
            if dropped > 0 {
                metrics::counter!("starling_refused_total", "reason" => "control_too_soon").increment(dropped);
            }
            if self.purse.read(Instant::now()).is_some() {
                return Err(DownReason::Flood);
            }
        }
        Ok(())
    }
}
