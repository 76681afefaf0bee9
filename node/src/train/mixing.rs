//! Pairs as the driver sees them: streams to the router, and what the trainer tells of its exchanges.

use super::driver::Driver;
use super::trainer::PairSetting;
use crate::net::{BulkStream, NetHandle};
use crate::pairs::{Exchanger, PairError, PairRouter};
use crate::watch::event::Event;
use crate::watch::status::PairsStatus;
use starling_protocol::run::RunSpec;
use starling_protocol::{NodeId, pairs};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the trainer needs to meet others, in a run whose members do. Must be called inside a tokio runtime.
pub fn pair_setting(spec: &RunSpec, net: &NetHandle) -> Option<PairSetting> {
    let exchanger = || Exchanger {
        run: spec.digest(),
        me: net.me(),
        codec: pairs::codec(&spec.sync),
        links: Arc::new(net.clone()),
        router: PairRouter::new(spec.digest()),
    };
    let runtime = tokio::runtime::Handle::current;
    spec.sync.pairs.map(|spec| PairSetting { spec, exchanger: exchanger(), runtime: runtime() })
}

/// How this process's exchanges have ended.
#[derive(Default)]
pub struct Exchanges {
    made: u64,
    /// By reason.
    alone: BTreeMap<&'static str, u64>,
}

impl Exchanges {
    fn note(&mut self, reason: Option<&'static str>) {
        match reason {
            None => self.made += 1,
            Some(reason) => *self.alone.entry(reason).or_default() += 1,
        }
        metrics::counter!("starling_pairs_total", "outcome" => reason.unwrap_or("met")).increment(1);
    }

    pub fn status(&self) -> PairsStatus {
        let alone = self.alone.iter().map(|(reason, times)| ((*reason).to_owned(), *times)).collect();
        PairsStatus { met: self.made, alone }
    }
}

impl Driver {
    /// A stream that a peer opened for an exchange.
    pub(super) fn route_pair(&self, from: NodeId, stream: BulkStream) {
        match &self.pairs {
            Some(router) => router.route(from, stream),
            None => metrics::counter!("starling_refused_total", "reason" => "pair_not_in_run").increment(1),
        }
    }

    /// The trainer has made an exchange, or gone on without.
    pub(super) fn show_exchange(
        &mut self,
        (round, exchange): (u64, u32),
        partner: Option<NodeId>,
        why: Option<PairError>,
        seconds: f64,
    ) {
        let reason = match (&partner, &why) {
            (None, _) => Some("odd"),
            (_, why) => why.as_ref().map(PairError::reason),
        };
        self.exchanges.note(reason);
        self.show(Event::Exchanged {
            round,
            exchange,
            partner: partner.map(|partner| partner.to_string()),
            alone: reason.map(str::to_owned),
            why: why.map(|why| why.to_string()),
            seconds,
        });
    }
}
