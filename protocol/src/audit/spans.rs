//! A set of positions as disjoint spans.

use crate::record::Span;
use std::collections::BTreeMap;

/// Start and end of each span; none is empty, none touches another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans(BTreeMap<u64, u64>);

impl Spans {
    pub fn of(span: Span) -> Self {
        let mut spans = Self::default();
        spans.put(span);
        spans
    }

    /// The spans by ascending start.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.0.iter().map(|(start, end)| Span { start: *start, count: end - start })
    }

    /// Adds positions; those that are in the set already stay.
    pub fn put(&mut self, span: Span) {
        let (mut start, mut end) = (span.start, span.start.saturating_add(span.count));
        if start == end {
            return;
        }
        // Every span that begins at or before our end and ends at or behind our start becomes one with ours.
        while let Some((from, to)) = self.last_from(end).filter(|(_, to)| *to >= start) {
            self.0.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.insert(start, end);
    }

    /// Removes positions.
    ///
    /// # Errors
    /// The first stretch of them that is not in the set. The set then stays as it was.
    pub fn take(&mut self, span: Span) -> Result<(), Span> {
        let (start, end) = (span.start, span.start.saturating_add(span.count));
        if start == end {
            return Ok(());
        }
        // The spans do not touch: a stretch that is in the set lies in one of them.
        match self.last_from(start).filter(|(_, to)| *to > start) {
            Some((from, to)) if to >= end => {
                self.0.remove(&from);
                self.put(Span { start: from, count: start - from });
                self.put(Span { start: end, count: to - end });
                Ok(())
            }
            Some((_, to)) => Err(self.missing_from(to, end)),
            None => Err(self.missing_from(start, end)),
        }
    }

    /// The stretch from `start`, which is not in the set, to the next span or `end`.
    fn missing_from(&self, start: u64, end: u64) -> Span {
        let next = self.0.range(start..end).next().map_or(end, |(next, _)| *next);
        Span { start, count: next - start }
    }

    /// The last span that begins at or before a position.
    fn last_from(&self, position: u64) -> Option<(u64, u64)> {
        self.0.range(..=position).next_back().map(|(from, to)| (*from, *to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn span(start: u64, count: u64) -> Span {
        Span { start, count }
    }

    #[test]
    fn the_first_missing_span_is_told() {
        let mut spans = Spans::of(span(10, 10));
        spans.put(span(30, 10));
        assert_eq!(spans.take(span(15, 20)), Err(span(20, 10)));
        assert_eq!(spans.take(span(5, 10)), Err(span(5, 5)));
        assert_eq!(spans.take(span(35, 10)), Err(span(40, 5)));
        assert_eq!(spans.take(span(20, 5)), Err(span(20, 5)));
        assert_eq!(spans.take(span(u64::MAX, 9)), Ok(()), "beyond the last position there are none");
        assert_eq!(spans.iter().collect::<Vec<_>>(), [span(10, 10), span(30, 10)]);
        assert_eq!(spans.take(span(12, 3)), Ok(()));
        assert_eq!(spans.iter().collect::<Vec<_>>(), [span(10, 2), span(15, 5), span(30, 10)]);
    }

    proptest! {
        #[test]
        fn behaves_like_a_set_of_positions(ops in prop::collection::vec((any::<bool>(), 0u64..200, 0u64..40), 0..60)) {
            let (mut spans, mut model) = (Spans::default(), BTreeSet::new());
            for (put, start, count) in ops {
                let range: BTreeSet<u64> = (start..start + count).collect();
                if put {
                    spans.put(span(start, count));
                    model.extend(range);
                } else {
                    match spans.take(span(start, count)) {
                        Ok(()) => {
                            prop_assert!(range.is_subset(&model));
                            model.retain(|position| !range.contains(position));
                        }
                        Err(missing) => {
                            let first = range.difference(&model).next().copied();
                            prop_assert_eq!(Some(missing.start), first);
                            let all = missing.start..missing.start + missing.count;
                            prop_assert!(!all.is_empty() && all.clone().all(|p| range.contains(&p) && !model.contains(&p)));
                            prop_assert!(!range.contains(&all.end) || model.contains(&all.end), "the whole stretch");
                        }
                    }
                }
                let held: Vec<Span> = spans.iter().collect();
                prop_assert!(held.windows(2).all(|pair| pair[0].start + pair[0].count < pair[1].start));
                let flat: BTreeSet<u64> = held.iter().flat_map(|s| s.start..s.start + s.count).collect();
                prop_assert_eq!(&flat, &model);
            }
        }
    }
}
