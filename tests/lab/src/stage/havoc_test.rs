use super::*;
use std::path::Path;

/// Three freezes of one each, the third of them begun when the first two still hold theirs.
#[test]
fn who_is_held_already_is_picked_last() {
    let freeze = "[[faults]]\nkind = \"freeze\"\nat_s = 1\nnodes = [\"n\"]\npick = 1\nlasting_s = 5\n";
    let slow = freeze.replace("freeze\"", "slow\"\nshare = 0.5");
    let kill = freeze.replace("freeze", "kill");
    for (seed, other) in (0..40).flat_map(|seed| [(seed, freeze), (seed, &slow), (seed, &kill)]) {
        let text =
            format!("end_s = 10\nseed = {seed}\n[[nodes]]\nname = \"n\"\ncount = 2\n{freeze}{freeze}{other}{kill}");
        let mut havoc = Havoc::new(&Scenario::parse(&text, Path::new("a.toml")).unwrap());
        let at = Duration::from_secs(1);
        let mut picked = Vec::new();
        for n in 0..4 {
            assert!(matches!(havoc.next_due(at, 0), Some(Turn::Begin(m)) if m == n));
            picked.push(havoc.choose(n));
        }
        assert!(picked.iter().all(|nodes| nodes.len() == 1), "{picked:?}");
        assert_ne!(picked[0], picked[1], "seed {seed}");
        assert!(other != kill || picked[2] != picked[3], "seed {seed}");
        // The first's is free again.
        assert!(matches!(havoc.next_due(Duration::from_secs(6), 0), Some(Turn::End(0))));
        assert!(other == kill || havoc.choose(2) == picked[0], "seed {seed}");
    }
}
