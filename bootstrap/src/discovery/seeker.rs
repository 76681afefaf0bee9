//! The look-ups of peers by their ids: of contacts to which no known address leads. No sockets, no clock.
//!
//! Look-ups take turns: the contact that was looked up least often comes first. Each is looked up [`ATTEMPTS_MAX`]
//! times, with growing pauses, and then not again until it was here, or was no contact. So contacts that are gone keep
//! no other from being looked up. Now and then the node looks itself up: the peers that it asks on the way remember it,
//! and they are those that others come to when they look for it.

use super::dialer::after;
use libp2p::PeerId;
use starling_protocol::engine::io::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Look-ups under way. Each asks some twenty peers.
const AT_ONCE: usize = 2;
/// Look-ups of one peer in a row.
pub const ATTEMPTS_MAX: u32 = 5;
/// The pause after the first look-up in vain, twice as long after each further one.
const PAUSE: Duration = Duration::from_secs(5);
/// The DHT ends a look-up after 10 s; one that is not heard of for so long is lost.
const LOST: Duration = Duration::from_secs(20);
/// Pause between looks at the contacts.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause between look-ups of this node itself. Tables keep a peer until another one takes its place.
const OWN_EVERY: Duration = Duration::from_secs(5 * 60);

/// The schedule.
#[derive(Debug)]
pub struct Seeker {
    me: PeerId,
    sought: BTreeMap<PeerId, Sought>,
    look_at: Time,
    own_at: Time,
}

/// A contact that is not connected.
#[derive(Debug, Default)]
struct Sought {
    attempts: u32,
    /// When it may be looked up again; while it is being looked up, when that counts as lost.
    at: Time,
    asking: bool,
}

impl Seeker {
    pub fn new(me: PeerId) -> Self {
        Self { me, sought: BTreeMap::new(), look_at: Time(0), own_at: Time(0) }
    }

    /// Whether it is time to call [`Seeker::poll`].
    pub fn is_due(&self, now: Time) -> bool {
        self.look_at <= now
    }

    /// The time of the next poll.
    pub fn wake_at(&self) -> Time {
        self.look_at
    }

    /// The peers to look up now. `away`: the contacts that are not connected, and whether no address leads to each.
    /// Those that are not among them any more are forgotten, so there are at most as many as contacts.
    pub fn poll(&mut self, away: &BTreeMap<PeerId, bool>, now: Time) -> Vec<PeerId> {
        self.look_at = after(now, LOOK_EVERY);
        self.sought.retain(|peer, _| away.contains_key(peer));
        for sought in self.sought.values_mut().filter(|sought| sought.asking && sought.at <= now) {
            (sought.asking, sought.at) = (false, after(now, PAUSE));
        }
        let mut turns: Vec<(u32, Time, PeerId)> = Vec::new();
        for peer in away.iter().filter(|(_, lacks)| **lacks).map(|(peer, _)| *peer) {
            let sought = self.sought.entry(peer).or_insert(Sought { at: now, ..Sought::default() });
            if !sought.asking && sought.at <= now && sought.attempts < ATTEMPTS_MAX {
                turns.push((sought.attempts, sought.at, peer));
            }
        }
        turns.sort_unstable();
        let room = AT_ONCE.saturating_sub(self.sought.values().filter(|sought| sought.asking).count());
        let mut asked: Vec<PeerId> = turns.into_iter().take(room).map(|(_, _, peer)| peer).collect();
        for peer in &asked {
            if let Some(sought) = self.sought.get_mut(peer) {
                *sought = Sought { attempts: sought.attempts + 1, at: after(now, LOST), asking: true };
            }
        }
        if self.own_at <= now {
            self.own_at = after(now, OWN_EVERY);
            asked.push(self.me);
        }
        asked
    }

    /// The look-up of a peer has ended.
    pub fn ended(&mut self, peer: &PeerId, now: Time) {
        if let Some(sought) = self.sought.get_mut(peer).filter(|sought| sought.asking) {
            let doubled = PAUSE.saturating_mul(1 << sought.attempts.saturating_sub(1).min(ATTEMPTS_MAX));
            (sought.asking, sought.at) = (false, after(now, doubled));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SECOND: u64 = 1_000_000;

    fn someone(n: u8) -> PeerId {
        crate::identity::peer_id(&starling_protocol::NodeId([n; 32]))
    }

    fn lacking(peers: impl IntoIterator<Item = PeerId>) -> BTreeMap<PeerId, bool> {
        peers.into_iter().map(|peer| (peer, true)).collect()
    }

    /// Polls for so many seconds, and ends each look-up after `lasting` seconds; returns the times of all.
    fn looked_up(
        seeker: &mut Seeker,
        away: &BTreeMap<PeerId, bool>,
        span: [u64; 2],
        lasting: u64,
    ) -> Vec<(u64, PeerId)> {
        let mut asked = Vec::new();
        for second in span[0]..span[1] {
            let now = Time(second * SECOND);
            let ended: Vec<PeerId> =
                asked.iter().filter(|(at, _)| at + lasting == second).map(|(_, peer)| *peer).collect();
            ended.iter().for_each(|peer| seeker.ended(peer, now));
            if seeker.is_due(now) {
                asked.extend(seeker.poll(away, now).into_iter().map(|peer| (second, peer)));
            }
        }
        asked
    }

    #[test]
    fn peers_that_are_gone_keep_nobody_from_being_looked_up() {
        let (me, gone) = (someone(0), (1..=40).map(someone));
        let mut seeker = Seeker::new(me);
        // Look-ups of peers that nobody knows take as long as they may.
        let first = looked_up(&mut seeker, &lacking(gone.clone()), [0, 100], 10);
        let others: Vec<PeerId> = first.iter().map(|(_, peer)| *peer).filter(|peer| *peer != me).collect();
        assert!(others.len() <= 2 * 100 / 10 + 2, "{} at {AT_ONCE} at a time", others.len());
        assert_eq!(others.iter().collect::<BTreeSet<_>>().len(), others.len(), "each once before one is twice");
        let late = someone(50);
        let then = looked_up(&mut seeker, &lacking(gone.chain([late])), [100, 230], 10);
        assert!(then.iter().any(|(_, peer)| *peer == late), "it waits for the turns of those that came before");
    }

    #[test]
    fn a_peer_is_looked_up_a_few_times_and_again_when_it_was_here() {
        let (me, peer) = (someone(0), someone(1));
        let mut seeker = Seeker::new(me);
        let count = |asked: &[(u64, PeerId)]| asked.iter().filter(|(_, one)| *one == peer).count();
        let times = looked_up(&mut seeker, &lacking([peer]), [0, 2000], 1);
        assert_eq!(count(&times), ATTEMPTS_MAX as usize);
        let waits: Vec<u64> = times
            .iter()
            .filter(|(_, one)| *one == peer)
            .map(|(at, _)| *at)
            .collect::<Vec<_>>()
            .windows(2)
            .map(|w| w[1] - w[0])
            .collect();
        assert_eq!(waits, [6, 11, 21, 41], "growing pauses after look-ups of a second");
        let own = times.iter().filter(|(_, one)| *one == me).count();
        assert!((6..=8).contains(&own), "{own} of this node itself");
        // It is here for a moment.
        looked_up(&mut seeker, &BTreeMap::new(), [2000, 2002], 1);
        assert_eq!(count(&looked_up(&mut seeker, &lacking([peer]), [2002, 2100], 1)), ATTEMPTS_MAX as usize);
    }

    #[test]
    fn who_has_an_address_is_not_looked_up_and_a_lost_look_up_ends() {
        let (me, peer, other) = (someone(0), someone(1), someone(2));
        let mut seeker = Seeker::new(me);
        let away = BTreeMap::from([(peer, true), (other, false)]);
        // No end of a look-up is ever heard of.
        let asked = looked_up(&mut seeker, &away, [0, 1000], u64::MAX / 2);
        assert_eq!(asked.iter().filter(|(_, one)| *one == peer).count(), ATTEMPTS_MAX as usize);
        assert!(asked.iter().all(|(_, one)| *one != other));
    }
}
