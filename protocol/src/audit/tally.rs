//! The fate of the positions of each epoch.

use crate::record::Span;
use std::collections::BTreeMap;
use std::fmt;

/// Epochs that a summary lists one by one; older ones are summed up.
const EPOCHS_MAX: usize = 256;

/// The findings of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Sequence numbers of the first and the last record.
    pub first_seq: u64,
    pub last_seq: u64,
    /// Whether the first record was a genesis record. If not, the chain was pruned, and nothing is known of the
    /// positions used before its first record.
    pub whole: bool,
    /// Records taken, and how many of them were forks.
    pub records: u64,
    pub forks: u64,
    /// The newest epochs that the chain touched, ascending.
    pub epochs: Vec<Epoch>,
    /// All epochs before these.
    pub older: Counts,
}

/// The fate of the positions of one epoch. The fields but the first sum to the epoch's length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    pub epoch: u64,
    pub counts: Counts,
    /// Never leased.
    pub left: u64,
    /// Positions of which the chain says nothing: they lie before its first record, or a fork left them to the other
    /// side.
    pub outside: u64,
}

/// Positions, counted by their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In a committed contribution.
    pub used: u64,
    /// Leased out now.
    pub leased: u64,
    /// In the pool, waiting to be leased again.
    pub free: u64,
    /// Leased, not used, and dropped from the pool.
    pub given_up: u64,
}

impl Counts {
    fn sum(&self) -> u64 {
        let Self { used, leased, free, given_up } = self;
        used.saturating_add(*leased).saturating_add(*free).saturating_add(*given_up)
    }

    fn add(&mut self, other: &Self) {
        self.used = self.used.saturating_add(other.used);
        self.leased = self.leased.saturating_add(other.leased);
        self.free = self.free.saturating_add(other.free);
        self.given_up = self.given_up.saturating_add(other.given_up);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.whole { "from the beginning" } else { "pruned: nothing is known of what was before" };
        writeln!(
            f,
            "records {} to {} ({whole}), {} forks: no sample used twice",
            self.first_seq, self.last_seq, self.forks
        )?;
        if self.older != Counts::default() {
            let Counts { used, leased, free, given_up } = self.older;
            writeln!(f, "older epochs: {used} used, {leased} leased, {free} waiting, {given_up} given up")?;
        }
        for Epoch { epoch, counts, left, outside } in &self.epochs {
            let Counts { used, leased, free, given_up } = counts;
            write!(f, "epoch {epoch}: {used} used, {leased} leased, {free} waiting, {given_up} given up, {left} left")?;
            writeln!(f, ", {outside} outside this chain")?;
        }
        Ok(())
    }
}

/// Counts by epoch.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// Sequences an epoch.
    len: u64,
    epochs: BTreeMap<u64, Counts>,
    /// The epochs below this are counted together.
    told_from: u64,
    older: Counts,
}

impl Tally {
    pub fn new(len: u64) -> Self {
        Self { len, epochs: BTreeMap::new(), told_from: 0, older: Counts::default() }
    }

    /// Counts the positions of a span in one field.
    pub fn add(&mut self, span: Span, field: impl Fn(&mut Counts) -> &mut u64) {
        let raise = |counts: &mut Counts, by: u64| *field(counts) = field(counts).saturating_add(by);
        let (mut start, end) = (span.start, span.start.saturating_add(span.count));
        if start == end {
            return;
        }
        let last = (end - 1) / self.len;
        // Stepping through a span of very many short epochs would take too long.
        if last - start / self.len >= EPOCHS_MAX as u64 {
            self.fold_below(last - EPOCHS_MAX as u64 + 1);
        }
        let told = self.told_from.saturating_mul(self.len).clamp(start, end);
        raise(&mut self.older, told - start);
        start = told;
        while start < end {
            let epoch = start / self.len;
            let until = (epoch + 1).saturating_mul(self.len).min(end);
            raise(self.epochs.entry(epoch).or_default(), until - start);
            start = until;
        }
        while self.epochs.len() > EPOCHS_MAX
            && let Some((epoch, _)) = self.epochs.first_key_value()
        {
            self.fold_below(epoch + 1);
        }
    }

    /// Counts the epochs below `epoch` together from now on.
    fn fold_below(&mut self, epoch: u64) {
        let kept = self.epochs.split_off(&epoch);
        for counts in std::mem::replace(&mut self.epochs, kept).values() {
            self.older.add(counts);
        }
        self.told_from = self.told_from.max(epoch);
    }

    /// The epochs, and the sum of those that are not listed one by one, given the first position that was never leased.
    pub fn into_epochs(mut self, cursor: u64) -> (Vec<Epoch>, Counts) {
        let (at, inside) = (cursor / self.len, cursor % self.len);
        if inside > 0 && at >= self.told_from {
            self.epochs.entry(at).or_default();
        }
        let told = self.epochs.iter().map(|(epoch, counts)| {
            let left = if *epoch == at { self.len - inside } else { 0 };
            let outside = self.len.saturating_sub(counts.sum()).saturating_sub(left);
            Epoch { epoch: *epoch, counts: *counts, left, outside }
        });
        (told.collect(), self.older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(tally: &mut Tally, start: u64, count: u64) {
        tally.add(Span { start, count }, |counts| &mut counts.used);
    }

    #[test]
    fn spans_are_cut_at_the_ends_of_epochs() {
        let mut tally = Tally::new(10);
        used(&mut tally, 5, 20);
        used(&mut tally, 7, 0);
        let (epochs, older) = tally.into_epochs(25);
        let counts: Vec<_> = epochs.iter().map(|e| (e.epoch, e.counts.used, e.left, e.outside)).collect();
        assert_eq!(counts, [(0, 5, 0, 5), (1, 10, 0, 0), (2, 5, 5, 0)]);
        assert_eq!(older, Counts::default());
    }

    #[test]
    fn many_short_epochs_take_little_memory_and_no_position_is_lost() {
        let mut tally = Tally::new(1);
        used(&mut tally, 3, 1 << 42);
        let (epochs, older) = tally.clone().into_epochs((1 << 42) + 3);
        assert_eq!(epochs.len(), EPOCHS_MAX);
        assert_eq!(older.used + epochs.iter().map(|e| e.counts.used).sum::<u64>(), 1 << 42);
        used(&mut tally, 0, 3);
        used(&mut tally, u64::MAX - 9, 9);
        let (epochs, older) = tally.into_epochs(u64::MAX);
        assert!(epochs.len() <= EPOCHS_MAX);
        assert_eq!(older.used + epochs.iter().map(|e| e.counts.used).sum::<u64>(), (1 << 42) + 3 + 9);
    }
}
