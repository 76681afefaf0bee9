//! The way to a head: the lineages that it has passed, and which of two heads has the better right to a run.
//!
//! A lineage is one chain: as long as voters do not lie, one of any two of its records is an ancestor of the other. So
//! the lineages that a head has passed through, with the last record in each, tell its descent. Two descents are
//! compared without any record between.
//!
//! The side that stayed longer in the last common lineage has kept a quorum of that lineage's voters. The other side
//! has left it by a fork, which needs nobody's consent. So the side that stayed wins, whatever the forks have trained.
//! Between two forks of one record ([`Relation::Siblings`]) the number of that record's voters that went along decides.
//! Tokens decide only between equal numbers: anybody with a key can make a fork alone and claim any amount of training.

use crate::Digest;
use crate::record::Record;

/// A lineage on the way to a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    pub lineage: Digest,
    /// Number of the last record of the way that lies in this lineage.
    pub last: u64,
    /// Voters of the record before it that went along when the lineage was forked off; 0 if it was founded, or if that
    /// is unknown.
    pub voters: usize,
}

/// The lineages on the way to a head, oldest first. Empty if there is no head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ancestry(Vec<Reach>);

/// The relation of another head to the own one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The other head is this head, or one before it.
    Behind,
    /// The other head is beyond this head, which is on its chain.
    Ahead,
    /// The other chain holds this head, and left the lineage there by a fork.
    ForksOff,
    /// This chain holds that head, and left the lineage there by a fork.
    ForkedFrom,
    /// This chain has left a lineage by a fork, and the other one went on in that lineage: the other one has kept the
    /// quorum.
    Kept,
    /// The other chain has left a lineage by a fork, and this one went on in that lineage.
    Left,
    /// Both are forks of one record.
    Siblings,
    /// The two have no lineage in common.
    Strangers,
}

impl FromIterator<Reach> for Ancestry {
    fn from_iter<T: IntoIterator<Item = Reach>>(reaches: T) -> Self {
        Self(reaches.into_iter().collect())
    }
}

impl Ancestry {
    /// The way along these records, each after the one before it. Records may be left out between two of one lineage,
    /// but not next to a FORK.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let (mut ancestry, mut before) = (Self::default(), None);
        for record in records {
            ancestry.follow(before, record);
            before = Some(record);
        }
        ancestry
    }

    /// Goes on from `before`, the last record so far, to a later record of the chain. For a FORK, `before` is its
    /// parent.
    pub fn follow(&mut self, before: Option<&Record>, record: &Record) {
        match self.0.last_mut() {
            Some(reach) if reach.lineage == record.lineage => reach.last = record.seq,
            _ => {
                let voters = before.map_or(0, |parent| went_along(parent, record));
                self.0.push(Reach { lineage: record.lineage, last: record.seq, voters });
            }
        }
    }

    /// The way to the record of this number on the same chain.
    pub fn until(&self, seq: u64) -> Self {
        let begins = |at: usize| at.checked_sub(1).and_then(|before| self.0.get(before)).map_or(0, |r| r.last + 1);
        let passed = self.0.iter().enumerate().take_while(|(at, _)| begins(*at) <= seq);
        Self(passed.map(|(_, reach)| Reach { last: reach.last.min(seq), ..*reach }).collect())
    }

    /// Lineages, oldest first, and the last record of the way in each.
    pub fn reaches(&self) -> &[Reach] {
        &self.0
    }

    /// The lineage of the head.
    pub fn lineage(&self) -> Option<Digest> {
        self.0.last().map(|reach| reach.lineage)
    }

    /// The number of the head.
    pub fn seq(&self) -> Option<u64> {
        self.0.last().map(|reach| reach.last)
    }

    /// The oldest lineage that is known.
    pub fn root(&self) -> Option<Digest> {
        self.0.first().map(|reach| reach.lineage)
    }

    /// Whether the way has led through this lineage.
    pub fn has(&self, lineage: &Digest) -> bool {
        self.0.iter().any(|reach| reach.lineage == *lineage)
    }

    /// The relation of `other` to this one. Either may lack its oldest lineages.
    pub fn relation(&self, other: &Self) -> Relation {
        let Some((mine, theirs)) = self.aligned(other) else { return Relation::Strangers };
        for (at, reach) in mine.iter().enumerate() {
            let Some(their) = theirs.get(at) else { return Relation::ForkedFrom };
            let (mine_ends, theirs_end) = (at + 1 == mine.len(), at + 1 == theirs.len());
            if reach.lineage != their.lineage {
                return Relation::Siblings;
            }
            match reach.last.cmp(&their.last) {
                std::cmp::Ordering::Less if mine_ends => return Relation::Ahead,
                std::cmp::Ordering::Less => return Relation::Kept,
                std::cmp::Ordering::Greater if theirs_end => return Relation::Behind,
                std::cmp::Ordering::Greater => return Relation::Left,
                std::cmp::Ordering::Equal if mine_ends && theirs_end => return Relation::Behind,
                std::cmp::Ordering::Equal if mine_ends => return Relation::ForksOff,
                std::cmp::Ordering::Equal => {}
            }
        }
        Relation::Strangers
    }

    /// For two forks of one record ([`Relation::Siblings`]): the numbers of that record's voters that went along this
    /// one, and along the other.
    pub fn went_along(&self, other: &Self) -> (usize, usize) {
        let pairs = self.aligned(other).into_iter().flat_map(|(mine, theirs)| mine.iter().zip(theirs));
        let mut parted = pairs.filter(|(mine, theirs)| mine.lineage != theirs.lineage);
        parted.next().map_or((0, 0), |(mine, theirs)| (mine.voters, theirs.voters))
    }

    /// Both ways, from the oldest lineage on that both know.
    fn aligned<'a>(&'a self, other: &'a Self) -> Option<(&'a [Reach], &'a [Reach])> {
        let place = |in_other: &[Reach], of: &Reach| in_other.iter().position(|reach| reach.lineage == of.lineage);
        let (mine, theirs) = (self.0.as_slice(), other.0.as_slice());
        if let Some(at) = place(theirs, mine.first()?) {
            return Some((mine, theirs.get(at..)?));
        }
        let at = place(mine, theirs.first()?)?;
        Some((mine.get(at..)?, theirs))
    }
}

/// Voters of this record that are members of the fork after it, each under its incarnation.
fn went_along(parent: &Record, fork: &Record) -> usize {
    let went = |incarnation, id| fork.member(id).is_some_and(|member| member.incarnation == incarnation);
    parent.voters().filter(|voter| went(voter.incarnation, &voter.id)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordKind;

    type Way = [(u8, u64)];

    fn way(reaches: &Way) -> Ancestry {
        reaches.iter().map(|(fill, last)| Reach { lineage: Digest([*fill; 32]), last: *last, voters: 0 }).collect()
    }

    #[test]
    fn the_side_that_stayed_in_the_common_lineage_has_kept_the_quorum() {
        let cases: [(&Way, &Way, Relation, Relation); 9] = [
            (&[(1, 5)], &[(1, 5)], Relation::Behind, Relation::Behind),
            (&[(1, 5)], &[(1, 9)], Relation::Ahead, Relation::Behind),
            (&[(1, 5)], &[(1, 9), (2, 40)], Relation::Ahead, Relation::Behind),
            (&[(1, 5)], &[(1, 5), (2, 40)], Relation::ForksOff, Relation::ForkedFrom),
            (&[(1, 5)], &[(1, 4), (2, 900)], Relation::Left, Relation::Kept),
            (&[(1, 5), (2, 8)], &[(1, 5), (3, 900)], Relation::Siblings, Relation::Siblings),
            (&[(1, 5), (2, 8)], &[(1, 4), (3, 900)], Relation::Left, Relation::Kept),
            (&[(1, 5), (2, 8), (4, 9)], &[(1, 5), (2, 9)], Relation::Kept, Relation::Left),
            (&[(1, 5)], &[(9, 500)], Relation::Strangers, Relation::Strangers),
        ];
        for (mine, theirs, there, back) in cases {
            let (mine, theirs) = (way(mine), way(theirs));
            assert_eq!(mine.relation(&theirs), there, "{mine:?} {theirs:?}");
            assert_eq!(theirs.relation(&mine), back, "{theirs:?} {mine:?}");
        }
        assert_eq!(Ancestry::default().relation(&way(&[(1, 1)])), Relation::Strangers);
    }

    #[test]
    fn oldest_lineages_may_be_unknown() {
        let (whole, late) = (way(&[(1, 5), (2, 8), (3, 20)]), way(&[(2, 8), (4, 30)]));
        assert_eq!(late.relation(&whole), Relation::Siblings);
        assert_eq!(whole.relation(&late), Relation::Siblings);
        assert_eq!(way(&[(3, 22)]).relation(&whole), Relation::Behind);
        assert_eq!(whole.relation(&way(&[(3, 22)])), Relation::Ahead);
    }

    #[test]
    fn a_way_is_cut_at_any_record() {
        let whole = way(&[(1, 5), (2, 8), (3, 20)]);
        assert_eq!(whole.until(20), whole);
        assert_eq!(whole.until(99), whole);
        assert_eq!(whole.until(9), way(&[(1, 5), (2, 8), (3, 9)]));
        assert_eq!(whole.until(8), way(&[(1, 5), (2, 8)]));
        assert_eq!(whole.until(6), way(&[(1, 5), (2, 6)]));
        assert_eq!(whole.until(0), way(&[(1, 0)]));
        assert_eq!((whole.root(), whole.seq()), (Some(Digest([1; 32])), Some(20)));
        assert_eq!(whole.lineage(), Some(Digest([3; 32])));
    }

    #[test]
    fn records_are_followed_through_forks() {
        let mut record = crate::wire::sample::record();
        record.next.members = (0..3).map(|i| crate::wire::sample::member(i, 240 * u64::from(i))).collect();
        let mut records = Vec::new();
        for (lineage, seq, kind) in [
            (1, 0, RecordKind::Genesis),
            (1, 7, RecordKind::Commit),
            (2, 8, RecordKind::Fork),
            (2, 9, RecordKind::Skip),
        ] {
            (record.lineage, record.seq, record.kind) = (Digest([lineage; 32]), seq, kind);
            records.push(record.clone());
        }
        let (followed, other) = (Ancestry::of(&records), way(&[(1, 7), (3, 9)]));
        let places = |way: &Ancestry| way.reaches().iter().map(|r| (r.lineage, r.last)).collect::<Vec<_>>();
        assert_eq!(places(&followed), places(&way(&[(1, 7), (2, 9)])));
        assert_eq!((followed.went_along(&other), other.went_along(&followed)), ((3, 0), (0, 3)), "all went along");
        // A member under another incarnation is not the one that voted, and learners have no say.
        records[2].next.members[0].incarnation += 1;
        records[1].next.members[1].role = crate::record::Role::Learner;
        assert_eq!(Ancestry::of(&records).went_along(&other), (1, 0));
    }
}
