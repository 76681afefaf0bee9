//! Planted bugs: each breaks one rule of the protocol at one place, to show that the simulator notices.
//!
//! `planted!(Plant::X)` stands in the condition that the bug weakens. In a build without the feature `plants` it is the
//! constant `false`, and nothing of it is left. With it, a thread of the simulator chooses the one bug that it runs, and a
//! program of the lab that all its threads run.

/// A bug, the place where it is planted, and the invariant that has to catch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Plant {
    /// Ballot: a vote that was seen does not force its value. S1.
    IgnoreSeenVote,
    /// Quorum: half of the voters is enough, whoever they are. S1, S2.
    HalfQuorum,
    /// Quorum: one voter more is counted than was heard. S1, S2.
    CountTwice,
    /// Ballot: the votes of two ballots are added up. S1, S2.
    MixBallots,
    /// Certificate: any number of signatures is a quorum. S2.
    AcceptThinCertificate,
    /// Simulated disk: a write is acknowledged before it is on the disk. S5.
    SyncLies,
    /// Simulated driver: what waits for a write is sent at once. S5.
    SendBeforeDurable,
    /// Engine: a vote is sent without writing it (`after: None`, no `Persist`). S5.
    SkipPersist,
    /// Engine: after a restart it votes as if its register were empty. S5.
    ForgetRegister,
    /// Engine: a node whose disk is known to be old keeps its incarnation. S5.
    KeepOldIncarnation,
    /// Quorum: who votes may do so under any incarnation. S2.
    AnyIncarnation,
    /// Simulated driver: the outer step of a commit is applied twice. S15.
    ApplyTwice,
    /// Simulated driver: adds up what it sent before it was encoded, and applies that. S8.
    ApplyUnencoded,
    /// Simulated driver: parameters that come with a catch-up are one bit off. S3.
    FlipCaughtUp,
    /// Engine: a rebuilt record's `state_root` is not compared with the decided one. S3.
    SkipRootCheck,
    /// Engine: all contributions weigh the same, whatever they were trained on. S8.
    EqualWeights,
    /// Engine: `Commit` says `mine: true` although the record leaves the own contribution out. S7.
    ForgetLeftOut,
    /// Engine: `Commit` says `mine: false` although the record takes it in. S7.
    KeepTakenIn,
    /// Engine: a gradient that a commit left out is offered again for another state. S8.
    StaleGradient,
    /// Engine: with fragments, a contribution that a commit left out is offered again for another fragment. S8.
    StaleFragment,
    /// Simulated driver: inner steps that were done ahead are kept although the record gives another lease. S6.
    KeepAhead,
    /// Simulated driver: a trainer's own parameters are kept although a contribution that is in them was dropped. S6.
    KeepOwn,
    /// Succession: a lease is not returned when its holder is removed. S6.
    KeepDeadLease,
    /// Succession: the cursor does not move past what was leased. S6.
    LeaseTwice,
    /// Engine: results of an attempt are taken for whatever attempt runs. S10.
    AnyAttempt,
    /// Engine: a message of another round or parent is believed. S16.
    AcceptStale,
    /// Engine: a message is believed without its signature. S18.
    AcceptUnsigned,
    /// Engine: a second READY of a member and round replaces the first. S18.
    AcceptSecondReady,
    /// Engine: a READY with a norm that is not finite is believed. S11.
    AcceptAnyNorm,
    /// Succession: whoever is named joins within the round, as a voter. S9.
    JoinAsVoter,
    /// Admission: whoever asks is admitted. S9.
    AdmitAnybody,
    /// Succession: the uses of a ticket are not counted. S9.
    UncountedTicket,
    /// Succession: the settings of the next round depend on the node that builds the record. S17.
    OwnKnobs,
    /// Engine: records behind the head are never dropped. S19.
    HoardHistory,
    /// Engine: an honest peer is refused as an equivocator when it repeats itself. S18.
    BlameRepeats,
    /// Evidence: two signatures of one statement are held to contradict each other. S22.
    BlameSignatures,
    /// Engine: deadlines never come. L1.
    NoDeadline,
    /// Engine: a catch-up that failed is not tried again. L4.
    NoRetry,
    /// Engine: panics at the first SKIP. S20.
    PanicAtSkip,
    /// Engine: something that differs between two runs enters a deadline. S21.
    Disturbed,
    /// Engine: who comes back from a fork keeps the register that speaks in it. What it signed there is further than the
    /// lineage that it returns to, so that it contradicts nothing, and says nothing for as long: L1.
    ForkAndVote,
    /// Engine and succession: a lineage that is listed as merged is merged again. S7.
    MergeAgain,
    /// Update: a contribution weighs its tokens, however long it is. S11.
    NoNormClip,
    /// Difference: what is merged is not cut to the limit of its length. S11.
    NoClip,
    /// Difference and succession: what is merged weighs far more than it may. S11.
    WeighDifference,
}

impl Plant {
    pub const ALL: &[Self] = &[
        Self::IgnoreSeenVote,
        Self::HalfQuorum,
        Self::CountTwice,
        Self::MixBallots,
        Self::AcceptThinCertificate,
        Self::SyncLies,
        Self::SendBeforeDurable,
        Self::SkipPersist,
        Self::ForgetRegister,
        Self::KeepOldIncarnation,
        Self::AnyIncarnation,
        Self::ApplyTwice,
        Self::ApplyUnencoded,
        Self::FlipCaughtUp,
        Self::SkipRootCheck,
        Self::EqualWeights,
        Self::ForgetLeftOut,
        Self::KeepTakenIn,
        Self::StaleGradient,
        Self::StaleFragment,
        Self::KeepAhead,
        Self::KeepOwn,
        Self::KeepDeadLease,
        Self::LeaseTwice,
        Self::AnyAttempt,
        Self::AcceptStale,
        Self::AcceptUnsigned,
        Self::AcceptSecondReady,
        Self::AcceptAnyNorm,
        Self::JoinAsVoter,
        Self::AdmitAnybody,
        Self::UncountedTicket,
        Self::OwnKnobs,
        Self::HoardHistory,
        Self::BlameRepeats,
        Self::BlameSignatures,
        Self::NoDeadline,
        Self::NoRetry,
        Self::PanicAtSkip,
        Self::Disturbed,
        Self::ForkAndVote,
        Self::MergeAgain,
        Self::NoNormClip,
        Self::NoClip,
        Self::WeighDifference,
    ];

    /// Its name in tables: `ignore-seen-vote`.
    pub fn name(self) -> String {
        let mut name = String::new();
        for c in format!("{self:?}").chars() {
            if c.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(c.to_ascii_lowercase());
        }
        name
    }
}

/// Whether the bug is planted in this thread.
#[cfg(any(test, feature = "plants"))]
macro_rules! planted {
    ($plant:expr) => {
        $crate::plant::chosen() == Some($plant)
    };
}

/// Whether the bug is planted: never, in this build.
#[cfg(not(any(test, feature = "plants")))]
macro_rules! planted {
    ($plant:expr) => {{
        let _: $crate::plant::Plant = $plant;
        false
    }};
}

pub(crate) use planted;

/// Nothing, in this build.
#[cfg(not(any(test, feature = "plants")))]
pub fn disturbance() -> u64 {
    0
}

#[cfg(any(test, feature = "plants"))]
mod choice {
    use super::Plant;
    use std::cell::Cell;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    thread_local! {
        // One for each thread, so that a batch can run several bugs side by side.
        static CHOSEN: Cell<Option<Plant>> = const { Cell::new(None) };
    }

    /// The bug of all threads that have none of their own.
    static EVERYWHERE: OnceLock<Plant> = OnceLock::new();

    /// The bug that this thread runs.
    pub fn chosen() -> Option<Plant> {
        CHOSEN.get().or_else(|| EVERYWHERE.get().copied())
    }

    /// Plants a bug in the whole process, for good. `false`: there is one already.
    pub fn everywhere(plant: Plant) -> bool {
        EVERYWHERE.set(plant).is_ok()
    }

    /// Something that is never the same twice.
    pub fn disturbance() -> u64 {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        COUNT.fetch_add(1, Ordering::Relaxed) % 100_000
    }

    /// Runs `body` with a bug, and without it again afterwards, also if it panics.
    pub fn with<T>(plant: Option<Plant>, body: impl FnOnce() -> T) -> T {
        struct Restore(Option<Plant>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CHOSEN.set(self.0);
            }
        }
        let _restore = Restore(CHOSEN.replace(plant));
        body()
    }
}

#[cfg(any(test, feature = "plants"))]
pub use choice::{chosen, disturbance, everywhere, with};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_has_a_name_and_is_planted_only_where_it_is_chosen() {
        let names: std::collections::BTreeSet<String> = Plant::ALL.iter().map(|plant| plant.name()).collect();
        assert_eq!(names.len(), Plant::ALL.len());
        assert!(names.contains("ignore-seen-vote"));
        assert!(!planted!(Plant::HalfQuorum));
        with(Some(Plant::HalfQuorum), || {
            assert!(planted!(Plant::HalfQuorum) && !planted!(Plant::CountTwice));
            with(None, || assert!(!planted!(Plant::HalfQuorum)));
        });
        assert!(!planted!(Plant::HalfQuorum));
    }
}
