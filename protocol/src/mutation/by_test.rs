//! The bugs that a test of `tests/engine_edges` notices, each with that test.

use super::Mutation;

impl Mutation {
    /// The test of `tests/engine_edges` that notices the bug, if no history of the simulator has to.
    /// `tests/engine_edges/injected.rs` shows that each does.
    pub const fn by_test(self) -> Option<&'static str> {
        match self {
            Self::PassNothing => Some("a_ready_of_a_neighbour_goes_on_along_the_other_way_once"),
            Self::WantNothing => Some("neighbours_are_asked_in_turn_for_readys_that_are_lacking_and_answer"),
            Self::AnybodyPassesOn => Some("words_of_others_come_from_neighbours_only_and_well_signed"),
            Self::ThreeAttempts => Some("a_flock_of_rows_has_eight_attempts_and_the_last_is_of_voters"),
            Self::CutOffRows => Some("a_live_set_does_without_rows_from_which_no_sum_would_come"),
            Self::BlameRelays => Some("in_rows_the_end_of_a_chain_is_to_blame_and_no_relay"),
            Self::PassNoHeads => Some("a_head_goes_to_those_that_do_not_hear_its_signer"),
            Self::OneDownWord => Some("a_member_is_down_when_most_of_its_neighbours_say_so"),
            Self::NobodyVouches => Some("a_member_that_its_neighbours_reach_is_not_silent"),
            Self::PassStartsAgain => Some("a_start_goes_on_along_the_row_of_a_learner_once"),
            Self::LeaveBehind => Some("a_peer_that_has_missed_records_is_told_of_the_head"),
            Self::LearnersJudgeAll => Some("learners_leave_it_to_voters_whether_a_learner_elsewhere_is_there"),
            Self::HandToNobody => Some("a_decision_goes_down_the_columns_and_along_the_rows"),
            Self::MutesStay => Some("a_learner_that_has_a_result_goes_along_with_a_later_attempt"),
            Self::ForkUnsignedRecord => Some("a_fork_with_another_lease_is_no_split_and_freezes_nobody"),
            Self::MembersWait => Some("a_member_finds_a_place_among_strangers"),
            Self::HeedAnybody => Some("only_messages_of_a_stranger_that_lead_to_a_seat_are_looked_at"),
            Self::HoardEvidence => Some("evidence_is_held_against_members_only_and_heard_from_members_only"),
            Self::SignatureFirst => Some("the_sender_of_a_message_is_compared_before_its_signature_is_checked"),
            Self::HeedStrangers => Some("t21_strangers_bear_no_witness"),
            Self::ResumeAnyLineage => Some("a_vote_state_of_another_lineage_is_not_taken_up"),
            Self::LoseForksVotes => Some("a_forks_member_takes_its_vote_state_along_also_when_it_was_killed"),
            Self::LowIncarnation => Some("a_late_clock_gives_no_name_below_that_of_the_seat"),
            Self::VoteUnheard => Some("a_restarted_voter_of_two_needs_the_word_of_the_other"),
            Self::LearnersReport => Some("a_learners_report_takes_no_voter_out"),
            Self::FollowLearners => Some("a_fork_without_a_voter_carries_no_voter_away"),
            Self::FollowEnded => Some("only_a_quorum_that_has_ended_elsewhere_calls_a_node_there"),
            Self::LearnersTime => Some("how_long_reductions_take_is_for_voters_to_say"),
            Self::StrangersFirst => Some("slow_strangers_keep_no_claim_of_others_from_being_looked_at"),
            Self::AnyMismatch => Some("a_stranger_of_another_run_ends_no_newcomer_that_has_others_to_ask"),
            Self::JoinsFirst => Some("strangers_that_ask_to_be_let_in_hold_up_nothing_else"),
            Self::WaitForStrangers => Some("rounds_wait_for_newcomers_that_the_run_may_let_in"),
            Self::LeaveTheAdmitted => Some("a_round_waits_for_a_member_that_fetches_the_record_that_let_it_in"),
            Self::LearnersJudge => Some("a_learner_waits_in_attempt_0_until_a_voter_goes_on"),
            Self::HeedOneEnd => Some("one_of_two_learners_that_do_not_reach_each_other_sits_out"),
            Self::EndlessPatience => Some("patience_with_newcomers_ends"),
            Self::SleepOn => Some("a_claim_is_looked_at_again_when_its_pause_is_over"),
            Self::StayAlone => Some("a_senior_voter_that_starts_again_joins_the_other_one_that_went_on"),
            _ => None,
        }
    }
}
