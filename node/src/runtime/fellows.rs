//! Fellows: peers that catch up while this node does, and may have parts of the state that it fetches.

use crate::net::fetch::SOURCES_MAX;
use rand::seq::SliceRandom;
use starling_protocol::NodeId;
use starling_protocol::engine::View;
use starling_protocol::message::Phase;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The driver looks for new fellows no more often than this.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The list of fellows that the catch-up under way reads.
#[derive(Default)]
pub struct Fellows {
    list: watch::Sender<Vec<NodeId>>,
    looked: Option<Instant>,
}

impl Fellows {
    /// A catch-up begins: its end of the list.
    pub fn begin(&mut self) -> watch::Receiver<Vec<NodeId>> {
        *self = Self::default();
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

    pub fn tell(&self, fellows: Vec<NodeId>) {
        self.list.send_replace(fellows);
    }
}

/// Those who catch up, some of them if they are many. By lot: no choice of ids brings a node to the front, and joiners do not all ask the
/// same ones.
pub fn catching_up(view: &View) -> Vec<NodeId> {
    let peers = view.members.iter().chain(&view.others).filter(|peer| peer.connected && peer.id != view.me);
    let mut fellows: Vec<_> = peers.filter(|peer| peer.phase == Some(Phase::CatchingUp)).map(|peer| peer.id).collect();
    fellows.shuffle(&mut rand::rng());
    fellows.truncate(SOURCES_MAX);
    fellows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fellows_are_looked_for_while_a_catch_up_reads_the_list() {
        let (mut fellows, now) = (Fellows::default(), Instant::now());
        assert!(!fellows.is_due(now), "nobody reads it");
        let list = fellows.begin();
        assert!(fellows.is_due(now));
        assert!(!fellows.is_due(now + LOOK_EVERY / 2));
        assert!(fellows.is_due(now + LOOK_EVERY));
        let next = fellows.begin();
        assert!(fellows.is_due(now), "the next catch-up is told at once");
        drop(list);
        assert!(fellows.is_due(now + LOOK_EVERY), "the end of the one before changes nothing");
        drop(next);
        assert!(!fellows.is_due(now + LOOK_EVERY * 2));
    }
}
