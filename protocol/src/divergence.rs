//! The first place at which two chains differ, found by asking for few records. The search goes back from the head in
//! growing steps, and then halves the distance between the last place known to be the same and the first known to
//! differ.
//!
//! Chains are linked by digests, so from the first place at which they differ on they differ everywhere. A liar's
//! answers may lead the search anywhere: only [`crate::certificate::verify_split`] proves its finding.

use std::cmp::Ordering;

/// The finding at one place of the two chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    Same,
    Different,
    /// One of the two chains has no record there any more.
    Missing,
}

/// A search under way.
#[derive(Clone, Debug)]
pub struct FirstDifference {
    /// The highest place known to be the same.
    same: Option<u64>,
    /// The lowest place known to differ.
    differs: u64,
    /// No records are to be had below this place.
    oldest: u64,
    step: u64,
}

impl FirstDifference {
    /// A search in two chains that differ at `seq`; it does not look at records more than `depth` before that.
    pub fn before(seq: u64, depth: u64) -> Self {
        Self { same: None, differs: seq, oldest: seq.saturating_sub(depth), step: 1 }
    }

    /// The place to compare next; None when the search is over.
    pub fn next(&self) -> Option<u64> {
        match self.same {
            Some(same) => {
                let middle = same + (self.differs - same) / 2;
                (middle > same).then_some(middle)
            }
            None => (self.differs > self.oldest).then(|| self.differs.saturating_sub(self.step).max(self.oldest)),
        }
    }

    /// Notes the finding at the place that [`Self::next`] has named.
    pub fn note(&mut self, seq: u64, compared: Compared) {
        match (compared, seq.cmp(&self.differs)) {
            (_, Ordering::Greater | Ordering::Equal) => {}
            (Compared::Same, _) => self.same = Some(self.same.map_or(seq, |same| same.max(seq))),
            (Compared::Different, _) => {
                self.differs = seq.max(self.same.map_or(0, |same| same + 1));
                self.step = self.step.saturating_mul(2);
            }
            (Compared::Missing, _) => {
                self.oldest = seq + 1;
                self.step = 1;
                // If records are missing between the place that is the same and the one that differs, there is no
                // answer.
                self.differs = if self.same.is_some() { seq + 1 } else { self.differs };
                self.same = None;
            }
        }
    }

    /// The first place that differs, once the one before it is known to be the same.
    pub fn found(&self) -> Option<u64> {
        self.same.filter(|same| same + 1 == self.differs).map(|_| self.differs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches chains that differ from `first` on; one of them has records from `oldest` on only.
    fn search(head: u64, depth: u64, first: u64, oldest: u64) -> (Option<u64>, usize) {
        let mut search = FirstDifference::before(head, depth);
        let mut asked = 0;
        while let Some(seq) = search.next() {
            assert!(seq < head, "{seq}");
            let compared = match seq {
                seq if seq < oldest => Compared::Missing,
                seq if seq < first => Compared::Same,
                _ => Compared::Different,
            };
            search.note(seq, compared);
            asked += 1;
            assert!(asked <= 200, "it ends: {search:?}");
        }
        (search.found(), asked)
    }

    #[test]
    fn the_first_difference_is_found_by_asking_for_few() {
        for head in [1, 2, 3, 9, 100, 4_000] {
            for first in (1..=head).step_by(1 + head as usize / 60) {
                let (found, asked) = search(head, 4_096, first, 0);
                assert_eq!(found, Some(first), "of {head}");
                assert!(asked <= 26, "{asked} asked of {head}");
            }
        }
    }

    #[test]
    fn a_divergence_too_far_back_or_gone_is_not_found() {
        assert_eq!(search(5_000, 100, 200, 0).0, None);
        assert_eq!(search(5_000, 100, 4_950, 0).0, Some(4_950));
        for oldest in [1, 50, 80, 94, 95] {
            assert_eq!(search(100, 4_096, 95, oldest).0, (oldest < 95).then_some(95), "from {oldest}");
        }
        assert_eq!(search(100, 4_096, 0, 0).0, None, "not even the first is the same");
        assert_eq!(search(0, 4_096, 0, 0).0, None);
    }

    #[test]
    fn answers_that_fit_no_chain_end_the_search() {
        let any = [Compared::Same, Compared::Different, Compared::Missing];
        for seed in 0..2_000usize {
            let mut search = FirstDifference::before(60, 4_096);
            let mut state = seed;
            for _ in 0..500 {
                let Some(seq) = search.next() else { break };
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                search.note(seq, any[(state >> 33) % 3]);
            }
            assert_eq!(search.next(), None, "{search:?}");
        }
    }
}
