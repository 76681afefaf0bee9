use super::*;
use proptest::prelude::*;

/// Lets all members send and receive as their plans say, a frame at a time; returns the sums that each has at the end.
/// A sum counts whom it holds, and those that are kept hold one member more, who is gone.
fn play(finished: &[Vec<bool>], chunks: usize) -> Vec<Vec<u64>> {
    let members = finished.len();
    let plans: Vec<Plan> = (0..members).map(|position| Plan::new(position, chunks, finished)).collect();
    let kept = (1 << (members + 1)) - 1;
    let has = |position: usize, chunk: usize| finished[position].get(chunk) == Some(&true);
    let start = |position: usize| (0..chunks).map(|chunk| if has(position, chunk) { kept } else { 0 }).collect();
    let mut board: Vec<Vec<u64>> = (0..members).map(start).collect();
    let (mut sent, mut received) = (vec![0; members], vec![0; members]);
    loop {
        let mut moved = false;
        for from in 0..members {
            let Some(frame) = plans[from].leaving.get(sent[from]).filter(|frame| frame.after <= received[from]) else {
                continue;
            };
            let (to, mine) = ((from + 1) % members, 1 << from);
            let value = if frame.begins { mine } else { board[from][frame.chunk] };
            sent[from] += 1;
            let due = plans[to].arriving[received[to]];
            assert_eq!((due.kind, due.chunk), (frame.kind, frame.chunk), "both ends expect the same frame");
            let reached = plans[to].hops_with(received[to]);
            match due.kind {
                FrameKind::Contrib => board[to][due.chunk] = value + (1 << to),
                _ => {
                    assert!(!plans[to].has_unsent_partial(due.chunk, sent[to]), "its partial sum has left");
                    board[to][due.chunk] = value;
                }
            }
            received[to] += 1;
            assert!(plans[to].hops_with(received[to]) >= reached, "hops only grow");
            moved = true;
        }
        if !moved {
            break;
        }
    }
    for (position, plan) in plans.iter().enumerate() {
        assert_eq!(sent[position], plan.leaving.len(), "{position} waits for ever");
        assert_eq!(received[position], plan.arriving.len());
    }
    board
}

/// Every sum that anybody has is passed on to those that lack it, the others are made anew of all members, and nobody
/// waits for ever, however the sums are spread.
fn assert_all_end_alike(finished: &[Vec<bool>], chunks: usize) {
    let (members, ends) = (finished.len(), play(finished, chunks));
    for chunk in 0..chunks {
        let holders = finished.iter().filter(|sums| sums.get(chunk) == Some(&true)).count();
        let expected = if holders > 0 { (1 << (members + 1)) - 1 } else { (1u64 << members) - 1 };
        for (position, sums) in ends.iter().enumerate() {
            // A member alone makes its sums without any frame.
            assert!(sums[chunk] == expected || members == 1, "chunk {chunk} at {position}: {:b}", sums[chunk]);
        }
        let plans = (0..members).map(|position| Plan::new(position, chunks, finished));
        let frames: usize = plans.map(|plan| plan.leaving.iter().filter(|frame| frame.chunk == chunk).count()).sum();
        let least = if holders > 0 { members - holders } else { 2 * (members - 1) };
        assert_eq!(frames, least, "chunk {chunk}");
    }
}

proptest! {
    #[test]
    fn any_spread_of_sums_ends_with_all_of_them(
        members in 1usize..=6,
        chunks in 0usize..20,
        bits in prop::collection::vec(prop::bool::weighted(0.2), 6 * 20),
    ) {
        let finished: Vec<Vec<bool>> = (0..members).map(|p| bits[p * chunks..(p + 1) * chunks].to_vec()).collect();
        assert_all_end_alike(&finished, chunks);
    }
}

#[test]
fn without_any_sum_the_plan_is_the_schedule() {
    for members in 1..=6 {
        for chunks in [0, 1, members, 3 * members + 2] {
            assert_all_end_alike(&vec![Vec::new(); members], chunks);
            let ring = Ring::new(members, chunks);
            for position in 0..members {
                let plan = Plan::new(position, chunks, &vec![Vec::new(); members]);
                let frames = ring.hops(position).flat_map(|hop| ring.segment(hop.send));
                assert!(plan.leaving.iter().map(|frame| frame.chunk).eq(frames));
                assert_eq!(plan.hops, 2 * (members - 1));
            }
        }
    }
}

/// Every member has only sums that the next one needs and passes on last: an order by segments would stand still.
#[test]
fn sums_that_are_far_from_where_they_are_made_arrive() {
    for members in 2..=6 {
        for away in 0..members {
            let has = |position: usize| (0..members).map(|chunk| (chunk + away) % members == position).collect();
            assert_all_end_alike(&(0..members).map(has).collect::<Vec<_>>(), members);
        }
    }
}
