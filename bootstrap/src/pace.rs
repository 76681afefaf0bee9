//! A rate limit on strangers' messages for one of libp2p's protocols. The protocol's own limits count messages after
//! they have been read, decoded and, by gossipsub, checked for their signatures, repeated ones included. Here a
//! stranger's next message is not read before its address has earned it. Messages above the rate wait at their sender;
//! none is lost, and no honest peer is punished for a crowd.

use crate::doors::Doors;
use crate::source::{Remembered, Source};
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::handler::ConnectionEvent;
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
    SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Messages from strangers at one address: a burst, and a second in the long run. The same as for control sessions.
const BURST: f64 = 512.0;
const PER_SECOND: f64 = 64.0;

/// The budgets of addresses for one kind of work, and the time up to which each was counted; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    burst: f64,
    per_second: f64,
    left: Arc<Mutex<Remembered<(f64, Instant)>>>,
}

impl Accounts {
    /// Strangers at one address have `burst` at once, and `per_second` in the long run.
    pub fn new(burst: f64, per_second: f64) -> Self {
        Self { burst, per_second, left: Arc::default() }
    }

    /// Charges one more to the address. Returns how long the next one has to wait, if at all.
    fn pay(&self, source: Source, now: Instant) -> Option<Duration> {
        // No statement leaves the accounts half-changed, so the content of a poisoned lock is still good.
        let mut accounts = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, at) = accounts.of(source, || (self.burst, now));
        let earned = now.saturating_duration_since(*at).as_secs_f64() * self.per_second;
        *left = (*left + earned).min(self.burst) - 1.0;
        *at = now;
        (*left < 0.0).then(|| Duration::from_secs_f64(-*left / self.per_second))
    }
}

/// The account that one connection draws on.
#[derive(Debug)]
pub(crate) struct Payer {
    pub peer: PeerId,
    pub source: Source,
    pub doors: Doors,
    pub accounts: Accounts,
}

impl Payer {
    /// Charges one more to the connection's address, if it pays. Returns how long the next one has to wait, if at all.
    pub fn pay(&self, now: Instant) -> Option<Duration> {
        let is_free = self.source == Source::Here || self.doors.is_known(&self.peer);
        if is_free { None } else { self.accounts.pay(self.source, now) }
    }
}

/// `B`, which reads strangers' messages at a limited rate.
pub struct Paced<B> {
    inner: B,
    doors: Doors,
    accounts: Accounts,
}

impl<B> Paced<B> {
    pub fn new(inner: B, doors: Doors) -> Self {
        Self { inner, doors, accounts: Accounts::new(BURST, PER_SECOND) }
    }

    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner
    }

    fn handler<H>(&self, inner: H, peer: PeerId, source: Source) -> Handler<H> {
        let payer = Payer { peer, source, doors: self.doors.clone(), accounts: self.accounts.clone() };
        Handler { inner, payer, wait: None }
    }
}

/// One connection's side.
pub struct Handler<H> {
    inner: H,
    payer: Payer,
    wait: Option<Pin<Box<Sleep>>>,
}

impl<H: ConnectionHandler> ConnectionHandler for Handler<H> {
    type FromBehaviour = H::FromBehaviour;
    type ToBehaviour = H::ToBehaviour;
    type InboundProtocol = H::InboundProtocol;
    type OutboundProtocol = H::OutboundProtocol;
    type InboundOpenInfo = H::InboundOpenInfo;
    type OutboundOpenInfo = H::OutboundOpenInfo;

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol, Self::InboundOpenInfo> {
        self.inner.listen_protocol()
    }

    fn connection_keep_alive(&self) -> bool {
        self.inner.connection_keep_alive()
    }

    /// Each event of the inner handler is a received message. While its peer waits the handler is not polled, and so
    /// reads nothing.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, Self::OutboundOpenInfo, Self::ToBehaviour>> {
        if let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(cx));
            self.wait = None;
        }
        let event = ready!(self.inner.poll(cx));
        if matches!(event, ConnectionHandlerEvent::NotifyBehaviour(_))
            && let Some(wait) = self.payer.pay(Instant::now())
        {
            metrics::counter!("starling_announcements_throttled_total").increment(1);
            self.wait = Some(Box::pin(sleep(wait)));
        }
        Poll::Ready(event)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Option<Self::ToBehaviour>> {
        self.inner.poll_close(cx)
    }

    fn on_behaviour_event(&mut self, event: Self::FromBehaviour) {
        self.inner.on_behaviour_event(event);
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<
            Self::InboundProtocol,
            Self::OutboundProtocol,
            Self::InboundOpenInfo,
            Self::OutboundOpenInfo,
        >,
    ) {
        self.inner.on_connection_event(event);
    }
}

impl<B: NetworkBehaviour> NetworkBehaviour for Paced<B> {
    type ConnectionHandler = Handler<THandler<B>>;
    type ToSwarm = B::ToSwarm;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.inner.handle_pending_inbound_connection(id, local, remote)
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let inner = self.inner.handle_established_inbound_connection(id, peer, local, remote)?;
        Ok(self.handler(inner, peer, Source::of_inbound(local, remote)))
    }

    fn handle_pending_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: Option<PeerId>,
        known: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        self.inner.handle_pending_outbound_connection(id, peer, known, role)
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port_use: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let inner = self.inner.handle_established_outbound_connection(id, peer, address, role, port_use)?;
        Ok(self.handler(inner, peer, Source::of(address)))
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        self.inner.on_swarm_event(event);
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, id: ConnectionId, event: THandlerOutEvent<Self>) {
        self.inner.on_connection_handler_event(peer, id, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        self.inner.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::task::noop_waker;
    use libp2p::core::upgrade::DeniedUpgrade;
    use std::convert::Infallible;

    /// A peer that has sent more than anybody will read.
    struct Chatty;

    impl ConnectionHandler for Chatty {
        type FromBehaviour = Infallible;
        type ToBehaviour = u8;
        type InboundProtocol = DeniedUpgrade;
        type OutboundProtocol = DeniedUpgrade;
        type InboundOpenInfo = ();
        type OutboundOpenInfo = ();

        fn listen_protocol(&self) -> SubstreamProtocol<DeniedUpgrade> {
            SubstreamProtocol::new(DeniedUpgrade, ())
        }

        fn poll(&mut self, _: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<DeniedUpgrade, (), u8>> {
            Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(1))
        }

        fn on_behaviour_event(&mut self, event: Infallible) {
            match event {}
        }

        fn on_connection_event(&mut self, _: ConnectionEvent<DeniedUpgrade, DeniedUpgrade>) {}
    }

    const MANY: usize = 10_000;

    fn heard(handler: &mut Handler<Chatty>) -> usize {
        let waker = noop_waker();
        let mut cx = Context::from_waker(&waker);
        (0..MANY).take_while(|_| handler.poll(&mut cx).is_ready()).count()
    }

    /// Before, gossipsub read, decoded and checked every message.
    #[tokio::test]
    async fn strangers_of_one_address_are_read_at_a_pace_and_known_peers_at_theirs() {
        let paced = Paced::new((), Doors::default());
        let source = |n| Source::Address([45, 2, 0, n].into());
        let connect = |peer, source| paced.handler(Chatty, peer, source);
        let known = PeerId::random();
        paced.doors.name(known);
        let mut together = 0;
        for _ in 0..8 {
            together += heard(&mut connect(PeerId::random(), source(1)));
        }
        // The last message of each connection may go into debt, and a moment has passed.
        assert!((BURST as usize..BURST as usize + 100).contains(&together), "{together}");
        assert!(heard(&mut connect(PeerId::random(), source(2))) >= BURST as usize, "others have their own");
        assert_eq!(heard(&mut connect(known, source(1))), MANY);
        assert_eq!(heard(&mut connect(PeerId::random(), Source::Here)), MANY);
    }

    #[tokio::test]
    async fn a_waiting_stranger_goes_on_when_its_address_has_earned_it() {
        let paced = Paced::new((), Doors::default());
        let mut handler = paced.handler(Chatty, PeerId::random(), Source::Address([45, 2, 0, 1].into()));
        heard(&mut handler);
        let next = std::future::poll_fn(|cx| handler.poll(cx));
        assert!(tokio::time::timeout(Duration::from_secs(10), next).await.is_ok());
    }
}
