//! What becomes of a flock of two when one of them is lost: the senior voter goes on at once, and so does the only one;
//! the other node follows the run's policy (`docs/protocol/4-agreement.md` §4.1, `docs/protocol/7-merging.md` §7.1).

/// The part of this node in a flock of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Both vote, and this node has been a member for longer.
    Senior,
    /// Both vote, and the other one has been a member for longer.
    Junior,
    /// The other one learns, such as a newcomer on probation.
    OnlyVoter,
    /// The other one is the only voter.
    Learner,
}

impl Standing {
    /// The part of a node that `votes` or learns, and is the `distinguished` voter or not. None in other flocks.
    pub fn of((voters, members): (usize, usize), votes: bool, distinguished: bool) -> Option<Self> {
        match (voters, votes) {
            (2, true) if distinguished => Some(Self::Senior),
            (2, true) => Some(Self::Junior),
            (1, true) if members == 2 => Some(Self::OnlyVoter),
            (1, false) if members == 2 => Some(Self::Learner),
            _ => None,
        }
    }

    /// Whether this node decides without the other one.
    fn decides(self) -> bool {
        matches!(self, Self::Senior | Self::OnlyVoter)
    }

    fn sentence(self) -> &'static str {
        match self {
            Self::Senior => "of two voters this node is the senior one",
            Self::Junior => "of two voters this node is the one that came later",
            Self::OnlyVoter => "the other one of two does not vote yet, so this node decides alone",
            Self::Learner => "this node does not vote yet, so the other one of two decides alone",
        }
    }
}

/// Two members that are both here, one of which is this node.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The other one, as people see it.
    pub other: &'a str,
    pub standing: Standing,
    /// The run's policy after a quorum loss: `fork`, `wait` or `halt`, and the seconds before `fork` takes effect.
    pub policy: &'a str,
    pub grace_s: f64,
}

impl Pair<'_> {
    /// The fates of this node and of the other one, each without the other.
    fn fates(&self) -> (String, String) {
        let (decides, cut_off) = ("goes on at once".to_owned(), cut_off(self.policy, self.grace_s));
        if self.standing.decides() { (decides, cut_off) } else { (cut_off, decides) }
    }

    /// Parts of a line: first what happens without the other one.
    pub fn parts(&self) -> Vec<String> {
        let (mine, theirs) = self.fates();
        vec![format!("{}: this node {mine}", self.other), format!("this node: the other one {theirs}")]
    }

    /// The same as a sentence without an end.
    pub fn sentence(&self) -> String {
        let (mine, theirs) = self.fates();
        format!(
            "{}: if {} is lost, this node {mine}; if this node is lost, the other one {theirs} (partition.minority = \
             \"{}\")",
            self.standing.sentence(),
            self.other,
            self.policy
        )
    }
}

/// The fate of the one that cannot decide alone.
fn cut_off(policy: &str, grace_s: f64) -> String {
    match policy {
        "fork" => format!("goes on by itself after {grace_s:.0} s"),
        "wait" => "waits until both are here".to_owned(),
        _ => "stops until both are here".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::Standing::{Junior, Learner, OnlyVoter, Senior};
    use super::*;

    fn pair(standing: Standing, policy: &str) -> Pair<'_> {
        Pair { other: "1a2b3c4d (attic)", standing, policy, grace_s: 60.0 }
    }

    #[test]
    fn a_node_has_its_part_in_a_flock_of_two_only() {
        let of = Standing::of;
        assert_eq!((of((2, 2), true, true), of((2, 2), true, false)), (Some(Senior), Some(Junior)));
        assert_eq!((of((2, 9), true, true), of((2, 9), false, false)), (Some(Senior), None), "two voters and learners");
        assert_eq!((of((1, 2), true, true), of((1, 2), false, false)), (Some(OnlyVoter), Some(Learner)));
        assert_eq!((of((1, 1), true, true), of((1, 3), true, true), of((3, 3), true, true)), (None, None, None));
    }

    #[test]
    fn each_of_two_voters_says_what_happens_without_the_other_and_when() {
        assert_eq!(
            pair(Senior, "fork").parts(),
            ["1a2b3c4d (attic): this node goes on at once", "this node: the other one goes on by itself after 60 s"]
        );
        assert_eq!(
            pair(Junior, "fork").parts(),
            ["1a2b3c4d (attic): this node goes on by itself after 60 s", "this node: the other one goes on at once"]
        );
        assert_eq!(
            pair(Junior, "wait").sentence(),
            "of two voters this node is the one that came later: if 1a2b3c4d (attic) is lost, this node waits until \
             both are here; if this node is lost, the other one goes on at once (partition.minority = \"wait\")"
        );
        assert!(pair(Senior, "halt").sentence().contains("the senior one"), "{}", pair(Senior, "halt").sentence());
        assert!(pair(Senior, "halt").parts()[1].ends_with("the other one stops until both are here"));
    }

    /// A newcomer to an open run learns for some rounds: in that time the founder decides alone.
    #[test]
    fn while_one_of_two_learns_the_other_decides_alone() {
        assert_eq!(
            pair(OnlyVoter, "fork").parts(),
            ["1a2b3c4d (attic): this node goes on at once", "this node: the other one goes on by itself after 60 s"]
        );
        assert_eq!(
            pair(Learner, "wait").sentence(),
            "this node does not vote yet, so the other one of two decides alone: if 1a2b3c4d (attic) is lost, this \
             node waits until both are here; if this node is lost, the other one goes on at once (partition.minority = \
             \"wait\")"
        );
        assert!(pair(OnlyVoter, "fork").sentence().starts_with("the other one of two does not vote yet, so this node"));
    }
}
