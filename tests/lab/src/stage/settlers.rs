//! Nodes that settle a round, and those that are late with its commit.

use serde_json::Value;

/// The rounds of one machine's node.
#[derive(Clone, Copy, Default)]
struct Rounds {
    /// The round that it settles, if it does.
    settles: Option<u64>,
    committed: Option<u64>,
}

/// The rounds of all machines' nodes, by what these have reported.
pub struct Settlers(Vec<Rounds>);

impl Settlers {
    pub fn new(machines: usize) -> Self {
        Self(vec![Rounds::default(); machines])
    }

    /// Notes an event of a machine's node.
    pub fn heard(&mut self, machine: usize, event: &Value) {
        let rounds = &mut self.0[machine];
        let round = event["round"].as_u64();
        match event["event"].as_str() {
            Some("started") => rounds.settles = None,
            Some("phase") => rounds.settles = round.filter(|_| event["phase"] == "settling"),
            Some("committed") => {
                rounds.committed = round;
                rounds.settles = rounds.settles.filter(|settles| Some(*settles) > round);
            }
            _ => {}
        }
    }

    /// Notes that a machine has no process any more.
    pub fn gone(&mut self, machine: usize) {
        self.0[machine].settles = None;
    }

    /// The machines whose nodes settle a round that another node has committed.
    pub fn committing(&self) -> impl Iterator<Item = usize> {
        let newest = self.0.iter().filter_map(|rounds| rounds.committed).max();
        let late = move |(machine, rounds): (usize, &Rounds)| {
            rounds.settles.filter(|settles| newest.is_some_and(|newest| *settles <= newest)).map(|_| machine)
        };
        self.0.iter().enumerate().filter_map(late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn phase(phase: &str, round: u64) -> Value {
        json!({"event": "phase", "phase": phase, "round": round})
    }

    fn committed(round: u64) -> Value {
        json!({"event": "committed", "round": round})
    }

    #[test]
    fn a_node_commits_while_it_settles_what_another_has_committed() {
        let mut settlers = Settlers::new(3);
        let late = |settlers: &Settlers| settlers.committing().collect::<Vec<_>>();
        for machine in 0..3 {
            settlers.heard(machine, &committed(4));
            settlers.heard(machine, &phase("reducing", 5));
        }
        settlers.heard(0, &phase("settling", 5));
        settlers.heard(1, &phase("settling", 5));
        assert_eq!(late(&settlers), [0usize; 0], "nobody has committed round 5");
        settlers.heard(0, &committed(5));
        assert_eq!(late(&settlers), [1], "node 2 still reduces");
        settlers.heard(2, &phase("settling", 5));
        assert_eq!(late(&settlers), [1, 2]);
        settlers.heard(1, &committed(5));
        settlers.heard(2, &phase("reducing", 5));
        assert_eq!(late(&settlers), [0usize; 0], "one has committed, and one tries again");
    }

    #[test]
    fn a_node_without_a_process_commits_nothing() {
        for ends in [true, false] {
            let mut settlers = Settlers::new(2);
            settlers.heard(0, &phase("settling", 1));
            settlers.heard(1, &committed(1));
            assert_eq!(settlers.committing().collect::<Vec<_>>(), [0]);
            if ends {
                settlers.gone(0);
            } else {
                settlers.heard(0, &json!({"event": "started"}));
            }
            assert_eq!(settlers.committing().count(), 0);
        }
    }
}
