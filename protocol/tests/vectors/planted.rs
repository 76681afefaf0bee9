//! Planted bugs that change what the files hold: a program with one of them would be told apart by its file alone.

use crate::json::Json;
use crate::{ballot, leases, membership, outer, owners, quorum, records, reduction, ring, session};
use starling_protocol::plant::{self, Plant};
use std::panic;

/// What makes a file anew.
type Subject = fn() -> Json;

/// Each file, and bugs that it shows.
const SHOWN: &[(Subject, &[Plant])] = &[
    (
        records::subject,
        &[
            Plant::AbsentOnce,
            Plant::EveryUplink,
            Plant::ExpectTheAbsent,
            Plant::ForkInPlace,
            Plant::ForkKeepsRole,
            Plant::JoinAsVoter,
            Plant::KeepDeadLease,
            Plant::KeepLeaver,
            Plant::LearnersSpeak,
            Plant::ManyNewcomers,
            Plant::NeverRemoved,
            Plant::OverLease,
            Plant::UncountedTicket,
        ],
    ),
    (
        membership::subject,
        &[
            Plant::ForgetNewcomers,
            Plant::ForkOfNewcomers,
            Plant::IdleProbation,
            Plant::KeepNewcomers,
            Plant::NoProbation,
        ],
    ),
    (
        leases::subject,
        &[
            Plant::DropLongest,
            Plant::FirstFit,
            Plant::LeaseTwice,
            Plant::NeverJoin,
            Plant::OneKey,
            Plant::RoundStepsDown,
            Plant::SliverOfALease,
            Plant::SlowerMedian,
        ],
    ),
    (quorum::subject, &[Plant::CountTwice, Plant::DistinguishedLast, Plant::DistinguishedOfAll, Plant::HalfQuorum]),
    (ring::subject, &[Plant::AnyRing, Plant::RingBackwards]),
    (owners::subject, &[Plant::HeirOfAll]),
    (reduction::subject, &[Plant::ClipTheEarly, Plant::LowerReference, Plant::NoNormClip]),
    (outer::subject, &[Plant::DecayOfGains, Plant::FragmentsStill, Plant::PlainMomentum, Plant::RootWithoutKinds]),
    (ballot::subject, &[Plant::DecideByOne, Plant::IgnoreSeenVote, Plant::VoteUnequal, Plant::WorstFirst]),
    (session::subject, &[Plant::JoinAsVoter, Plant::LeaseTwice, Plant::PlainMomentum]),
];

#[test]
fn files_tell_planted_bugs_apart() {
    let mut missed = Vec::new();
    for (subject, bugs) in SHOWN {
        let right = subject().text();
        for bug in *bugs {
            let wrong = panic::catch_unwind(|| plant::with(Some(*bug), || subject().text()));
            if wrong.is_ok_and(|wrong| wrong == right) {
                missed.push(bug.name());
            }
        }
    }
    assert_eq!(missed, Vec::<&str>::new(), "nothing differs with these");
}
