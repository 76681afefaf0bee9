//! Random lineages: every record is valid, and no position is used twice.

use super::*;
use crate::audit::{Audit, Counts, Epoch};
use crate::limits::FREE_SPANS_MAX;
use crate::message::{Ready, Statement, StatementKind};
use crate::wire::sample::{self, digest};
use proptest::prelude::*;

/// Sequences of an epoch: a few rounds of a small flock.
const EPOCH: u64 = 1_000;

/// Choices of a history; the same numbers make the same history.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn id(number: u64) -> NodeId {
    NodeId([number as u8; 32])
}

/// One lineage as it grows, and the positions that its records used.
struct Lineage {
    record: Record,
    /// Ascending, disjoint.
    used: Vec<Span>,
    /// The first of its positions.
    from: u64,
    /// An audit that finds the same by other means; its chain goes on through forks.
    audit: Audit,
    /// Positions used in all of the chain.
    committed: u64,
    /// Whether its pool was ever as full as it may be: then positions may have been given up.
    full: bool,
}

impl Lineage {
    fn found() -> Self {
        let spec = sample::spec();
        let record = genesis(spec.digest(), &spec, (id(0), 1), 7, digest(9)).unwrap();
        let mut audit = Audit::new(EPOCH);
        audit.push(&record).unwrap();
        Self { record, used: vec![], from: 0, full: false, audit, committed: 0 }
    }

    fn step(&mut self, choices: &mut Choices) -> Result<(), TestCaseError> {
        let parent = self.record.clone();
        let digest = parent.digest();
        let record = match choices.below(24) {
            0 | 1 => skip(&parent, digest).unwrap(),
            2 => {
                let members = parent.next.members.iter().filter(|_| choices.one_in(2));
                let members: Vec<(NodeId, u64)> = members.map(|m| (m.id, m.incarnation)).collect();
                let Some(record) = fork(&parent, digest, &sample::spec(), &members) else { return Ok(()) };
                prop_assert!(record.next.members.iter().all(|m| m.lease.start >= parent.cursor));
                (self.from, self.full) = (fork_cursor(parent.cursor, &record.lineage), false);
                self.used.clear();
                record
            }
            _ => {
                let contributions = self.contributions(choices);
                let (update, root) = (sample::digest(3), sample::digest(choices.below(250) as u8));
                commit(&parent, digest, &sample::spec(), &contributions, update, root).unwrap()
            }
        };
        let checked = record.validate_shape().and_then(|()| record.validate_after(&parent));
        prop_assert_eq!(checked, Ok(()), "{:?}", record);
        self.check_members(&parent, &record)?;
        prop_assert_eq!(self.audit.push(&record), Ok(()));
        self.record = record;
        self.check_positions()?;
        self.check_audit()
    }

    fn contributions(&self, choices: &mut Choices) -> Vec<SignedReady> {
        let parent = &self.record;
        let someone = choices.below(parent.next.members.len() as u64) as usize;
        let mut contributions = Vec::new();
        for (at, member) in parent.next.members.iter().enumerate() {
            if at != someone && choices.one_in(5) {
                continue;
            }
            let partly = choices.one_in(3);
            let samples = if partly { 1 + choices.below(member.lease.count) } else { member.lease.count };
            let mut statements: Vec<Statement> = (0..choices.below(3)).map(|_| statement(parent, choices)).collect();
            statements.sort_unstable();
            statements.dedup();
            let may = member.role == Role::Voter && parent.next.merge_tokens > 0;
            let lineage = digest((3 * choices.below(30) + at as u64 % 3) as u8);
            let free = |lineage: &Digest| {
                let rival = |c: &SignedReady| c.ready.merges == Some(*lineage);
                !parent.has_merged(lineage) && !contributions.iter().any(rival)
            };
            let merges = Some(lineage).filter(|lineage| may && choices.one_in(9) && free(lineage));
            let mut ready = Ready {
                start: member.lease.start,
                samples,
                tokens: samples * 128,
                steps: (samples / 8).clamp(1, parent.next.inner_steps.into()) as u32,
                statements,
                leave: choices.one_in(12),
                merges,
                merged_tokens: merges.map_or(0, |_| 1 + choices.below(parent.next.merge_tokens)),
                rtts: vec![],
                ..sample::ready()
            };
            ready.measured.step_us = [0, 40, 90, 100, 130, 500, 90_000][choices.below(7) as usize];
            contributions.push(SignedReady { member: member.id, ready, digest: digest(at as u8), bytes: vec![] });
        }
        contributions
    }

    /// Checks the members that may have come and gone.
    fn check_members(&self, parent: &Record, record: &Record) -> Result<(), TestCaseError> {
        if record.kind != RecordKind::Commit {
            return Ok(());
        }
        let new = record.members().filter(|id| parent.member(id).is_none()).count();
        prop_assert!(new <= admitted_max(parent.voters().count()));
        prop_assert!(!expected(record).is_empty());
        let before = |member: &Member| parent.member(&member.id).filter(|m| m.incarnation == member.incarnation);
        let tried =
            |member: &Member| before(member).is_some() && record.contributors.iter().any(|c| c.member == member.id);
        for member in &record.next.members {
            prop_assert!(member.absent < 2);
            if member.absent > 0 {
                let kept = before(member).is_some_and(|before| before.lease == member.lease);
                prop_assert!(kept && !tried(member), "{member:?}");
            } else if !tried(member) {
                let untried = member.role == Role::Learner || !record.voters().any(tried);
                prop_assert!(member.expected && untried, "let in: {member:?}");
            }
            let revoked = record.revoked.binary_search(&Digest(member.id.0)).is_ok();
            prop_assert!(!revoked || record.next.members.len() <= record.contributors.len(), "{member:?}");
        }
        Ok(())
    }

    /// Checks that the record's own positions are used now, once; and that used, leased and free ones are apart and all
    /// there is.
    fn check_positions(&mut self) -> Result<(), TestCaseError> {
        let record = &self.record;
        for contributor in &record.contributors {
            self.used.push(Span { start: contributor.start, count: contributor.samples });
        }
        self.used.sort_unstable();
        let held = record.next.members.iter().map(|member| member.lease).chain(record.free.clone());
        let mut all: Vec<Span> = held.chain(self.used.clone()).collect();
        all.sort_unstable();
        let apart = all.windows(2).all(|pair| pair[0].end().unwrap() <= pair[1].start);
        prop_assert!(apart && all[0].start >= self.from, "{:?}", all);
        self.full |= record.free.len() == FREE_SPANS_MAX;
        let sum: u64 = all.iter().map(|span| span.count).sum();
        let range = record.cursor - self.from;
        prop_assert!(if self.full { sum <= range } else { sum == range }, "{sum} of {range}: {record:?}");
        Ok(())
    }

    /// Checks that the audit counts what the records say.
    fn check_audit(&mut self) -> Result<(), TestCaseError> {
        let record = &self.record;
        self.committed += record.contributors.iter().map(|contributor| contributor.samples).sum::<u64>();
        let summary = self.audit.summary();
        let counts = || summary.epochs.iter().map(|epoch| epoch.counts).chain([summary.older]);
        prop_assert_eq!(counts().map(|c| c.used).sum::<u64>(), self.committed);
        let leased: u64 = record.next.members.iter().map(|member| member.lease.count).sum();
        prop_assert_eq!(counts().map(|c| c.leased).sum::<u64>(), leased);
        let free: u64 = record.free.iter().map(|span| span.count).sum();
        prop_assert_eq!(counts().map(|c| c.free).sum::<u64>(), free);
        for Epoch { epoch, counts: Counts { used, leased, free, given_up }, left, outside } in &summary.epochs {
            prop_assert_eq!(used + leased + free + given_up + left + outside, EPOCH, "epoch {}", epoch);
            prop_assert!(*outside == 0 || summary.forks > 0, "epoch {epoch}: {summary}");
        }
        Ok(())
    }
}

fn statement(parent: &Record, choices: &mut Choices) -> Statement {
    let about = id(choices.below(40));
    let joins = Statement { kind: StatementKind::Joins, id: about, incarnation: 0, grant: Digest::default() };
    match choices.below(20) {
        0..=4 => Statement { kind: StatementKind::Suspect, ..joins },
        5 if choices.one_in(6) => Statement { kind: StatementKind::Revoked, ..joins },
        _ => {
            let now = parent.member(&about).map_or(1, |member| member.incarnation);
            let incarnation = now.saturating_add(choices.below(4)).saturating_sub(1);
            let grant = if choices.one_in(3) { digest(choices.below(80) as u8) } else { Digest::default() };
            Statement { incarnation, grant, ..joins }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_record_is_valid_and_no_position_is_used_twice(seed: u64, steps in 1usize..120) {
        let (mut choices, mut lineage) = (Choices(seed), Lineage::found());
        for _ in 0..steps {
            lineage.step(&mut choices)?;
        }
    }

    #[test]
    fn the_same_parent_and_contributions_make_the_same_bytes(seed: u64, steps in 1usize..40) {
        let build = || {
            let (mut choices, mut lineage) = (Choices(seed), Lineage::found());
            for _ in 0..steps {
                lineage.step(&mut choices)?;
            }
            Ok::<_, TestCaseError>(crate::wire::encode_record(&lineage.record))
        };
        prop_assert_eq!(build()?, build()?);
    }
}
