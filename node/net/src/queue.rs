//! The queues of events for the node. Members' messages have a queue of their own, which is read first, so that no
//! flood of strangers delays a vote.
//!
//! A stranger has at most one message in the other queue: its next message is read when the node has taken the one
//! before. Each peer's messages keep their order, also while the peer becomes a member or ceases to be one.

use super::event::NetEvent;
use super::standing::{Rank, Standing};
use starling_protocol::NodeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// Events of members that the node has not looked at yet. Sessions wait when it is full, and so do their peers.
const FIRST_CAP: usize = 1024;
/// The same for all other peers and for the network itself.
const COMMON_CAP: usize = 512;
/// Members' events in a row after which an event of the other queue has its turn.
const IN_A_ROW: u32 = 64;

/// An event, and the sender that waits until it was taken.
struct Told {
    event: NetEvent,
    _taken: Option<oneshot::Sender<()>>,
}

/// The receiver of the network's events.
pub struct NetEvents {
    first: mpsc::Receiver<Told>,
    common: mpsc::Receiver<Told>,
    in_a_row: u32,
}

impl NetEvents {
    /// The next event; `None` when the network is gone. May be dropped and called again without losing one.
    pub async fn recv(&mut self) -> Option<NetEvent> {
        if self.in_a_row >= IN_A_ROW {
            self.in_a_row = 0;
            if let Ok(told) = self.common.try_recv() {
                return Some(told.event);
            }
        }
        tokio::select! {
            biased;
            Some(told) = self.first.recv() => {
                self.in_a_row += 1;
                Some(told.event)
            }
            Some(told) = self.common.recv() => {
                self.in_a_row = 0;
                Some(told.event)
            }
            else => None,
        }
    }
}

/// The node does not listen any more.
#[derive(Debug)]
pub(super) struct Gone;

/// The sending end of [`NetEvents`]; cheap to clone.
#[derive(Clone)]
pub(super) struct Teller {
    first: mpsc::Sender<Told>,
    common: mpsc::Sender<Told>,
    standing: Standing,
    ends: Arc<Mutex<Ends>>,
}

pub(super) fn queue(standing: Standing) -> (Teller, NetEvents) {
    let ((first, members), (common, others)) = (mpsc::channel(FIRST_CAP), mpsc::channel(COMMON_CAP));
    (
        Teller { first, common, standing, ends: Arc::default() },
        NetEvents { first: members, common: others, in_a_row: 0 },
    )
}

impl Teller {
    /// Tells an event of a peer, without waiting for room. Returns whether there was room. Strangers leave half of
    /// their queue to events that cannot be told anew.
    pub fn try_tell(&self, peer: &NodeId, event: NetEvent) -> bool {
        let told = Told { event, _taken: None };
        match self.standing.rank(peer) {
            Rank::Member => self.first.try_send(told).is_ok(),
            Rank::Invited => self.common.try_send(told).is_ok(),
            Rank::Stranger => self.common.capacity() > COMMON_CAP / 2 && self.common.try_send(told).is_ok(),
        }
    }

    /// Tells an event of the network itself, without waiting for room. Returns whether there was room.
    pub fn try_tell_all(&self, event: NetEvent) -> bool {
        self.common.try_send(Told { event, _taken: None }).is_ok()
    }

    /// The sender of the events of the session with one peer, in their order.
    pub fn sender(&self, peer: NodeId) -> PeerSender {
        let last = self.ends().0.remove(&peer);
        let was_first = last.as_ref().is_some_and(|last| last.was_first);
        PeerSender { teller: self.clone(), peer, was_first, taken: last.map(|last| last.taken) }
    }

    /// The sender of the events of a guest, which are not ordered with the session's.
    pub fn guest_sender(&self, peer: NodeId) -> PeerSender {
        PeerSender { teller: self.clone(), peer, was_first: false, taken: None }
    }

    /// The map is consistent between any two statements, so a poisoned lock is still good.
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the events of one peer, in order.
pub(super) struct PeerSender {
    teller: Teller,
    peer: NodeId,
    /// The last event was in the members' queue.
    was_first: bool,
    /// Resolves when the last event has been taken; only where the order depends on it.
    taken: Option<oneshot::Receiver<()>>,
}

impl PeerSender {
    /// Tells an event, and waits for room. If it is dropped, the event was not told.
    ///
    /// # Errors
    /// The node does not listen any more.
    pub async fn tell(&mut self, event: NetEvent) -> Result<(), Gone> {
        if let Some(taken) = &mut self.taken {
            // An error also means that it was taken.
            drop(taken.await);
            self.taken = None;
        }
        let is_first = self.teller.standing.rank(&self.peer) == Rank::Member;
        // A peer that ceased to be a member has one last event in the members' queue. When that one is taken, all of
        // them are.
        let queue = if is_first || self.was_first { &self.teller.first } else { &self.teller.common };
        let place = queue.reserve().await.map_err(|_| Gone)?;
        if is_first {
            place.send(Told { event, _taken: None });
        } else {
            let (sender, taken) = oneshot::channel();
            place.send(Told { event, _taken: Some(sender) });
            self.taken = Some(taken);
        }
        self.was_first = is_first;
        Ok(())
    }

    /// Tells the last event, without waiting for those before it: it follows them in their queue. The events of the
    /// peer's next session come after it, in either queue.
    ///
    /// # Errors
    /// The node does not listen any more.
    pub async fn end(&mut self, event: NetEvent) -> Result<(), Gone> {
        let queue = if self.was_first { &self.teller.first } else { &self.teller.common };
        let (sender, taken) = oneshot::channel();
        queue.send(Told { event, _taken: Some(sender) }).await.map_err(|_| Gone)?;
        self.teller.ends().leave(self.peer, Last { was_first: self.was_first, taken });
        Ok(())
    }
}

/// The last event of a session, which the node may not have taken yet.
struct Last {
    was_first: bool,
    taken: oneshot::Receiver<()>,
}

/// Ends that the node has not heard of yet: no more than the queues hold.
#[derive(Default)]
struct Ends(BTreeMap<NodeId, Last>);

impl Ends {
    fn leave(&mut self, peer: NodeId, last: Last) {
        self.0.retain(|_, last| matches!(last.taken.try_recv(), Err(oneshot::error::TryRecvError::Empty)));
        self.0.insert(peer, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DownReason;
    use std::time::Duration;
    use tokio::time::timeout;

    fn id(n: u8) -> NodeId {
        NodeId([n; 32])
    }

    fn message(from: NodeId, n: u16) -> NetEvent {
        NetEvent::Control { from, bytes: n.to_le_bytes().to_vec(), opened: None }
    }

    async fn next(events: &mut NetEvents) -> (NodeId, u16) {
        match events.recv().await {
            Some(NetEvent::Control { from, bytes, .. }) => (from, u16::from_le_bytes([bytes[0], bytes[1]])),
            other => panic!("{other:?}"),
        }
    }

    /// Strangers that all speak at once delay a member's message by at most one of theirs.
    #[tokio::test]
    async fn a_flood_of_strangers_delays_no_member() {
        let standing = Standing::default();
        standing.set(vec![id(1)], Vec::new());
        let (teller, mut events) = queue(standing);
        for n in 10..210 {
            let mut sender = teller.sender(id(n));
            tokio::spawn(async move {
                for i in 0.. {
                    if sender.tell(message(id(n), i)).await.is_err() {
                        return;
                    }
                }
            });
        }
        for _ in 0..1000 {
            next(&mut events).await;
        }
        let mut member = teller.sender(id(1));
        for i in 0..20 {
            member.tell(message(id(1), i)).await.unwrap();
        }
        for i in 0..20 {
            assert_eq!(next(&mut events).await, (id(1), i), "members first, in their order");
        }
        assert_ne!(next(&mut events).await.0, id(1));
    }

    #[tokio::test]
    async fn a_stranger_has_one_message_in_the_queue() {
        let (teller, mut events) = queue(Standing::default());
        let mut sender = teller.sender(id(1));
        sender.tell(message(id(1), 0)).await.unwrap();
        let second = timeout(Duration::from_millis(20), sender.tell(message(id(1), 1))).await;
        assert!(second.is_err(), "it waits until the first was taken");
        assert_eq!(next(&mut events).await, (id(1), 0));
        sender.tell(message(id(1), 1)).await.unwrap();
        assert_eq!(next(&mut events).await, (id(1), 1));
    }

    #[tokio::test]
    async fn members_leave_a_turn_to_the_others() {
        let standing = Standing::default();
        standing.set(vec![id(1)], Vec::new());
        let (teller, mut events) = queue(standing);
        let (mut member, mut stranger) = (teller.sender(id(1)), teller.sender(id(2)));
        stranger.tell(message(id(2), 0)).await.unwrap();
        for i in 0..200 {
            member.tell(message(id(1), i)).await.unwrap();
        }
        let mut before = 0;
        while next(&mut events).await.0 == id(1) {
            before += 1;
        }
        assert_eq!(before, IN_A_ROW);
    }

    #[tokio::test]
    async fn order_is_kept_while_the_rank_changes() {
        let standing = Standing::default();
        let (teller, mut events) = queue(standing.clone());
        let telling = tokio::spawn(async move {
            let mut sender = teller.sender(id(1));
            for i in 0..1000u16 {
                if i % 7 == 0 {
                    let members = if i % 14 == 0 { vec![id(1)] } else { Vec::new() };
                    standing.set(members, Vec::new());
                }
                sender.tell(message(id(1), i)).await.unwrap();
            }
        });
        for i in 0..1000 {
            assert_eq!(next(&mut events).await, (id(1), i));
        }
        telling.await.unwrap();
        assert!(events.recv().await.is_none(), "the network is gone");
    }

    /// A session's end is taken before the next session's beginning, even if the peer has become a member.
    #[tokio::test]
    async fn an_end_comes_before_the_next_beginning() {
        let standing = Standing::default();
        let (teller, mut events) = queue(standing.clone());
        let mut sender = teller.sender(id(1));
        sender.tell(message(id(1), 0)).await.unwrap();
        sender.end(NetEvent::PeerDown { peer: id(1), reason: DownReason::Flood }).await.unwrap();
        standing.set(vec![id(1)], Vec::new());
        let telling = tokio::spawn(async move {
            teller.sender(id(1)).tell(NetEvent::PeerUp { peer: id(1) }).await.unwrap();
        });
        tokio::task::yield_now().await;
        assert_eq!(next(&mut events).await, (id(1), 0));
        assert!(matches!(events.recv().await, Some(NetEvent::PeerDown { .. })));
        assert!(matches!(events.recv().await, Some(NetEvent::PeerUp { .. })));
        telling.await.unwrap();
    }

    #[tokio::test]
    async fn strangers_leave_room_for_what_is_told_once() {
        let (teller, _events) = queue(Standing::default());
        let told = (0..COMMON_CAP).filter(|_| teller.try_tell(&id(1), message(id(1), 0))).count();
        assert_eq!(told, COMMON_CAP / 2);
        assert!(teller.try_tell_all(NetEvent::ListenFailed { why: "gone".into() }));
    }
}
