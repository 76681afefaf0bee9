//! Injected bugs that no history of the simulator has to find: the named test fails with each.

use crate::{
    admission, apart, certificates, crossing, ended, identity, learners, lineages, newcomers, outsiders, relays,
    restart, strangers, two,
};
use starling_protocol::mutation::{self, Mutation};
use std::panic;

/// Each bug, and the test that notices it: its name in [`Mutation::by_test`] is the function's.
macro_rules! noticed {
    ($($mutation:ident: $module:ident::$test:ident),* $(,)?) => {
        &[$((Mutation::$mutation, stringify!($test), $module::$test as fn())),*]
    };
}

const NOTICED: &[(Mutation, &str, fn())] = noticed![
    PassNothing: relays::a_ready_of_a_neighbour_goes_on_along_the_other_way_once,
    WantNothing: relays::neighbours_are_asked_in_turn_for_readys_that_are_lacking_and_answer,
    AnybodyPassesOn: relays::words_of_others_come_from_neighbours_only_and_well_signed,
    ThreeAttempts: relays::a_flock_of_rows_has_eight_attempts_and_the_last_is_of_voters,
    PassNoHeads: relays::a_head_goes_to_those_that_do_not_hear_its_signer,
    OneDownWord: relays::a_member_is_down_when_most_of_its_neighbours_say_so,
    NobodyVouches: relays::a_member_that_its_neighbours_reach_is_not_silent,
    PassStartsAgain: relays::a_start_goes_on_along_the_row_of_a_learner_once,
    LeaveBehind: relays::a_peer_that_has_missed_records_is_told_of_the_head,
    LearnersJudgeAll: relays::learners_leave_it_to_voters_whether_a_learner_elsewhere_is_there,
    HandToNobody: relays::a_decision_goes_down_the_columns_and_along_the_rows,
    MutesStay: learners::a_learner_that_has_a_result_goes_along_with_a_later_attempt,
    ForkUnsignedRecord: certificates::a_fork_with_another_lease_is_no_split_and_freezes_nobody,
    MembersWait: outsiders::a_member_finds_a_place_among_strangers,
    HeedAnybody: outsiders::only_messages_of_a_stranger_that_lead_to_a_seat_are_looked_at,
    HoardEvidence: outsiders::evidence_is_held_against_members_only_and_heard_from_members_only,
    SignatureFirst: outsiders::the_sender_of_a_message_is_compared_before_its_signature_is_checked,
    HeedStrangers: restart::t21_strangers_bear_no_witness,
    ResumeAnyLineage: identity::a_vote_state_of_another_lineage_is_not_taken_up,
    LoseForksVotes: identity::a_forks_member_takes_its_vote_state_along_also_when_it_was_killed,
    LowIncarnation: identity::a_late_clock_gives_no_name_below_that_of_the_seat,
    VoteUnheard: identity::a_restarted_voter_of_two_needs_the_word_of_the_other,
    LearnersReport: learners::a_learners_report_takes_no_voter_out,
    FollowLearners: lineages::a_fork_without_a_voter_carries_no_voter_away,
    FollowEnded: ended::only_a_quorum_that_has_ended_elsewhere_calls_a_node_there,
    LearnersTime: learners::how_long_reductions_take_is_for_voters_to_say,
    StrangersFirst: lineages::slow_strangers_keep_no_claim_of_others_from_being_looked_at,
    AnyMismatch: strangers::a_stranger_of_another_run_ends_no_newcomer_that_has_others_to_ask,
    JoinsFirst: admission::strangers_that_ask_to_be_let_in_hold_up_nothing_else,
    SleepOn: lineages::a_claim_is_looked_at_again_when_its_pause_is_over,
    WaitForStrangers: newcomers::rounds_wait_for_newcomers_that_the_run_may_let_in,
    EndlessPatience: newcomers::patience_with_newcomers_ends,
    LeaveTheAdmitted: newcomers::a_round_waits_for_a_member_that_fetches_the_record_that_let_it_in,
    LearnersJudge: learners::a_learner_waits_in_attempt_0_until_a_voter_goes_on,
    HeedOneEnd: apart::one_of_two_learners_that_do_not_reach_each_other_sits_out,
    CutOffRows: crossing::a_live_set_does_without_rows_from_which_no_sum_would_come,
    BlameRelays: crossing::in_rows_the_end_of_a_chain_is_to_blame_and_no_relay,
    StayAlone: two::a_senior_voter_that_starts_again_joins_the_other_one_that_went_on,
];

#[test]
fn each_injected_bug_is_noticed_by_its_test() {
    let by_test = Mutation::ALL.iter().filter_map(|mutation| Some((*mutation, mutation.by_test()?)));
    let rows: Vec<(Mutation, &str)> = NOTICED.iter().map(|(mutation, name, _)| (*mutation, *name)).collect();
    assert_eq!(rows, by_test.collect::<Vec<_>>(), "the rows are those of the protocol");
    for (mutation, name, test) in NOTICED {
        test();
        let failed = panic::catch_unwind(|| mutation::with(Some(*mutation), test)).is_err();
        assert!(failed, "{name} passes with {}", mutation.name());
    }
}
