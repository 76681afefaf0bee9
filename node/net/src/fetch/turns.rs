//! Limits on work at one time, with a smaller limit for strangers. A turn lasts as long as this node works, never as
//! long as a peer likes.

use crate::standing::Rank;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Turns of one kind; cheap to clone.
#[derive(Clone)]
pub struct Turns {
    all: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
}

/// One turn, until it is dropped.
pub struct Turn {
    _all: Option<OwnedSemaphorePermit>,
    _strangers: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Limits the turns to `all` at a time, and those of strangers to `strangers`.
    pub fn new((all, strangers): (usize, usize)) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), strangers: Arc::new(Semaphore::new(strangers)) }
    }

    /// Waits for a turn. A stranger first waits for a stranger's turn, so that it blocks nobody else.
    pub async fn take(&self, rank: Rank) -> Turn {
        // The semaphores are never closed; if one were, nobody would have to wait.
        let strangers = match rank == Rank::Stranger {
            true => Arc::clone(&self.strangers).acquire_owned().await.ok(),
            false => None,
        };
        Turn { _all: Arc::clone(&self.all).acquire_owned().await.ok(), _strangers: strangers }
    }
}
