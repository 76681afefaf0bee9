//! Handshakes of arriving connections, which can be ended early. libp2p ends one only when its time is over, and until
//! then a silent peer holds a place.

use futures::future::{AbortHandle, AbortRegistration, Abortable};
use libp2p::Multiaddr;
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::time::Instant;

/// Handshakes under way, by their address. Cheap to clone. There are as many as futures, which the swarm bounds.
#[derive(Clone, Debug, Default)]
pub struct Handshakes(Arc<Mutex<UnderWay>>);

#[derive(Debug, Default)]
struct UnderWay {
    serial: u64,
    /// When two come from the same port, to two addresses of this node, the newer one is here.
    all: BTreeMap<Multiaddr, Entry>,
}

#[derive(Debug)]
struct Entry {
    serial: u64,
    handle: AbortHandle,
    /// The time of the last event in it.
    moved_at: Instant,
}

/// The error of a handshake that gave way.
#[derive(Debug, thiserror::Error)]
#[error("it took long, and others from elsewhere wait")]
pub struct GaveWay;

impl Handshakes {
    /// No statement leaves the list half-changed, so the content of a poisoned lock is still good.
    fn list(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the handshake of a connection that has just arrived.
    pub fn begin<F>(&self, from: &Multiaddr, handshake: F) -> Handshake<F> {
        let (handle, registration): (AbortHandle, AbortRegistration) = AbortHandle::new_pair();
        let mut list = self.list();
        list.serial += 1;
        let serial = list.serial;
        list.all.insert(from.clone(), Entry { serial, handle, moved_at: Instant::now() });
        let place = Place { all: self.clone(), from: from.clone(), serial };
        Handshake { handshake: Abortable::new(handshake, registration), place }
    }

    /// Ends the handshake of this address, if it is under way.
    pub fn give_up(&self, from: &Multiaddr) {
        let entry = self.list().all.remove(from);
        if let Some(entry) = entry {
            entry.handle.abort();
        }
    }

    /// The time of the last event in the handshake of this address: bytes came, or could be sent. (A handshake by QUIC
    /// has no event before its end.)
    pub fn moved_at(&self, from: &Multiaddr) -> Option<Instant> {
        self.list().all.get(from).map(|entry| entry.moved_at)
    }
}

#[derive(Debug)]
struct Place {
    all: Handshakes,
    from: Multiaddr,
    serial: u64,
}

impl Place {
    fn moves(&self) {
        if let Some(entry) = self.all.list().all.get_mut(&self.from).filter(|entry| entry.serial == self.serial) {
            entry.moved_at = Instant::now();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut list = self.all.list();
        if list.all.get(&self.from).is_some_and(|entry| entry.serial == self.serial) {
            list.all.remove(&self.from);
        }
    }
}

/// One handshake.
#[derive(Debug)]
pub struct Handshake<F> {
    handshake: Abortable<F>,
    place: Place,
}

impl<F, O> Future for Handshake<F>
where
    F: Future<Output = io::Result<O>> + Unpin,
{
    type Output = io::Result<O>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A poll means that something has happened.
        self.place.moves();
        let ended = std::task::ready!(Pin::new(&mut self.handshake).poll(cx));
        Poll::Ready(ended.unwrap_or_else(|_| Err(io::Error::other(GaveWay))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn a_silent_handshake_ends_when_it_is_given_up_and_others_go_on() {
        let (all, from): (_, Multiaddr) = (Handshakes::default(), "/ip4/45.2.0.9/tcp/5".parse().unwrap());
        let other: Multiaddr = "/ip4/45.2.0.9/tcp/6".parse().unwrap();
        let mut silent = all.begin(&from, futures::future::pending::<io::Result<u8>>());
        let mut honest = all.begin(&other, futures::future::ready(Ok::<u8, io::Error>(7)));
        assert!((&mut silent).now_or_never().is_none());
        all.give_up(&from);
        assert!((&mut silent).now_or_never().expect("it has ended").is_err());
        assert_eq!((&mut honest).now_or_never().expect("it has ended").unwrap(), 7);
        let newer = all.begin(&from, futures::future::pending::<io::Result<u8>>());
        drop((silent, honest));
        assert_eq!(all.list().all.len(), 1, "the newer one from the same port stays");
        drop(newer);
        assert!(all.list().all.is_empty());
    }
}
