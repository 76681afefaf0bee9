//! Any bytes, any words, in any order.

use crate::bench::{Bench, hello, key, ready, spec};
use proptest::prelude::*;
use starling_protocol::engine::io::{Input, Output};
use starling_protocol::message::{Form, Head, Join, Message, Phase, Ready, Report};
use starling_protocol::{Digest, Signer, wire};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever bytes come in, the engine neither panics nor answers with a storm.
    #[test]
    fn garbage_is_survived(
        junk in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..20),
        flips in prop::collection::vec((0usize..8, any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let (mut bench, record) = Bench::founder();
        bench.meet(2, 1);
        for bytes in junk {
            let outputs = bench.feed(Input::Message { from: key(2).id(), bytes });
            prop_assert!(outputs.len() < 50);
        }
        let messages = [
            hello(&spec(), 1),
            Message::Ready(ready(&record, vec![key(3).id()])),
            Message::Join(Join { lineage: record.lineage, seq: 0, record: record.digest(), state_root: record.state_root }),
        ];
        for (which, at, value) in flips {
            bench.feed(Input::PeerDown { peer: key(2).id() });
            bench.meet(2, 1);
            let mut bytes = wire::seal(&key(2), &spec().digest(), &messages[which % messages.len()]).unwrap();
            *at.get_mut(&mut bytes[..]) = value;
            let outputs = bench.feed(Input::Message { from: key(2).id(), bytes });
            prop_assert!(outputs.len() < 50);
        }
    }

    /// Well-signed nonsense from a peer: any numbers in any message, in any order, with time passing.
    #[test]
    fn nonsense_is_survived(words in prop::collection::vec((0u8..6, any::<u64>(), any::<u32>(), 0u8..4), 1..60)) {
        let (mut bench, record) = Bench::founder();
        bench.meet(2, 1);
        for (kind, number, small, fill) in words {
            let digests = [Digest::default(), record.digest(), record.lineage, Digest([fill; 32])];
            let any = |shift: u64| digests[(number >> shift) as usize % 4];
            let (lineage, parent) = (any(3), any(5));
            let ids = vec![key(2).id()];
            let message = match kind {
                0 => Message::Head(Head {
                    lineage,
                    seq: number,
                    record: parent,
                    tokens: number.rotate_left(17),
                    phase: Phase::ALL[small as usize % Phase::ALL.len()],
                    progress: number,
                    report: Some(Report { lineage, seq: number, attempt: small, set: any(7), record: any(9) }),
                }),
                1 => Message::Join(Join { lineage, seq: number % 3, record: parent, state_root: any(2) }),
                2 => Message::Form(Form { lineage, seq: number, parent, attempt: small, members: ids.clone(), live: ids }),
                3 => Message::Report(Report { lineage, seq: number, attempt: small, set: any(7), record: any(9) }),
                4 => Message::Ready(Ready {
                    lineage,
                    seq: number.max(1),
                    round: 1,
                    parent,
                    lease_start: number % 100,
                    samples: u64::from(small % 1000) + 1,
                    ..ready(&record, vec![])
                }),
                _ => hello(&spec(), u64::from(small % 3)),
            };
            let outputs = bench.say(2, &message);
            prop_assert!(outputs.len() < 60);
            bench.now += number % 3_000_000;
            let outputs = bench.feed(Input::Tick);
            prop_assert!(outputs.len() < 60);
            if outputs.iter().any(|output| matches!(output, Output::Refuse { .. })) {
                bench.feed(Input::PeerDown { peer: key(2).id() });
                bench.meet(2, 3);
            }
            let _ = bench.engine.view();
        }
    }
}
