//! Gossip as the driver sees it: streams for the router, and the trainer's reports of its exchanges.

use super::matter::Matter;
use super::trainer::{PairSetting, TrainerEvent};
use super::variant::{Desk, Variant};
use crate::gossip::{Exchanger, PairError, PairRouter};
use crate::net::NetHandle;
use crate::watch::event::Event;
use crate::watch::status::{GossipStatus, Status};
use starling_protocol::record::Record;
use starling_protocol::run::RunSpec;
use starling_protocol::{NodeId, gossip};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The trainer's means to exchange with others, in a run with gossip. Must be called inside a tokio runtime.
pub fn pair_setting(spec: &RunSpec, net: &NetHandle) -> Option<PairSetting> {
    let exchanger = || Exchanger {
        run: spec.digest(),
        me: net.me(),
        codec: gossip::codec(spec.sync.codec),
        links: Arc::new(net.clone()),
        router: PairRouter::new(spec.digest()),
    };
    let runtime = tokio::runtime::Handle::current;
    spec.sync.gossip.map(|spec| PairSetting { spec, exchanger: exchanger(), runtime: runtime() })
}

/// The router of this node's exchanges, and counts of how those of this process have ended.
pub struct Exchanges {
    router: PairRouter,
    made: u64,
    /// Exchanges without a partner's answer, by reason.
    alone: BTreeMap<&'static str, u64>,
}

impl Exchanges {
    pub fn new(router: PairRouter) -> Self {
        Self { router, made: 0, alone: BTreeMap::new() }
    }

    fn note(&mut self, reason: Option<&'static str>) {
        match reason {
            None => self.made += 1,
            Some(reason) => *self.alone.entry(reason).or_default() += 1,
        }
        metrics::counter!("starling_gossip_total", "outcome" => reason.unwrap_or("met")).increment(1);
    }

    /// Notes an exchange of the trainer, or that it went on alone.
    fn over(
        &mut self,
        (round, exchange): (u64, u32),
        partner: Option<NodeId>,
        why: Option<PairError>,
        seconds: f64,
    ) -> Event {
        let reason = match (&partner, &why) {
            (None, _) => Some("odd"),
            (_, why) => why.as_ref().map(PairError::reason),
        };
        self.note(reason);
        Event::Exchanged {
            round,
            exchange,
            partner: partner.map(|partner| partner.to_string()),
            alone: reason.map(str::to_owned),
            why: why.map(|why| why.to_string()),
            seconds,
        }
    }

    fn status(&self) -> GossipStatus {
        let alone = self.alone.iter().map(|(reason, times)| ((*reason).to_owned(), *times)).collect();
        GossipStatus { met: self.made, alone }
    }
}

impl Variant for Exchanges {
    fn take<'a>(&mut self, matter: Matter<'a>, desk: &mut Desk<'_>) -> Option<Matter<'a>> {
        match matter {
            Matter::Stream(from, stream) => self.router.route(from, stream),
            Matter::TrainerEvent(TrainerEvent::Exchanged { round, exchange, partner, why, seconds }) => {
                let event = self.over((round, exchange), partner, why, seconds);
                desk.screen.show(&event);
            }
            other => return Some(other),
        }
        None
    }

    fn show(&self, _head: &Record, status: &mut Status) {
        status.gossip = Some(self.status());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::Digest;

    #[test]
    fn exchanges_are_counted_by_how_they_ended() {
        let mut exchanges = Exchanges::new(PairRouter::new(Digest([1; 32])));
        let partner = Some(NodeId([2; 32]));
        let met = exchanges.over((3, 1), partner, None, 0.5);
        assert!(matches!(met, Event::Exchanged { alone: None, why: None, round: 3, exchange: 1, .. }));
        exchanges.over((3, 2), None, None, 0.0);
        for _ in 0..2 {
            exchanges.over((4, 1), partner, Some(PairError::Avoided), 0.0);
        }
        let GossipStatus { met, alone } = exchanges.status();
        assert_eq!((met, alone.get("odd"), alone.values().sum::<u64>()), (1, Some(&1), 3));
    }
}
