//! So many at a time, of whom strangers are a part. Who waits is known, so that who is slow can be asked to go.

use crate::net::standing::Rank;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Turns of one kind; cheap to clone.
#[derive(Clone)]
pub struct Turns(Arc<Inner>);

struct Inner {
    all: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    /// Who waits: members and joiners, and strangers.
    known_wait: AtomicUsize,
    strangers_wait: AtomicUsize,
}

impl Inner {
    fn waiting(&self, is_stranger: bool) -> &AtomicUsize {
        if is_stranger { &self.strangers_wait } else { &self.known_wait }
    }
}

/// One turn, until it is dropped.
pub struct Turn {
    turns: Turns,
    is_stranger: bool,
    _all: Option<OwnedSemaphorePermit>,
    _strangers: Option<OwnedSemaphorePermit>,
}

/// Counts one who waits.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Turns {
    /// `all` at a time, of whom `strangers`.
    pub fn new((all, strangers): (usize, usize)) -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        let (known_wait, strangers_wait) = Default::default();
        Self(Arc::new(Inner { all: semaphore(all), strangers: semaphore(strangers), known_wait, strangers_wait }))
    }

    /// Waits for a turn. A stranger first waits for one of the strangers', so that it stands in nobody else's way.
    pub async fn take(&self, rank: Rank) -> Turn {
        let is_stranger = rank == Rank::Stranger;
        let _waiting = Waiting::new(self.0.waiting(is_stranger));
        // Neither is ever closed; if one were, nobody would have to wait.
        let strangers = match is_stranger {
            true => Arc::clone(&self.0.strangers).acquire_owned().await.ok(),
            false => None,
        };
        let all = Arc::clone(&self.0.all).acquire_owned().await.ok();
        Turn { turns: self.clone(), is_stranger, _all: all, _strangers: strangers }
    }
}

impl Turn {
    /// Whether somebody waits to whom this turn would have to be left: a stranger leaves it to anybody, others to their like.
    pub fn is_wanted(&self) -> bool {
        let inner = &self.turns.0;
        inner.known_wait.load(Relaxed) > 0 || (self.is_stranger && inner.strangers_wait.load(Relaxed) > 0)
    }
}
