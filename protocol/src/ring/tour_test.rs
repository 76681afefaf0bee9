use super::*;
use proptest::prelude::*;

fn random(positions: usize, seed: u64, most: usize) -> Costs {
    let mut draws = Draws(seed);
    let hops: Vec<u32> = (0..positions * positions).map(|_| draws.below(most) as u32).collect();
    Costs::new(positions, |a, b| hops[a * positions + b])
}

/// Two sites, every second position in each, 1 ms from each other inside and 80 ms across.
fn sites(positions: usize) -> Costs {
    Costs::new(positions, |a, b| if a % 2 == b % 2 { 1_000 } else { 80_000 })
}

/// The first of the best rings.
fn brute(costs: &Costs, ring: &mut Vec<usize>, best: &mut ((u32, u64), Vec<usize>)) {
    if ring.len() == costs.positions {
        if costs.of(ring) < best.0 {
            *best = (costs.of(ring), ring.clone());
        }
        return;
    }
    for next in 0..costs.positions {
        if !ring.contains(&next) {
            ring.push(next);
            brute(costs, ring, best);
            ring.pop();
        }
    }
}

proptest! {
    #[test]
    fn rings_are_permutations_and_never_worse_than_given(
        positions in 0usize..40, seed: u64, drawn: [u8; 32], most in 1usize..100_000,
    ) {
        let costs = random(positions, seed, most);
        let ring = best(&costs, &Digest(drawn));
        let mut sorted = ring.clone();
        sorted.sort_unstable();
        let given: Vec<usize> = (0..positions).collect();
        prop_assert_eq!(&sorted, &given);
        prop_assert!(costs.of(&ring) <= costs.of(&given));
        prop_assert_eq!(best(&costs, &Digest(drawn)), ring, "the same for everybody");
    }

    #[test]
    fn small_rings_are_the_best_there_are(positions in 1usize..=7, seed: u64, most in 1usize..30) {
        let costs = random(positions, seed, most);
        let mut least = ((u32::MAX, u64::MAX), Vec::new());
        brute(&costs, &mut vec![0], &mut least);
        prop_assert_eq!(best(&costs, &Digest([0; 32])), least.1, "of equal ones the first");
    }

    #[test]
    fn two_sites_are_crossed_twice(half in 2usize..=32, drawn: [u8; 32]) {
        let costs = sites(2 * half);
        let ring = best(&costs, &Digest(drawn));
        let across = (0..ring.len()).filter(|i| (ring[*i] + ring[(i + 1) % ring.len()]) % 2 == 1).count();
        prop_assert_eq!(across, 2, "{:?}", ring);
    }
}

/// The largest hop counts before the sum, even if a cheaper way to it makes a longer ring.
#[test]
fn the_largest_hop_counts_first() {
    let hops = [[0, 5, 9, 1], [1, 0, 5, 9], [9, 1, 0, 5], [5, 9, 1, 0]];
    let costs = Costs::new(4, |a, b| hops[a][b]);
    let ring = best(&costs, &Digest([0; 32]));
    assert_eq!(ring, [0, 3, 2, 1]);
    assert_eq!(costs.of(&ring), (1, 4));
    assert_eq!(costs.of(&[]), (0, 0));
}

/// A golden value for other implementations.
#[test]
fn a_large_ring_is_that_of_its_seed() {
    let costs = random(14, 7, 1000);
    let ring = best(&costs, &Digest([3; 32]));
    assert_eq!(ring, GOLDEN, "{:?}", costs.of(&ring));
}

const GOLDEN: [usize; 14] = [0, 10, 13, 1, 5, 4, 12, 7, 2, 6, 9, 11, 3, 8];
