//! Places for streams that several downloads at the same time share, so that together they have no more streams to a
//! source than one of them alone. Where the first has nothing more to ask for, the next one begins, on the stream that
//! is open already: the window of a new one holds less than a piece and its head, so that the first piece on it takes
//! two round trips.

use crate::BulkStream;
use starling_protocol::NodeId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A stream that was left is of use for so long: less than the time that its source waits for the next request.
const FRESH: Duration = Duration::from_secs(10);

/// The places of some downloads; cheap to clone. There is a lane for each source and fellow that one of them has had.
#[derive(Clone, Default)]
pub struct Lanes(Arc<Mutex<BTreeMap<NodeId, Arc<Lane>>>>);

/// The places for streams to one source. The download that waits longest gets the next one.
pub(super) struct Lane {
    places: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// Streams on which no request is under way, whose places were given up: at most one for each place.
    left: Mutex<Vec<(BulkStream, Instant)>>,
}

/// A place, until it is dropped.
pub(super) type Place = OwnedSemaphorePermit;

/// One that waits for a place.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lanes {
    /// The lane to this source. It has so many places if it is new.
    pub(super) fn to(&self, source: NodeId, places: usize) -> Arc<Lane> {
        // No statement leaves the map half-changed, so a poisoned lock is still good.
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Lane {
            places: Arc::new(Semaphore::new(places)),
            waiting: AtomicUsize::new(0),
            left: Mutex::new(Vec::new()),
        };
        Arc::clone(lanes.entry(source).or_insert_with(|| Arc::new(new())))
    }
}

impl Lane {
    /// Waits for a place.
    pub async fn place(&self) -> Option<Place> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Some(place);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        // The semaphore is never closed; if it were, nobody would have to wait.
        Arc::clone(&self.places).acquire_owned().await.ok()
    }

    /// Whether another stream waits for a place.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Leaves an open stream, on which no request is under way, to the next who gets a place.
    pub fn leave(&self, stream: BulkStream) {
        self.left().push((stream, Instant::now()));
    }

    /// A stream that was left, for one who has just got a place.
    pub fn take_over(&self) -> Option<BulkStream> {
        let mut left = self.left();
        left.retain(|(_, since)| since.elapsed() < FRESH);
        left.pop().map(|(stream, _)| stream)
    }

    /// No statement leaves the list half-changed, so a poisoned lock is still good.
    fn left(&self) -> MutexGuard<'_, Vec<(BulkStream, Instant)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_place_goes_to_who_waits_longest_and_who_gives_up_is_forgotten() {
        let (lanes, source) = (Lanes::default(), NodeId([1; 32]));
        let lane = lanes.to(source, 1);
        assert!(Arc::ptr_eq(&lane, &lanes.clone().to(source, 5)), "a source has one lane");
        let place = lane.place().await.expect("it is free");
        assert!(!lane.is_wanted());
        let waits = |lane: &Arc<Lane>| {
            let lane = Arc::clone(lane);
            tokio::spawn(async move { lane.place().await })
        };
        let until = async |waiting| {
            while lane.waiting.load(Ordering::Relaxed) < waiting {
                tokio::task::yield_now().await;
            }
        };
        let first = waits(&lane);
        until(1).await;
        let second = waits(&lane);
        until(2).await;
        drop(place);
        let place = first.await.expect("it runs").expect("it is free");
        assert!(lane.is_wanted() && !second.is_finished());
        second.abort();
        assert!(second.await.is_err() && !lane.is_wanted());
        drop(place);
        assert!(lane.place().await.is_some(), "the place is free again");
    }

    #[test]
    fn a_stream_is_taken_over_once_while_its_source_still_waits_for_a_request() {
        let lane = Lanes::default().to(NodeId([1; 32]), 2);
        assert!(lane.take_over().is_none());
        let stream = || BulkStream::new(tokio::io::duplex(1).0);
        lane.leave(stream());
        assert!(lane.take_over().is_some() && lane.take_over().is_none());
        lane.leave(stream());
        lane.left()[0].1 -= FRESH;
        assert!(lane.take_over().is_none() && lane.left().is_empty());
    }
}
