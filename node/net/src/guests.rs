//! Guests: second processes with a peer's key while another process with it has the session.
//!
//! A guest takes its stream for a control session, and says Hello first. The network shows that Hello to the node again
//! and again, until the node turns the guest away, with a proof that it has to end, or gives it the session's place.
//! Nothing else that the guest says is looked at, and it disturbs no session.

use super::budget::Bucket;
use super::event::NetEvent;
use super::peers::Task;
use super::session::{self, CLOSE_TIMEOUT};
use super::sessions::{ControlStream, Ended, Role, SessionOffice};
use libp2p::Stream;
use starling_bootstrap::framing::FrameReader;
use starling_protocol::NodeId;
use starling_protocol::limits::CONTROL_BYTES_MAX;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::compat::TokioAsyncReadCompatExt;

/// How often the node is told of a guest that waits.
const TOLD_EVERY: Duration = Duration::from_secs(1);

impl SessionOffice {
    /// Hears a guest, and reports its end.
    pub async fn hear(self, task: Task, stream: Option<Stream>) {
        let role = stream.map_or(Role::Open, Role::Answer);
        let refusal = match self.stream(&task, role).await {
            Some(io) => {
                tracing::debug!(peer = %task.peer.short(), "a second process with its key");
                self.attend(&task, io).await
            }
            None => None,
        };
        let (peer, serial, shut) = (task.peer, task.serial, refusal.map(|()| task.process));
        // When nobody receives, the network is gone.
        drop(self.ended.send(Ended { peer, serial, was_up: false, shut, fault: None }).await);
    }

    /// Hears the guest until it is turned away (`Some`), has gone, or may have the session.
    async fn attend(&self, task: &Task, io: ControlStream) -> Option<()> {
        let mut refusals = self.guests.enter(task.peer);
        let (reader, writer) = tokio::io::split(io);
        let mut frames = frames(reader);
        let refusal = tokio::select! {
            biased;
            _ = task.end.ended() => None,
            refusal = refusals.recv() => refusal,
            () = self.tell(task.peer, &mut frames) => None,
        };
        self.guests.leave(&task.peer);
        if let Some(proof) = refusal? {
            // A guest that does not take the proof has gone, or is given it again when it is back.
            drop(timeout(CLOSE_TIMEOUT, hand_over(writer, &proof, &mut frames)).await);
        }
        Some(())
    }

    /// Tells the node of the guest's Hello as long as the guest is there.
    async fn tell<R: futures::AsyncRead + Unpin>(&self, peer: NodeId, frames: &mut FrameReader<R>) {
        let Ok(Some(hello)) = frames.next().await else { return };
        let mut sender = self.teller.guest_sender(peer);
        let mut due = interval(TOLD_EVERY);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rate = Bucket::of_stranger(Instant::now());
        loop {
            tokio::select! {
                _ = due.tick() => {
                    let told = NetEvent::Duplicate { peer, hello: hello.clone() };
                    if sender.tell(told).await.is_err() {
                        return;
                    }
                }
                frame = frames.next() => match (frame, rate.take(1.0, Instant::now())) {
                    (Ok(Some(_)), Some(wait)) => sleep(wait).await,
                    (Ok(Some(_)), None) => {}
                    _ => return,
                }
            }
        }
    }
}

fn frames<R: AsyncRead + Unpin>(reader: R) -> FrameReader<impl futures::AsyncRead + Unpin> {
    let reader = BufReader::with_capacity(CONTROL_BYTES_MAX, reader).compat();
    FrameReader::new(reader, CONTROL_BYTES_MAX, session::DEADLINES)
}

/// Writes the message and waits for the other side to end.
async fn hand_over<W, R>(mut writer: W, proof: &[u8], frames: &mut FrameReader<R>) -> std::io::Result<()>
where
    W: AsyncWrite + Unpin,
    R: futures::AsyncRead + Unpin,
{
    writer.write_u32_le(proof.len() as u32).await?;
    writer.write_all(proof).await?;
    writer.shutdown().await?;
    while let Ok(Some(_)) = frames.next().await {}
    Ok(())
}
