//! Amendments that this node knows and no record of its lineage holds yet.
//!
//! Nobody keeps them on disk for others: whoever knows one states it in its READYs until a record holds it, or until the
//! lineage has another one of that number.

use crate::Digest;
use crate::amendment::{Amendment, Settings};
use crate::limits::PROPOSALS_MAX;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Amendments {
    /// By name: at most [`PROPOSALS_MAX`].
    known: BTreeMap<Digest, Amendment>,
    /// The one that this node's operator has handed in, or agreed to.
    agreed: Option<Digest>,
}

impl Amendments {
    /// Takes an amendment that could be the next; returns whether it is news and there was room. An operator that
    /// hands one in agrees to it.
    pub fn take(&mut self, name: Digest, amendment: Amendment, agrees: bool) -> bool {
        if agrees {
            self.agreed = Some(name);
        }
        // The operator's own takes a place of others.
        if self.known.len() >= PROPOSALS_MAX && agrees && !self.known.contains_key(&name) {
            self.known.pop_last();
        }
        self.known.len() < PROPOSALS_MAX && self.known.insert(name, amendment).is_none()
    }

    /// Those that this node may state in a READY of this round, by ascending name. `signed`: the run has a creator,
    /// whose word needs nobody's agreement.
    pub fn due(&self, signed: bool, round: u64) -> impl Iterator<Item = &Amendment> {
        let agreed = move |name: &Digest| signed || self.agreed == Some(*name);
        let due = self.known.iter().filter(move |(name, amendment)| agreed(name) && amendment.is_due(round));
        due.map(|(_, amendment)| amendment)
    }

    /// Those that wait for a record, by ascending name, and whether this node's operator agrees to them.
    pub fn known(&self) -> impl Iterator<Item = (&Digest, &Amendment, bool)> {
        self.known.iter().map(move |(name, amendment)| (name, amendment, self.agreed == Some(*name)))
    }

    /// Forgets those that cannot be the next any more.
    pub fn follow(&mut self, settings: &Settings) {
        self.known.retain(|_, amendment| amendment.follows(settings));
        self.agreed.take_if(|name| !self.known.contains_key(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amendment::Changes;

    fn rounds(rounds: u64) -> Amendment {
        Amendment::next(&Settings::default(), 0, Changes { rounds: Some(rounds), ..Changes::default() })
    }

    #[test]
    fn one_that_is_known_is_stated_when_it_is_due_and_its_operator_agrees() {
        let run = Digest([1; 32]);
        let (mut known, late) = (Amendments::default(), Amendment { from: 9, ..rounds(7) });
        assert!(known.take(late.name(&run), late.clone(), false) && !known.take(late.name(&run), late.clone(), false));
        assert_eq!((known.due(true, 7).next(), known.due(true, 8).next()), (None, Some(&late)));
        assert_eq!(known.due(false, 8).next(), None, "nobody here agrees");
        assert!(!known.take(late.name(&run), late.clone(), true));
        assert_eq!(known.due(false, 8).next(), Some(&late));
        known.follow(&Settings::default().after(&rounds(5), &run));
        assert_eq!((known.due(true, 8).next(), known.known().count()), (None, 0), "another one came first");
    }

    #[test]
    fn there_is_room_for_a_few_and_for_the_operators_own() {
        let (run, mut known) = (Digest([1; 32]), Amendments::default());
        for n in 0..2 * PROPOSALS_MAX as u64 {
            known.take(rounds(n + 1).name(&run), rounds(n + 1), false);
        }
        assert_eq!(known.known().count(), PROPOSALS_MAX);
        let own = rounds(99);
        assert!(known.take(own.name(&run), own.clone(), true));
        assert_eq!((known.known().count(), known.due(false, 1).next()), (PROPOSALS_MAX, Some(&own)));
    }
}
