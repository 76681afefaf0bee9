//! Injected bugs: each breaks one rule of the protocol at one place, to show that the simulator notices.
//!
//! `mutated!(Mutation::X)` stands in the condition that the bug weakens. In a build without the feature `mutations` it
//! is the constant `false`, and nothing of it is left. With the feature, a simulator's thread, or a program of the lab,
//! chooses the one bug that it runs.

macro_rules! mutations {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A bug, the place where it is injected, and the invariant that has to catch it, if one does. `docs/rules.md`
        /// states for each the rule that it breaks and the check that notices it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Mutation {
            $($(#[$doc])* $name,)*
        }

        impl Mutation {
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

mutations! {
    /// Ballot: a vote that was seen does not force its value. S1.
    IgnoreSeenVote,
    /// Quorum: any half of the voters is enough. S1, S2.
    HalfQuorum,
    /// Quorum: one voter more is counted than was heard. S1, S2.
    CountTwice,
    /// Ballot: the votes of two ballots are added up. S1, S2.
    MixBallots,
    /// Certificate: any number of signatures is a quorum. S2.
    AcceptThinCertificate,
    /// Simulated disk: a write is acknowledged before it is on the disk. S5.
    SyncLies,
    /// Simulated driver: a message that waits for a write is sent at once. S5.
    SendBeforeDurable,
    /// Engine: a vote is sent without writing it (`after: None`, no `Persist`). S5.
    SkipPersist,
    /// Engine: after a restart it votes as if its vote state were empty. S5.
    ForgetVoteState,
    /// Engine: a node whose disk is known to be old keeps its incarnation. S5.
    KeepOldIncarnation,
    /// Quorum: a voter may vote under any incarnation. S2.
    AnyIncarnation,
    /// Simulated driver: the outer step of a commit is applied twice. S15.
    ApplyTwice,
    /// Simulated driver: it adds up the vectors that it sent as they were before encoding, and applies that sum. S8.
    ApplyUnencoded,
    /// Simulated driver: parameters that come with a catch-up are one bit off. S3.
    FlipCaughtUp,
    /// Engine: a rebuilt record's `state_root` is not compared with the decided one. S3.
    SkipRootCheck,
    /// Engine: all contributions weigh the same, although they were trained on different numbers of tokens. S8.
    EqualWeights,
    /// Engine: `Commit` says `mine: true` although the record leaves the node's own contribution out. S7.
    ForgetLeftOut,
    /// Engine: `Commit` says `mine: false` although the record takes the node's own contribution in. S7.
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
    /// Succession: the cursor does not move past leased positions. S6.
    LeaseTwice,
    /// Engine: a voter that halts without a quorum says that it is no voter. L1.
    HaltApart,
    /// Engine: a voter that waits for another's word says in the middle of a vote that it votes. L1.
    MuteSettles,
    /// Engine: two processes that start on wiped disks with late clocks draw one name. S16.
    DrawAlike,
    /// Engine: of two lineages the one with more tokens wins, whichever of them kept the quorum. S2.
    FollowTokens,
    /// Engine: on the bare word of a peer that has shown nothing, a node goes to a head that others have shown. S26.
    AnySource,
    /// Path: a jump needs no votes of voters known so far. S2.
    JumpAnywhere,
    /// Path: a path may lead over other records than the reader's.
    OffTheChain,
    /// Path: a path may go past the reader's head without the signatures of that head's voters.
    LeapTheHead,
    /// Path: a run that begins from weights has a genesis of any state. `a_genesis_has_the_state_that_the_run_names`.
    AnyBeginning,
    /// Engine: two records at one place freeze the node, whoever has signed both. `an_old_key_freezes_nobody`.
    HeedFormerVoters,
    /// Engine: between two forks of one record tokens count before voters.
    /// `between_forks_of_one_record_the_voters_decide`.
    TokensBeforeVoters,
    /// Engine: results of one attempt are taken as those of the attempt that runs. S10.
    AnyAttempt,
    /// Engine: a message of another round or parent is believed. S16.
    AcceptStale,
    /// Engine: a message is believed without its signature. S18.
    AcceptUnsigned,
    /// Engine: a second READY of a member and round replaces the first. S18.
    AcceptSecondReady,
    /// Engine: a READY with a norm that is not finite is believed. S11.
    AcceptAnyNorm,
    /// Succession: a named node joins within the round, as a voter. S9.
    JoinAsVoter,
    /// Admission: every node that asks is admitted. S9.
    AdmitAnybody,
    /// Succession: the uses of a ticket are not counted. S9.
    UncountedTicket,
    /// Succession: there is no probation in an open run. S23.
    NoProbation,
    /// Succession: a member that has its probation behind it is no newcomer any more. S23.
    ForgetNewcomers,
    /// Succession: newcomers keep their votes when others leave. S23.
    KeepNewcomers,
    /// Succession: probation is over after its rounds, even without contributions. S23.
    IdleProbation,
    /// Succession: voters of a fork need no probation. S23.
    ForkOfNewcomers,
    /// Succession: the settings of the next round depend on the node that builds the record. S17.
    OwnSettings,
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
    /// Engine: a node that comes back from a fork keeps the vote state with which it voted there. Its statements there
    /// are further than the lineage that it returns to, so it contradicts nothing, but stays silent for as long: L1.
    ForkAndVote,
    /// Engine and succession: a lineage that is listed as merged is merged again. S7.
    MergeAgain,
    /// Update: a contribution weighs its tokens, however long it is. S11.
    NoNormClip,
    /// Difference: a merged difference is not cut to the limit of its length. S11.
    NoClip,
    /// Difference and succession: a merged difference weighs far more than it may. S11.
    WeighDifference,
    /// Quorum: the distinguished voter is the senior one of all voters, also of those that were absent.
    DistinguishedOfAll,
    /// Quorum: the distinguished voter is the one that came last.
    DistinguishedLast,
    /// Lease: the first span that fits is cut, not the smallest.
    FirstFit,
    /// Lease: any whole step of a span will do for a lease.
    SliverOfALease,
    /// Lease: a returned span is not joined with its neighbours.
    NeverJoin,
    /// Lease: a pool with too many spans gives up the longest.
    DropLongest,
    /// Lease: the steps of a slow member are rounded down.
    RoundStepsDown,
    /// Fast members are leased no more than the median one.
    NoFastLeases,
    /// Lease: of an even number of step times the median is the larger.
    SlowerMedian,
    /// Controller: the largest stated cost of a round counts, not the median. Unit test.
    BoastsCount,
    /// Controller: the number of inner steps changes for any gain. Unit test.
    RestlessSteps,
    /// Controller: the slowest line that any member states counts, not the median one. Unit test.
    SlanderCounts,
    /// Controller: what rounds with the former codec cost counts for the new one. S17.
    KeepCosts,
    /// Admission: an identity that is revoked is let in.
    RevokedStays,
    /// Admission: a ticket counts, whoever signed it.
    ForgedTicket,
    /// Admission: a ticket that is revoked admits.
    RevokedTicketAdmits,
    /// Admission: a ticket that is made out to one node admits another.
    AnyHolder,
    /// Admission: a ticket admits after its last round.
    ExpiredTicketAdmits,
    /// Admission: a ticket admits more nodes than it may.
    UsedTicketAdmits,
    /// Amendment: it counts, whoever signed it.
    AnybodyAmends,
    /// Amendment: any values will do.
    AmendAnyValue,
    /// Amendment: the newest one of a lineage counts once more. S30.
    AmendTwice,
    /// Amendment: in a run without a creator one voter's word is enough.
    AmendByFew,
    /// Engine: after the end of a run an amendment that does not lengthen it comes before one that does.
    AmendInVain,
    /// Engine: a node trains by an amendment that no record holds yet. S30.
    AmendEarly,
    /// Engine: a node trains by what its own operator hands in. S30.
    AmendAlone,
    /// Succession: statements of learners count.
    LearnersSpeak,
    /// Succession: half of the voters remove a member that they suspect.
    SuspectByHalf,
    /// Succession: a member that one COMMIT leaves out is removed.
    AbsentOnce,
    /// Succession: a member that COMMITs leave out stays.
    NeverRemoved,
    /// Succession: a Join under a lower incarnation makes a member a learner.
    OldIncarnationJoins,
    /// Succession: a member that says that it leaves stays.
    KeepLeaver,
    /// Succession: a member that was left out and does not ask is expected all the same.
    ExpectTheAbsent,
    /// Succession: learners that have not contributed vote.
    PromoteUntried,
    /// Succession: a flock may have more than 31 voters.
    TooManyVoters,
    /// Succession: a record lets in as many nodes as ask.
    ManyNewcomers,
    /// Succession: a ticket lets in two nodes by one record.
    TicketTwiceARecord,
    /// Succession: a seat takes over every uplink that its member states.
    EveryUplink,
    /// Succession: a new incarnation is leased as many steps as the former one was fast enough for.
    PaceOfAnother,
    /// Succession: a member that comes into a fork under another incarnation keeps its vote.
    ForkKeepsRole,
    /// Succession: a fork draws its samples from where the lineage that it leaves has stopped.
    ForkInPlace,
    /// Grid: voters stay in the row where they were.
    VotersAnywhere,
    /// Engine: a Head that was said before the newest one counts.
    OldBeatLives,
    /// Engine: no READY of others is passed on. A unit test.
    PassNothing,
    /// Engine: no neighbour is asked for READYs that are lacking. A unit test.
    WantNothing,
    /// Engine: words of others are heard from any peer. A unit test.
    AnybodyPassesOn,
    /// Engine: a flock of rows has as few attempts as one of one row. A unit test.
    ThreeAttempts,
    /// Engine: no Head of others is passed on. A unit test.
    PassNoHeads,
    /// Engine: a word of a single neighbour that it does not reach a member counts. A unit test.
    OneDownWord,
    /// Engine: a member whose Heads are lacking is gone, whatever its neighbours say. A unit test.
    NobodyVouches,
    /// Engine: a Start of an earlier attempt is passed on, too. A unit test.
    PassStartsAgain,
    /// Engine: a node that has missed records is not told so in a flock of rows. A unit test.
    LeaveBehind,
    /// Engine: a learner judges of learners that it does not hear. A unit test.
    LearnersJudgeAll,
    /// Engine: in a flock of rows the votes that decided a record are handed to nobody. A unit test.
    HandToNobody,
    /// Succession: a member that a record removes and lets in again keeps its cell.
    ReturnToCell,
    /// Grid: those without a cell take holes by their id.
    CellsById,
    /// Succession: contributions of more than a lease are averaged.
    OverLease,
    /// Succession: learners merge lineages.
    LearnersMerge,
    /// Succession: two members that merge one lineage are averaged together.
    RivalsTogether,
    /// Difference: of an even number the median norm is the larger.
    HigherMergeNorm,
    /// Record: tokens need not be the sum of what the contributors add.
    AnyTokens,
    /// Record: a SKIP may change members and leases.
    AnySkip,
    /// Ballot: estimates that differ are voted for.
    VoteUnequal,
    /// Ballot: a value that was voted for in a later ballot is copied like any other.
    CopyUnforced,
    /// Ballot: a voter that has seen a vote does not wait for the others.
    Impatient,
    /// Ballot: the worst of the usable values is chosen.
    WorstFirst,
    /// Ballot: one vote decides.
    DecideByOne,
    /// Engine: a voter names a result that it does not hold. S25.
    EstimateUnheld,
    /// Engine: a voter does not write the value that it names in a vote. S25.
    ForgetCandidate,
    /// Engine: a set of contributions need not hold a quorum. S24.
    ThinContributors,
    /// Engine: a voter signs another statement for a place at which it has signed one.
    SignAgain,
    /// Engine: after a restart a voter begins the vote under way anew.
    ForgetVotes,
    /// Engine: a certificate is made of the votes of several ballots.
    MixedProof,
    /// Engine: attempts go on without end.
    NeverSkip,
    /// Engine: any node is believed when it says that an attempt begins.
    AnyStarter,
    /// Engine: a member that hears of a later attempt stays in its own.
    StayBehind,
    /// Engine: a learner that holds a result, and may not name it, does not turn to a later attempt either.
    /// `a_learner_that_has_a_result_goes_along_with_a_later_attempt`.
    MutesStay,
    /// Engine: a member that has spoiled an attempt is kept out although nobody else is left to make a quorum with. L1.
    KeepSpoilersOut,
    /// Engine: a fetched result may be made of other READYs than its set names.
    AnyReadys,
    /// Engine: in a vote a voter waits as long for voters that are gone as for others. L1.
    AwaitTheGone,
    /// Engine: a member that does not speak under its seat's name contributes without saying so. L3.
    MuteContributor,
    /// Engine: a result of a former process is never computed anew. L1.
    TrustFormer,
    /// Engine: a voter drops the record that it has built in place of a fetched one. L1.
    AskTheDead,
    /// Engine: a contribution that a commit left out is dropped. S7.
    DropLeftOut,
    /// Certificate: votes of several ballots prove a record.
    ProofOfBallots,
    /// Certificate: votes for another record prove this one.
    ProofOfAnother,
    /// Certificate: a fork needs the statements of some of its members only.
    ForkOfSome,
    /// Evidence: READYs of two starts of a process contradict each other. S22.
    BlameRestarts,
    /// Engine: a node passes no evidence on.
    KeepEvidence,
    /// Engine: a restarted voter believes the first answer.
    OneWitness,
    /// Engine: statements that certificates show to have been signed are forgotten.
    ForgetCertified,
    /// Engine: a Witness about another incarnation is heeded.
    WitnessOfAnother,
    /// Engine: the READY of a former process stays. S18.
    KeepFormerReady,
    /// Engine: a READY of a former process is heard.
    ReadyOfFormer,
    /// Engine: statements of one node are believed from another.
    AnySender,
    /// Engine: a peer that has not greeted is heard.
    BeforeHello,
    /// Engine: a READY for any positions is heard.
    AnyLease,
    /// Engine: the samples of a READY may count more than the run allows.
    AnyWeight,
    /// Engine: a node that has contradicted itself is let in again.
    WelcomeEquivocators,
    /// Engine: a member without a quorum forks at once. S23.
    ForkEarly,
    /// Engine: a flock that is to wait forks. S23.
    ForkAnyway,
    /// Engine: one member's Fork makes others fork. S23.
    ForkOnAWord,
    /// Engine: two certified records at one place are not noticed.
    UnseenSplit,
    /// Update: of an even number of norms the smaller middle one is the reference.
    LowerReference,
    /// Update: norms are compared without the steps behind them.
    ClipTheEarly,
    /// Update: chunks of an owner that is gone all go to the first member that is left.
    HeirOfAll,
    /// Ring: the order goes the other way round.
    RingBackwards,
    /// Ring: hops are not compared.
    AnyRing,
    /// Outer step: the momentum is not applied ahead.
    PlainMomentum,
    /// Outer step: elements of kind mean are stepped as learned ones are.
    LearnMeans,
    /// Run: any document of tensors is a task's.
    AnyDocument,
    /// Outer step: AdamW decays parameters of one dimension, too.
    DecayOfGains,
    /// State: the number of vectors is not in the root.
    RootWithoutKinds,
    /// Codec: the lowest integer is read.
    LowestInteger,
    /// Codec: any scale is read.
    AnyScale,
    /// Wire: bytes after the end are passed over.
    BytesAfterTheEnd,
    /// Permutation: every epoch has the same order.
    OneKey,
    /// Update: it is always the first fragment's turn.
    FragmentsStill,
    /// Gossip: two members meet that have just met.
    MeetAgain,
    /// Engine: each learner hears of a decision from one voter only.
    OneHand,
    /// Engine: nobody tells learners of a decision.
    LearnersUntold,
    /// Engine: all members choose the same two of the statements that they could make.
    SayTheSame,
    /// Engine: an old sign of life ends a process.
    EchoEndsMe,
    /// Certificate: the FORK record that its members have signed is not compared with the one that is shown.
    ForkUnsignedRecord,
    /// Engine: a member finds no place when strangers have taken all. `a_member_finds_a_place_among_strangers`.
    MembersWait,
    /// Engine: messages of a stranger are looked at as if it were a member.
    HeedAnybody,
    /// Engine: evidence against anybody is kept and passed on.
    HoardEvidence,
    /// Wire: a signature is verified before the sender is compared with the peer.
    SignatureFirst,
    /// Engine: any witness is believed, whether it votes or not. `t21_strangers_bear_no_witness`.
    HeedStrangers,
    /// Engine: a vote state of another lineage is taken up after a start.
    /// `a_vote_state_of_another_lineage_is_not_taken_up`.
    ResumeAnyLineage,
    /// Engine: a member of a fork that was killed before it took its vote state along does not do so later.
    /// `a_forks_member_takes_its_vote_state_along_also_when_it_was_killed`.
    LoseForksVotes,
    /// Engine: an incarnation below that of the seat is kept.
    /// `a_late_clock_gives_no_name_below_that_of_the_seat`.
    LowIncarnation,
    /// Engine: a restarted voter that is a quorum by itself votes before another one has told it what it knows.
    /// `a_restarted_voter_of_two_needs_the_word_of_the_other`.
    VoteUnheard,
    /// Engine: the vote state of a copied folder is taken up. S5.
    TakeCopied,
    /// Engine: when a learner reports a voter, the voter is left out. `a_learners_report_takes_no_voter_out`.
    LearnersReport,
    /// Engine: a voter without a quorum follows a fork of its head that learners have made.
    /// `a_fork_without_a_voter_carries_no_voter_away`.
    FollowLearners,
    /// Engine: a node without a seat goes to a lineage of less right on the word of any one peer.
    /// `only_a_quorum_that_has_ended_elsewhere_calls_a_node_there`.
    FollowEnded,
    /// Engine: learners, too, state how long a reduction may take. `how_long_reductions_take_is_for_voters_to_say`.
    LearnersTime,
    /// Engine: peers that rank lower count towards the limit on claims about one lineage or record.
    StrangersFirst,
    /// Engine: any peer of another run ends a node that has met nobody of its own.
    AnyMismatch,
    /// Engine: revocations and members' matters take turns with the Joins of strangers.
    JoinsFirst,
    /// Engine: a node sleeps past the end of the pause after a claim that was not shown.
    SleepOn,
    /// Engine: the rounds of a run with tickets wait for anybody that says that it fetches the state.
    WaitForStrangers,
    /// Engine: rounds wait for newcomers as long as these move. `patience_with_newcomers_ends`; S29 notices it, too.
    EndlessPatience,
    /// Engine: a round does not wait for members that fetch the state.
    LeaveTheAdmitted,
    /// Engine: a learner leaves attempt 0 when members are late.
    LearnersJudge,
    /// Engine: one of two learners is left out for the word of one end of their link.
    HeedOneEnd,
    /// Engine: a node sleeps past the moment from which a connection has been down for too long. S28.
    Oversleep,
    /// Update: a finished sum is kept for members that it does not hold. S8.
    KeepSumsOfAnotherSet,
    /// Update: a finished sum is kept for members that offer something else by now.
    KeepSumsOfAnotherOffer,
    /// Update: finished sums are kept although they may hold a refused member's bytes.
    KeepSumsOfTheRefused,
    /// Ring: a partial sum is kept as if it were finished. S8.
    KeepPartialSums,
    /// Ring: a member passes on no finished sum that has come to it. S8.
    PassNoSumsOn,
    /// Lattice: the owner adds the sums of rows as they come. S8.
    RowsByArrival,
    /// Simulated driver: a member keeps the sum of its row over attempts. S8.
    RowSumKept,
    /// Lattice: an heir's column need not have a member in the owner's row. S8: the reduction hangs.
    HeirWithoutWay,
    /// Lattice: members of a set have other cells than in the record. S31.
    CellsOfTheSet,
    /// Engine: a node of a flock of several rows is to be connected with all. S31.
    ContactsAll,
    /// Engine: set after set is made that has no way to a row. L5 or a unit test.
    CutOffRows,
    /// Engine: a member that waits itself for a sum is blamed for it. A unit test.
    BlameRelays,
    /// Engine: a senior voter that starts again goes on alone although the other one of two has gone on without it.
    StayAlone,
}

#[cfg(not(any(test, feature = "mutations")))]
mod absent;
mod by_test;
#[cfg(any(test, feature = "mutations"))]
mod choice;
mod naming;

#[cfg(not(any(test, feature = "mutations")))]
pub use absent::{disturbance, everywhere};

#[cfg(not(any(test, feature = "mutations")))]
pub(crate) use absent::mutated;

#[cfg(any(test, feature = "mutations"))]
pub use choice::{chosen, disturbance, everywhere, with};

#[cfg(any(test, feature = "mutations"))]
pub(crate) use choice::mutated;

#[cfg(test)]
#[path = "mutation_test.rs"]
mod tests;
