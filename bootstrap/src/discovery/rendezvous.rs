//! The times to announce this node under its run's key, and to look for the run's other nodes. No sockets, no clock.
//!
//! A lookup follows each announcement, so the later one of two nodes finds the earlier one at once. Further lookups are
//! for lost messages and for DHT servers that come later.

use super::dialer::after;
use libp2p::PeerId;
use libp2p::kad::RecordKey;
use starling_protocol::engine::io::Time;
use std::collections::BTreeSet;
use std::time::Duration;

/// DHT servers that are counted.
const SERVERS_MAX: usize = 1024;
/// A pause in which several servers can connect, so that one announcement reaches them all.
const SETTLE: Duration = Duration::from_millis(50);
/// Well below the time for which an announcement is believed.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(60);
/// Pauses between lookups while no peer of the run is connected: at first, and after [`EAGER_LOOKUPS`].
const LOOK_EAGER: Duration = Duration::from_secs(1);
const LOOK_LONELY: Duration = Duration::from_secs(5);
const EAGER_LOOKUPS: u32 = 15;
/// The pause while peers of the run are connected, for those that were missed.
const LOOK_IN_COMPANY: Duration = Duration::from_secs(15);

/// A step to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Announce(RecordKey),
    LookUp(RecordKey),
}

/// The schedule.
#[derive(Debug)]
pub struct Rendezvous {
    key: Option<RecordKey>,
    /// Connected peers that answer DHT questions.
    servers: BTreeSet<PeerId>,
    announce_at: Option<Time>,
    look_at: Option<Time>,
    lookups: u32,
    /// Looks where it would announce.
    hidden: bool,
}

impl Rendezvous {
    pub fn new(key: Option<RecordKey>) -> Self {
        Self { key, servers: BTreeSet::new(), announce_at: None, look_at: None, lookups: 0, hidden: false }
    }

    /// The same without announcements, if `hidden`.
    pub fn hidden(self, hidden: bool) -> Self {
        Self { hidden, ..self }
    }

    pub fn key(&self) -> Option<&RecordKey> {
        self.key.as_ref()
    }

    /// A connected peer answers DHT questions. It is sent an announcement soon.
    pub fn server_up(&mut self, peer: PeerId, now: Time) {
        if self.servers.len() < SERVERS_MAX && self.servers.insert(peer) {
            let soon = after(now, SETTLE);
            self.announce_at = Some(self.announce_at.map_or(soon, |at| at.min(soon)));
        }
    }

    pub fn server_down(&mut self, peer: &PeerId) {
        self.servers.remove(peer);
    }

    /// The announcement has been sent: it is time to look.
    pub fn announced(&mut self, now: Time) {
        self.look_at = Some(now);
    }

    /// The steps that are due; none without a server to ask.
    pub fn poll(&mut self, now: Time, lonely: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        let Some(key) = self.key.clone().filter(|_| !self.servers.is_empty()) else { return steps };
        if self.announce_at.is_some_and(|at| at <= now) {
            self.announce_at = Some(after(now, ANNOUNCE_EVERY));
            if self.hidden {
                self.look_at.get_or_insert(now);
            } else {
                steps.push(Step::Announce(key.clone()));
            }
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.lookups = self.lookups.saturating_add(1);
            let wait = match (lonely, self.lookups) {
                (false, _) => LOOK_IN_COMPANY,
                (true, ..=EAGER_LOOKUPS) => LOOK_EAGER,
                (true, _) => LOOK_LONELY,
            };
            self.look_at = Some(after(now, wait));
            steps.push(Step::LookUp(key));
        }
        steps
    }

    /// The time of the next poll.
    pub fn wake_at(&self) -> Option<Time> {
        let waiting = self.key.is_some() && !self.servers.is_empty();
        waiting.then(|| self.announce_at.into_iter().chain(self.look_at).min()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn key() -> RecordKey {
        RecordKey::new(b"run")
    }

    #[test]
    fn a_hidden_node_looks_and_announces_nothing() {
        let mut schedule = Rendezvous::new(Some(key())).hidden(true);
        schedule.server_up(PeerId::random(), Time(0));
        assert!(schedule.poll(Time(0), true).is_empty());
        let mut times = Vec::new();
        while let Some(at) = schedule.wake_at().filter(|at| at.0 < 4 * SECOND) {
            for step in schedule.poll(at, true) {
                assert_eq!(step, Step::LookUp(key()));
                times.push(at.0 / SECOND);
            }
        }
        assert_eq!(times, [0, 1, 2, 3]);
    }

    #[test]
    fn a_lookup_follows_the_announcement() {
        let mut schedule = Rendezvous::new(Some(key()));
        assert_eq!(schedule.wake_at(), None);
        schedule.server_up(PeerId::random(), Time(0));
        let due = schedule.wake_at().unwrap();
        assert_eq!(schedule.poll(due, true), [Step::Announce(key())]);
        assert_eq!(schedule.wake_at(), Some(after(due, ANNOUNCE_EVERY)));
        schedule.announced(due);
        assert_eq!(schedule.poll(due, true), [Step::LookUp(key())]);
        assert_eq!(schedule.wake_at(), Some(after(due, LOOK_EAGER)));
    }

    #[test]
    fn the_lonely_look_often_and_those_in_company_rarely() {
        let mut schedule = Rendezvous::new(Some(key()));
        schedule.server_up(PeerId::random(), Time(0));
        schedule.announced(Time(0));
        let mut count = |from: u64, to: u64, lonely: bool| {
            let mut lookups = 0;
            for tenth in from * 10..to * 10 {
                let steps = schedule.poll(Time(tenth * SECOND / 10), lonely);
                lookups += steps.iter().filter(|s| **s == Step::LookUp(key())).count();
            }
            lookups
        };
        assert!((14..=16).contains(&count(0, 15, true)));
        assert!((11..=13).contains(&count(16, 76, true)));
        assert!((3..=5).contains(&count(80, 140, false)));
    }

    #[test]
    fn without_a_run_or_a_server_nothing_is_done() {
        let mut idle = Rendezvous::new(None);
        idle.server_up(PeerId::random(), Time(0));
        idle.announced(Time(0));
        assert_eq!((idle.poll(Time(SECOND), true), idle.wake_at()), (vec![], None));
        let (mut schedule, server) = (Rendezvous::new(Some(key())), PeerId::random());
        schedule.server_up(server, Time(0));
        schedule.server_down(&server);
        assert_eq!((schedule.poll(Time(SECOND), true), schedule.wake_at()), (vec![], None));
    }
}
