//! Addresses by gossip: this node's own, and those that others announce.

use super::SwarmTask;
use crate::announce::Announcement;
use crate::reason::refused;
use crate::standing::Rank;
use libp2p::PeerId;
use libp2p::gossipsub::{MessageAcceptance, MessageId};
use starling_bootstrap::discovery::Origin;
use starling_bootstrap::identity;
use tokio::time::Instant;

impl SwarmTask {
    /// Judges a gossip message before it is passed on.
    pub(super) fn on_gossip(&mut self, id: &MessageId, from: &PeerId, author: PeerId, data: &[u8]) {
        let verdict = match Announcement::decode(data) {
            Err(error) => {
                refused("announcement_malformed");
                tracing::debug!(%from, %author, %error, "announcement refused");
                MessageAcceptance::Reject
            }
            Ok(_) if identity::node_id(&author).is_none() => {
                refused("announcement_of_other_key");
                MessageAcceptance::Reject
            }
            Ok(announcement) => self.hear_announcement((*from, author), &announcement),
        };
        self.discovery.judge(&mut self.swarm, id, from, verdict);
        self.discovery.tick(&mut self.swarm);
    }

    /// Drops announcements beyond an author's limit. The teller that passed one on may not have known that it was too
    /// much.
    fn hear_announcement(
        &mut self,
        (from, author): (PeerId, PeerId),
        announcement: &Announcement,
    ) -> MessageAcceptance {
        let is_known =
            identity::node_id(&author).is_some_and(|node| self.office.standing.rank(&node) != Rank::Stranger);
        let is_familiar = is_known || self.swarm.is_connected(&author);
        match self.newest.is_news((from, author), is_familiar, announcement.at_ms, Instant::now()) {
            Ok(true) => {
                self.discovery.learn(from, author, &announcement.addresses, Origin::Gossip);
                MessageAcceptance::Accept
            }
            Ok(false) => MessageAcceptance::Ignore,
            Err(reason) => {
                refused(reason);
                MessageAcceptance::Ignore
            }
        }
    }

    /// Keeps the addresses in the handle up to date.
    pub(super) fn note_addresses(&mut self) {
        let now = self.discovery.addresses(&self.swarm);
        let news = self.addresses.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
        if news {
            self.beacon.news(Instant::now());
        }
    }

    pub(super) fn announce(&mut self) {
        let at_ms = self.beacon.stamp_ms(Instant::now());
        let announcement = Announcement { at_ms, addresses: self.addresses.borrow().clone() };
        let heard = self.discovery.publish(&mut self.swarm, announcement.encode());
        if let Err(error) = &heard {
            tracing::trace!(%error, "nobody to announce our addresses to yet");
        }
        self.beacon.told(heard.is_ok(), Instant::now());
    }
}
