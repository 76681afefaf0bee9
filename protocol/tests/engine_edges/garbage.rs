//! Any bytes and any messages, in any order. [`crate::watch`] has the rules for every answer.

use crate::bench::{Bench, id, refusals};
use crate::nonsense::{Words, nonsense, upheaval};
use proptest::prelude::*;
use starling_protocol::engine::io::{Input, Output};
use starling_protocol::wire;
use std::collections::BTreeSet;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Any bytes that come in are refused by name, and nothing else happens.
    #[test]
    fn garbage_is_survived(
        junk in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..20),
        flips in prop::collection::vec((0usize..12, any::<prop::sample::Index>(), 1u8..), 1..20),
    ) {
        let mut bench = Bench::flock(3);
        let before = bench.still();
        for bytes in junk {
            let outputs = bench.feed(Input::Message { from: id(2), bytes });
            prop_assert_eq!(refusals(&outputs).len(), 1);
            bench.reconnect(2);
        }
        for (which, at, flip) in flips {
            let message = nonsense(&bench, 2, &mut Words::new(which as u64));
            let mut bytes = bench.seal(2, &message);
            *at.get_mut(&mut bytes[..]) ^= flip;
            let outputs = bench.feed(Input::Message { from: id(2), bytes });
            prop_assert_eq!(refusals(&outputs).len(), 1, "{:?}", message);
            bench.reconnect(2);
        }
        prop_assert_eq!(bench.still(), before);
    }

    /// Well-signed nonsense from every peer: any numbers in any message, in any order, while time passes.
    #[test]
    fn nonsense_is_survived(seed: u64, count in 1usize..150) {
        let mut bench = Bench::flock(4);
        let mut words = Words::new(seed);
        for _ in 0..count {
            let from = 2 + words.below(4) as u8;
            let message = nonsense(&bench, from, &mut words);
            prop_assert!(message.validate_shape().is_ok(), "{message:?}");
            let outputs = bench.say(from, &message);
            let refused = outputs.iter().any(|output| matches!(output, Output::Refuse { .. }));
            if refused || words.below(8) == 0 {
                bench.reconnect(from);
            }
            if words.below(4) == 0 {
                upheaval(&mut bench, &mut words);
            }
            let _ = bench.engine.view();
            let _ = bench.engine.wake_at();
        }
    }
}

#[test]
fn nonsense_has_every_kind_of_message_in_it() {
    let bench = Bench::flock(4);
    let mut words = Words::new(1);
    let kinds: BTreeSet<&str> = (0..500).map(|_| nonsense(&bench, 2, &mut words).kind()).collect();
    assert_eq!(kinds.len(), 15, "{kinds:?}");
    assert!(wire::decode_spec(&wire::encode_spec(&bench.spec)).is_ok(), "the bench's run is a run");
}
