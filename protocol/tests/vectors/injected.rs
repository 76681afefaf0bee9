//! Injected bugs that change the files' content: a program with one of them would be noticed by its file alone.

use crate::json::Json;
use crate::{ballot, control, grid, leases, membership, outer, owners, quorum, records, reduction, ring, session};
use starling_protocol::mutation::{self, Mutation};
use std::panic;

/// Makes a file anew.
type Subject = fn() -> Json;

/// Each file, and bugs that it shows.
const SHOWN: &[(Subject, &[Mutation])] = &[
    (
        records::subject,
        &[
            Mutation::AbsentOnce,
            Mutation::EveryUplink,
            Mutation::ExpectTheAbsent,
            Mutation::ForkInPlace,
            Mutation::ForkKeepsRole,
            Mutation::JoinAsVoter,
            Mutation::KeepDeadLease,
            Mutation::KeepLeaver,
            Mutation::LearnersSpeak,
            Mutation::NeverRemoved,
            Mutation::OverLease,
            Mutation::UncountedTicket,
        ],
    ),
    (
        membership::subject,
        &[
            Mutation::ForgetNewcomers,
            Mutation::ForkOfNewcomers,
            Mutation::IdleProbation,
            Mutation::KeepNewcomers,
            Mutation::ManyNewcomers,
            Mutation::NoProbation,
        ],
    ),
    (grid::subject, &[Mutation::CellsById, Mutation::VotersAnywhere]),
    (control::subject, &[Mutation::BoastsCount]),
    (
        leases::subject,
        &[
            Mutation::DropLongest,
            Mutation::FirstFit,
            Mutation::LeaseTwice,
            Mutation::NeverJoin,
            Mutation::OneKey,
            Mutation::RoundStepsDown,
            Mutation::NoFastLeases,
            Mutation::SliverOfALease,
            Mutation::SlowerMedian,
        ],
    ),
    (
        quorum::subject,
        &[Mutation::CountTwice, Mutation::DistinguishedLast, Mutation::DistinguishedOfAll, Mutation::HalfQuorum],
    ),
    (ring::subject, &[Mutation::AnyRing, Mutation::RingBackwards]),
    (owners::subject, &[Mutation::HeirOfAll]),
    (reduction::subject, &[Mutation::ClipTheEarly, Mutation::LowerReference, Mutation::NoNormClip]),
    (
        outer::subject,
        &[
            Mutation::DecayOfGains,
            Mutation::FragmentsStill,
            Mutation::LearnMeans,
            Mutation::PlainMomentum,
            Mutation::RootWithoutKinds,
        ],
    ),
    (ballot::subject, &[Mutation::DecideByOne, Mutation::IgnoreSeenVote, Mutation::VoteUnequal, Mutation::WorstFirst]),
    (session::subject, &[Mutation::JoinAsVoter, Mutation::LeaseTwice, Mutation::PlainMomentum]),
];

#[test]
fn files_tell_injected_bugs_apart() {
    let mut missed = Vec::new();
    for (subject, bugs) in SHOWN {
        let right = subject().text();
        for bug in *bugs {
            let wrong = panic::catch_unwind(|| mutation::with(Some(*bug), || subject().text()));
            if wrong.is_ok_and(|wrong| wrong == right) {
                missed.push(bug.name());
            }
        }
    }
    assert_eq!(missed, Vec::<&str>::new(), "nothing differs with these");
}
