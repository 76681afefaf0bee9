//! The contributions that this node can offer in a reduction.

use starling_protocol::Digest;
use std::sync::Arc;

/// A pseudo-gradient and its digest.
type Offer = (Digest, Arc<Vec<f32>>);

/// This node's contributions, kept over attempts and rounds until a COMMIT has taken them in.
#[derive(Default)]
pub struct Contributions {
    /// The last contribution.
    own: Option<Offer>,
    /// The last contribution with a difference mixed into it.
    mixed: Option<Offer>,
}

impl Contributions {
    /// Keeps the contribution of a round's steps.
    pub fn make(&mut self, payload: Digest, delta: Arc<Vec<f32>>) {
        (self.own, self.mixed) = (Some((payload, delta)), None);
    }

    /// Keeps the contribution of the same steps to another fragment.
    pub fn remake(&mut self, payload: Digest, delta: Arc<Vec<f32>>) {
        self.own = Some((payload, delta));
    }

    pub fn mix(&mut self, payload: Digest, delta: Arc<Vec<f32>>) {
        self.mixed = Some((payload, delta));
    }

    /// The last contribution, without a difference mixed into it.
    pub fn own(&self) -> Option<Arc<Vec<f32>>> {
        self.own.as_ref().map(|(_, delta)| Arc::clone(delta))
    }

    /// The contribution that this node has announced by this digest.
    pub fn of(&self, payload: &Digest) -> Option<Arc<Vec<f32>>> {
        let mut held = self.own.iter().chain(&self.mixed);
        held.find(|(digest, _)| digest == payload).map(|(_, delta)| Arc::clone(delta))
    }

    /// Drops all: a COMMIT has taken them in.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_offered_until_a_commit_or_the_next_round() {
        let (digest, delta) = (|n: u8| Digest([n; 32]), |n: f32| Arc::new(vec![n]));
        let mut offers = Contributions::default();
        offers.make(digest(1), delta(1.0));
        offers.mix(digest(2), delta(2.0));
        assert_eq!((offers.of(&digest(1)), offers.of(&digest(2))), (Some(delta(1.0)), Some(delta(2.0))));
        assert_eq!(offers.own(), Some(delta(1.0)), "a difference is mixed once");
        offers.make(digest(3), delta(3.0));
        assert_eq!((offers.of(&digest(1)), offers.of(&digest(2))), (None, None));
        offers.clear();
        assert_eq!((offers.of(&digest(3)), offers.own()), (None, None));
    }
}
