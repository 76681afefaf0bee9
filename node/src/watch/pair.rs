//! What becomes of a flock of two voters when one of them is lost: the senior one goes on at once, and the other one by
//! the run's policy (`docs/protocol/4-agreement.md` §4.1, `docs/protocol/7-merging.md` §7.1).

/// Two voters that are both here, one of which is this node.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The other one, as people see it.
    pub other: &'a str,
    /// This node is the one that has been a member for longer.
    pub senior: bool,
    /// The run's policy after a quorum loss: `fork`, `wait` or `halt`, and the seconds before `fork` takes effect.
    pub policy: &'a str,
    pub grace_s: f64,
}

impl Pair<'_> {
    /// The fates of this node and of the other one, each without the other.
    fn fates(&self) -> (String, String) {
        let (senior, junior) = ("goes on at once".to_owned(), junior(self.policy, self.grace_s));
        if self.senior { (senior, junior) } else { (junior, senior) }
    }

    /// Parts of a line: first what happens without the other voter.
    pub fn parts(&self) -> Vec<String> {
        let (mine, theirs) = self.fates();
        vec![format!("{}: this node {mine}", self.other), format!("this node: the other one {theirs}")]
    }

    /// The same as a sentence without an end.
    pub fn sentence(&self) -> String {
        let (mine, theirs) = self.fates();
        let place = if self.senior { "the senior one" } else { "the one that came later" };
        format!(
            "of two voters this node is {place}: if {} is lost, this node {mine}; if this node is lost, the other one \
             {theirs} (partition.minority = \"{}\")",
            self.other, self.policy
        )
    }
}

/// The fate of the voter that came later.
fn junior(policy: &str, grace_s: f64) -> String {
    match policy {
        "fork" => format!("goes on by itself after {grace_s:.0} s"),
        "wait" => "waits until both are here".to_owned(),
        _ => "stops until both are here".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(senior: bool, policy: &str) -> Pair<'_> {
        Pair { other: "1a2b3c4d (attic)", senior, policy, grace_s: 60.0 }
    }

    #[test]
    fn each_of_two_voters_says_what_happens_without_the_other_and_when() {
        assert_eq!(
            pair(true, "fork").parts(),
            ["1a2b3c4d (attic): this node goes on at once", "this node: the other one goes on by itself after 60 s"]
        );
        assert_eq!(
            pair(false, "fork").parts(),
            ["1a2b3c4d (attic): this node goes on by itself after 60 s", "this node: the other one goes on at once"]
        );
        assert_eq!(
            pair(false, "wait").sentence(),
            "of two voters this node is the one that came later: if 1a2b3c4d (attic) is lost, this node waits until \
             both are here; if this node is lost, the other one goes on at once (partition.minority = \"wait\")"
        );
        assert!(pair(true, "halt").sentence().contains("the senior one"), "{}", pair(true, "halt").sentence());
        assert!(pair(true, "halt").parts()[1].ends_with("the other one stops until both are here"));
    }
}
