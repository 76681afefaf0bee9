//! Fellows: peers that may have parts of what a catch-up fetches. They catch up at the same time, or have come to its
//! target since it began.

use crate::net::fetch::SOURCES_MAX;
use rand::seq::SliceRandom;
use starling_protocol::NodeId;
use starling_protocol::engine::{MemberView, View};
use starling_protocol::message::Phase;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The driver looks for new fellows no more often than this.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The list of fellows that the catch-up under way reads.
#[derive(Default)]
pub struct Fellows {
    list: watch::Sender<Vec<NodeId>>,
    /// The number of the record that the catch-up goes to.
    target: u64,
    looked: Option<Instant>,
}

impl Fellows {
    /// A catch-up to the record of this number begins: its end of the list.
    pub fn begin(&mut self, target: u64) -> watch::Receiver<Vec<NodeId>> {
        *self = Self { target, ..Self::default() };
        self.list.subscribe()
    }

    /// Whether it is time to look for new ones: a catch-up reads the list, and has not been told for a while.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = !self.list.is_closed() && self.looked.is_none_or(|at| now.duration_since(at) >= LOOK_EVERY);
        if is_due {
            self.looked = Some(now);
        }
        is_due
    }

    /// Tells the catch-up of those in this view.
    pub fn tell(&self, view: &View) {
        self.list.send_replace(among(view, self.target));
    }
}

/// Peers that catch up or stand at the target, some of them if they are many. By lot: no choice of ids brings a node to
/// the front, and joiners do not all ask the same ones. All that a fellow sends is checked, so its word for where it
/// stands is enough.
fn among(view: &View, target: u64) -> Vec<NodeId> {
    let peers = view.members.iter().chain(&view.others).filter(|peer| peer.connected && peer.id != view.me);
    let stands_there = |peer: &MemberView| peer.heard.is_some() && peer.seq >= target;
    let has_parts = |peer: &&MemberView| peer.phase == Some(Phase::CatchingUp) || stands_there(peer);
    let mut fellows: Vec<_> = peers.filter(has_parts).map(|peer| peer.id).collect();
    fellows.shuffle(&mut rand::rng());
    fellows.truncate(SOURCES_MAX);
    fellows
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::Digest;
    use starling_protocol::engine::{MemberState, QuorumView};

    fn peer(n: u8, phase: Phase, seq: u64) -> MemberView {
        let (id, state) = (NodeId([n; 32]), MemberState::Outside);
        MemberView { id, connected: true, phase: Some(phase), progress: 0, seq, heard: Some(1), state, role: None }
    }

    #[test]
    fn a_fellow_catches_up_or_stands_at_the_target() {
        let gone = MemberView { connected: false, ..peer(5, Phase::CatchingUp, 9) };
        let unheard = MemberView { heard: None, phase: None, ..peer(6, Phase::Training, 9) };
        let others =
            [peer(2, Phase::CatchingUp, 0), peer(3, Phase::Joining, 6), peer(4, Phase::Joining, 7), gone, unheard];
        let view = View {
            me: NodeId([1; 32]),
            phase: Phase::CatchingUp,
            founds: false,
            lineage: Digest([1; 32]),
            seq: 6,
            head: Digest([2; 32]),
            round: 6,
            tokens: 0,
            attempt: None,
            quorum: QuorumView::default(),
            members: vec![peer(1, Phase::CatchingUp, 6), peer(7, Phase::Training, 8)],
            others: others.to_vec(),
            waiting: None,
            hold: None,
            evidence: Vec::new(),
        };
        let told = |target| {
            let mut fellows = Fellows::default();
            let list = fellows.begin(target);
            fellows.tell(&view);
            let mut told: Vec<u8> = list.borrow().iter().map(|id| id.0[0]).collect();
            told.sort_unstable();
            told
        };
        assert_eq!(told(7), [2, 4, 7]);
        assert_eq!(told(8), [2, 7]);
    }

    #[test]
    fn fellows_are_looked_for_while_a_catch_up_reads_the_list() {
        let (mut fellows, now) = (Fellows::default(), Instant::now());
        assert!(!fellows.is_due(now), "nobody reads it");
        let list = fellows.begin(3);
        assert!(fellows.is_due(now));
        assert!(!fellows.is_due(now + LOOK_EVERY / 2));
        assert!(fellows.is_due(now + LOOK_EVERY));
        let next = fellows.begin(4);
        assert!(fellows.is_due(now), "the next catch-up is told at once");
        drop(list);
        assert!(fellows.is_due(now + LOOK_EVERY), "the end of the one before changes nothing");
        drop(next);
        assert!(!fellows.is_due(now + LOOK_EVERY * 2));
    }
}
