use super::*;
use std::path::Path;

/// Three freezes of one node each; the third begins while the first two still hold theirs.
#[test]
fn a_node_that_a_fault_holds_already_is_picked_last() {
    let freeze = "[[faults]]\nkind = \"freeze\"\nat_s = 1\nnodes = [\"n\"]\npick = 1\nlasting_s = 5\n";
    let slow = freeze.replace("freeze\"", "slow\"\nshare = 0.5");
    let kill = freeze.replace("freeze", "kill");
    for (seed, other) in (0..40).flat_map(|seed| [(seed, freeze), (seed, &slow), (seed, &kill)]) {
        let text =
            format!("end_s = 10\nseed = {seed}\n[[nodes]]\nname = \"n\"\ncount = 2\n{freeze}{freeze}{other}{kill}");
        let mut agenda = Agenda::new(&Scenario::parse(&text, Path::new("a.toml")).unwrap());
        let at = Duration::from_secs(1);
        let mut picked = Vec::new();
        for n in 0..4 {
            assert!(matches!(agenda.next_due(at, 0), Some(Turn::Begin(m)) if m == n));
            picked.push(agenda.choose(n));
        }
        assert!(picked.iter().all(|nodes| nodes.len() == 1), "{picked:?}");
        assert_ne!(picked[0], picked[1], "seed {seed}");
        assert!(other != kill || picked[2] != picked[3], "seed {seed}");
        // The node of the first freeze is free again.
        assert!(matches!(agenda.next_due(Duration::from_secs(6), 0), Some(Turn::End(0))));
        assert!(other == kill || agenda.choose(2) == picked[0], "seed {seed}");
    }
}

#[test]
fn a_phase_counts_once_it_may_and_of_those_it_is_about() {
    let text = "end_s = 10\n[[nodes]]\nname = \"n\"\ncount = 2\n[[faults]]\nkind = \"kill\"\nnodes = [\"n-2\"]\nat_s = 3\n\
        at_phase = \"reducing\"\ninto_s = 0.5\n[[faults]]\nkind = \"cut\"\nbetween = [\"n\"]\nat_phase = \"ready\"\nlasting_s = 1\n";
    let mut agenda = Agenda::new(&Scenario::parse(text, Path::new("a.toml")).unwrap());
    let ms = Duration::from_millis;
    for (node, phase, at) in [(1, "reducing", 2900), (0, "reducing", 3000), (1, "training", 3100)] {
        agenda.entered(node, phase, ms(at));
        assert_eq!(agenda.next_due(ms(9000), 0), None, "{phase} of {node} at {at}");
    }
    agenda.entered(1, "reducing", ms(4000));
    agenda.entered(1, "reducing", ms(4400));
    assert_eq!(agenda.next_due(ms(4499), 0), None);
    assert_eq!(agenda.next_due(ms(4500), 0), Some(Turn::Begin(0)));
    agenda.entered(0, "ready", ms(4600));
    assert!(!agenda.is_over());
    assert_eq!(agenda.next_due(ms(4600), 0), Some(Turn::Begin(1)));
    assert_eq!(agenda.next_due(ms(5600), 0), Some(Turn::End(1)));
    assert!(agenda.is_over());
}
