use super::*;
use crate::limits::PROBATION_MAX;
use crate::wire::sample::{spec, spec_from_weights, spec_with_task};

fn keys(change: impl Fn(&mut RunSpec)) -> Vec<&'static str> {
    let mut spec = spec();
    change(&mut spec);
    spec.validate().err().map(|e| e.problems.iter().map(|p| p.key).collect()).unwrap_or_default()
}

#[test]
fn a_sound_run_passes() {
    assert_eq!(spec().validate(), Ok(()));
}

#[test]
fn each_bound_names_its_key() {
    for name in ["", "Name", "a/b", "../x", "a b", "ä", &"x".repeat(65)] {
        assert_eq!(keys(|s| s.name = name.to_owned()), ["name"], "{name:?}");
    }
    assert_eq!(keys(|s| s.model.vocab = 1), ["model.vocab"]);
    assert_eq!(keys(|s| s.model.layers = 0), ["model.layers"]);
    assert_eq!(keys(|s| s.model.d_model = 66), ["model.d_model"]);
    assert_eq!(keys(|s| s.model.d_model = 20), ["model.d_model"], "heads of odd width");
    assert_eq!(keys(|s| s.model.kv_heads = 3), ["model.kv_heads"]);
    assert_eq!(keys(|s| s.model.heads = 0), ["model.heads", "model.kv_heads", "model.kv_heads"][..2].to_vec());
    assert_eq!(keys(|s| s.model.ffn = 0), ["model.ffn"]);
    assert_eq!(keys(|s| s.model.seq_len = 0), ["model.seq_len"]);
    assert_eq!(keys(|s| s.model.norm_eps = 0.0), ["model.norm_eps"]);
    assert_eq!(keys(|s| s.model.rope_theta = f64::INFINITY), ["model.rope_theta"]);
    assert_eq!(keys(|s| (s.model.d_model, s.model.layers, s.model.ffn) = (65_536, 1024, 200_000)), ["model"]);
    assert_eq!(keys(|s| s.inner.steps = 0), ["inner.steps"]);
    assert_eq!(
        keys(|s| (s.inner.steps, s.inner.batch, s.inner.accumulate) = (1 << 20, 1 << 16, 1 << 16)),
        ["inner.steps"]
    );
    assert_eq!(keys(|s| s.inner.lr = 0.0), ["inner.lr"]);
    assert_eq!(keys(|s| s.inner.lr = f64::NAN), ["inner.lr"]);
    assert_eq!(keys(|s| s.inner.lr_final = 1.5), ["inner.lr_final"]);
    assert_eq!(keys(|s| s.inner.beta1 = 1.0), ["inner.beta1"]);
    assert_eq!(keys(|s| s.inner.beta2 = -0.1), ["inner.beta2"]);
    assert_eq!(keys(|s| s.inner.eps = 0.0), ["inner.eps"]);
    assert_eq!(keys(|s| s.inner.clip = -0.0), ["inner.clip"], "minus zero is a second zero");
    assert_eq!(keys(|s| s.outer.lr.clear()), ["outer.lr"]);
    assert_eq!(keys(|s| s.outer.lr = vec![(2, 0.5)]), ["outer.lr"]);
    assert_eq!(keys(|s| s.outer.lr = vec![(1, 0.5), (1, 0.4)]), ["outer.lr"]);
    assert_eq!(keys(|s| s.outer.lr = vec![(1, 0.5), (1025, 0.4)]), ["outer.lr"]);
    assert_eq!(keys(|s| s.outer.lr = vec![(1, f64::NEG_INFINITY)]), ["outer.lr"]);
    assert_eq!(keys(|s| s.outer.momentum = 1.0), ["outer.momentum"]);
}

/// Found by fuzzing: a peer may send such sizes.
#[test]
fn a_model_of_any_sizes_is_counted_and_refused() {
    let most = u32::MAX;
    let changes: [fn(&mut ModelSpec, u32); 7] = [
        |m, x| m.vocab = x,
        |m, x| m.d_model = x,
        |m, x| m.layers = x,
        |m, x| m.kv_heads = x,
        |m, x| m.ffn = x,
        |m, x| m.tied = x == 0,
        |m, x| m.heads = u32::from(x == 0),
    ];
    for bits in 0..1_u32 << changes.len() {
        let mut spec = spec();
        changes.iter().enumerate().filter(|(k, _)| bits >> k & 1 == 1).for_each(|(_, set)| set(&mut spec.model, most));
        let m = &spec.model;
        if [m.d_model, m.layers, m.ffn] == [most; 3] {
            assert_eq!(m.parameters(), u64::MAX, "{m:?}");
        }
        let sizes_too_large = bits & 0b1_1111 != 0;
        assert_eq!(keys(|s| s.model = m.clone()).contains(&"model"), m.parameters() > crate::limits::PARAMETERS_MAX);
        assert!(!sizes_too_large || spec.validate().is_err(), "{m:?}");
    }
}

#[test]
fn the_policy_of_a_minority_takes_effect_in_time() {
    for (grace_ms, good) in [(999, false), (1_000, true), (86_400_000, true), (86_400_001, false)] {
        let expect: &[&str] = if good { &[] } else { &["partition.grace_ms"] };
        assert_eq!(keys(|s| s.partition.grace_ms = grace_ms), expect, "{grace_ms}");
    }
}

#[test]
fn strong_codecs_need_owners_and_top_k_a_long_run() {
    let sync = |codec, engine, rounds, tokens| {
        keys(|s| (s.sync, s.budget) = (SyncSpec::whole(SyncMode::Rounds, codec, engine), Budget { rounds, tokens }))
    };
    for codec in [Codec::Bf16, Codec::Int8] {
        for engine in [EngineKind::Ring, EngineKind::Owners] {
            assert_eq!(sync(codec, engine, 1, 0), [""; 0]);
        }
    }
    assert_eq!(sync(Codec::Int4, EngineKind::Ring, 100, 0), ["sync.engine"]);
    assert_eq!(sync(Codec::Int4, EngineKind::Owners, 1, 0), [""; 0]);
    let topk = |k, rounds, tokens| sync(Codec::TopK { k }, EngineKind::Owners, rounds, tokens);
    // 64 of 4096 in 1280 rounds: each value is sent 20 times.
    assert_eq!((topk(64, 1280, 0), topk(64, 1279, 0)), (vec![], vec!["sync.codec"]));
    assert_eq!((topk(1024, 80, 0), topk(1024, 79, 0)), (vec![], vec!["sync.codec"]));
    assert_eq!((topk(1, 0, 0), topk(1, 81_919, 0)), (vec![], vec!["sync.codec"]), "no bound is long enough");
    assert_eq!((topk(0, 0, 0), topk(1025, 0, 0)), (vec!["sync.k"], vec!["sync.k"]));
    // A round of one member is 30 x 8 x 128 tokens.
    assert_eq!((topk(64, 0, 1280 * 30_720), topk(64, 0, 1279 * 30_720)), (vec![], vec!["sync.codec"]));
    assert_eq!(topk(64, 2000, 1279 * 30_720), ["sync.codec"], "the nearer bound counts");
    assert_eq!(sync(Codec::TopK { k: 64 }, EngineKind::Ring, 0, 0), ["sync.engine"]);
    let mut spec = spec();
    spec.sync = SyncSpec::whole(SyncMode::Rounds, Codec::TopK { k: 64 }, EngineKind::Owners);
    let said = spec.validate().unwrap_err().to_string();
    assert!(said.contains("at least 1280 rounds instead of at most 100") && said.contains("every 64 rounds"), "{said}");
}

#[test]
fn every_step_has_one_step_and_no_outer_optimizer() {
    let every_step = |steps, outer: OuterSpec| {
        keys(|s| (s.sync.mode, s.inner.steps, s.outer) = (SyncMode::EveryStep, steps, outer.clone()))
    };
    assert_eq!(every_step(1, OuterSpec::unused()), [""; 0]);
    assert_eq!(every_step(2, OuterSpec::unused()), ["inner.steps"]);
    assert_eq!(every_step(1, spec().outer), ["outer"]);
    let muon = keys(|s| {
        (s.sync.mode, s.inner.steps, s.outer) = (SyncMode::EveryStep, 1, OuterSpec::unused());
        s.inner.optimizer = Optimizer::Muon;
    });
    assert_eq!(muon, ["inner.optimizer"]);
    let mut spec = spec();
    (spec.sync.mode, spec.inner.steps) = (SyncMode::EveryStep, 2);
    let said = spec.validate().unwrap_err().to_string();
    assert!(said.contains("gradients are averaged at each step") && said.contains("outer means nothing"), "{said}");
}

#[test]
fn pairs_meet_within_rounds_and_stay_together() {
    let with = |change: fn(&mut GossipSpec)| {
        keys(|s| {
            let mut pairs = GossipSpec::every(8);
            change(&mut pairs);
            (s.sync.engine, s.sync.gossip) = (EngineKind::Owners, Some(pairs));
        })
    };
    assert_eq!(with(|_| {}), [""; 0]);
    assert_eq!((with(|p| p.steps = 29), with(|p| p.steps = 30)), (vec![], vec!["sync.gossip.steps"]));
    assert_eq!(with(|p| p.steps = 0), ["sync.gossip.steps"]);
    assert_eq!((with(|p| p.alpha = 0.6), with(|p| p.alpha = 0.61)), (vec![], vec!["sync.gossip.alpha"]));
    assert_eq!(with(|p| p.alpha = f64::NAN), ["sync.gossip.alpha", "sync.gossip.gamma"]);
    assert_eq!((with(|p| p.beta = 0.0), with(|p| p.beta = 2.1)), (vec!["sync.gossip.beta"], vec!["sync.gossip.beta"]));
    assert_eq!(
        (with(|p| p.gamma = 0.5), with(|p| p.gamma = 1.26)),
        (vec!["sync.gossip.gamma"], vec!["sync.gossip.gamma"])
    );
    assert_eq!(keys(|s| s.sync.gossip = Some(GossipSpec::every(8))), ["sync.engine"], "of a ring");
    let every_step = keys(|s| {
        s.sync.gossip = Some(GossipSpec::every(8));
        (s.sync.mode, s.sync.engine, s.inner.steps, s.outer) =
            (SyncMode::EveryStep, EngineKind::Owners, 1, OuterSpec::unused());
    });
    assert_eq!(every_step, ["sync.gossip.steps", "sync.gossip"]);
    // On the wire gossip is a presence byte, then a u32 and three f64.
    let mut spec = spec();
    spec.sync.engine = EngineKind::Owners;
    let plain = crate::wire::encode_spec(&spec);
    spec.sync.gossip = Some(GossipSpec::every(5));
    let paired = crate::wire::encode_spec(&spec);
    assert_eq!(paired.len(), plain.len() + 28);
    assert_eq!(crate::wire::decode_spec(&paired), Ok(spec));
}

#[test]
fn a_codec_takes_its_number_and_top_k_its_k() {
    let mut spec = spec();
    spec.budget.rounds = 0;
    let plain = crate::wire::encode_spec(&spec);
    spec.sync = SyncSpec::whole(SyncMode::Rounds, Codec::TopK { k: 0x0123 }, EngineKind::Owners);
    let topk = crate::wire::encode_spec(&spec);
    assert_eq!(topk.len(), plain.len() + 2);
    let at = plain.iter().zip(&topk).position(|(a, b)| a != b).unwrap();
    assert_eq!((&plain[at..at + 2], &topk[at..at + 4]), (&[2, 1][..], &[4, 0x23, 0x01, 2][..]));
    assert_eq!(crate::wire::decode_spec(&topk), Ok(spec));
    for (k, number) in [(0u16, 4), (1025, 4), (5, 5), (5, 0)] {
        let mut bad = topk.clone();
        bad[at] = number;
        bad[at + 1..at + 3].copy_from_slice(&k.to_le_bytes());
        assert!(crate::wire::decode_spec(&bad).is_err(), "codec {number}, k {k}");
    }
}

#[test]
fn a_beginning_stands_behind_all_else_and_names_another_run() {
    let mut spec = spec();
    let plain = crate::wire::encode_spec(&spec);
    spec.beginning = Some(Digest([0xb1; 32]));
    let begun = crate::wire::encode_spec(&spec);
    assert_eq!(begun, [&plain[..], &[1], &[0xb1; 32]].concat());
    assert_eq!(crate::wire::decode_spec(&begun), Ok(spec.clone()));
    assert!(spec.digest() != self::spec().digest() && spec.validate() == Ok(()));
    let there = "b1".repeat(32);
    assert_eq!(self::spec().differences(&spec), [format!("model.beginning: none here, {there} there")]);
    let refused = |bytes: &[u8]| crate::wire::decode_spec(bytes).is_err();
    for cut in plain.len() + 1..begun.len() {
        assert!(refused(&begun[..cut]), "cut to {cut} bytes");
    }
    assert!(refused(&[&begun[..], &[0]].concat()) && refused(&[&plain[..], &[0]].concat()));
    assert!(refused(&[&plain[..], &[2], &[0xb1; 32]].concat()), "an unknown number");
    assert!(refused(&[&plain[..], &[1], &[0; 32]].concat()), "no state has this root");
    assert_eq!(keys(|s| s.beginning = Some(Digest::default())), ["model.beginning"]);
}

#[test]
fn a_task_stands_behind_the_beginning() {
    let (spec, begun) = (spec_with_task(), crate::wire::encode_spec(&spec_from_weights()));
    let bytes = crate::wire::encode_spec(&spec);
    assert_eq!(bytes.len(), begun.len() + 1 + 32 + 32 + 3 * 8 + 4);
    assert_eq!(crate::wire::decode_spec(&bytes), Ok(spec.clone()));
    for cut in begun.len() + 1..bytes.len() {
        assert!(crate::wire::decode_spec(&bytes[..cut]).is_err(), "cut to {cut} bytes");
    }
    assert!(crate::wire::decode_spec(&[&bytes[..], &[0]].concat()).is_err());
    assert_eq!((spec.parameters(), spec.sample_weight()), (12, 4));
    assert_eq!((self::spec().parameters(), self::spec().sample_weight()), (self::spec().model.parameters(), 128));
    let differences = self::spec().differences(&spec);
    assert!(differences.iter().any(|line| line == "task.samples: none here, 50000 there"), "{differences:?}");
}

#[test]
fn a_task_has_bounds_and_no_model_beside_it() {
    let keys = |change: fn(&mut RunSpec, &mut ExternalSpec)| {
        let mut spec = spec_with_task();
        if let Some(mut task) = spec.task.take() {
            change(&mut spec, &mut task);
            spec.task = Some(task);
        }
        let keys = |e: RunError| e.problems.iter().map(|p| p.key).collect::<Vec<_>>();
        spec.validate().err().map(keys).unwrap_or_default()
    };
    assert_eq!(keys(|_, _| ()), [""; 0]);
    assert_eq!(keys(|s, _| s.model.vocab = 3), ["model"]);
    assert_eq!(keys(|s, _| s.data.tokenizer = Digest([1; 32])), ["data.tokenizer"]);
    assert_eq!(keys(|s, _| s.data.manifest = Digest([1; 32])), [""; 0], "files that nodes give their trainers");
    assert_eq!(keys(|s, _| s.beginning = None), ["model.beginning"]);
    assert_eq!(keys(|_, t| t.schema = Digest::default()), ["task.schema"]);
    assert_eq!(keys(|_, t| t.parameters = 0), ["task.parameters", "task.learned"]);
    assert_eq!(keys(|_, t| t.learned = 0), ["task.learned"]);
    assert_eq!(keys(|_, t| t.learned = t.parameters + 1), ["task.learned"]);
    assert_eq!(keys(|_, t| t.samples = 0), [""; 0], "each node has data of its own");
    assert_eq!(keys(|_, t| t.samples = (1 << 48) + 1), ["task.samples"]);
    assert_eq!(keys(|_, t| t.weight = 0), ["task.weight"]);
    assert_eq!(keys(|s, _| (s.inner.batch, s.inner.steps) = (1 << 16, 65)), ["inner.steps"]);
    assert_eq!(keys(|s, _| s.inner.optimizer = Optimizer::Lion), ["inner.optimizer"]);
    let every_step = keys(|s, _| {
        (s.sync.mode, s.inner.steps, s.outer) = (SyncMode::EveryStep, 1, OuterSpec::unused());
    });
    assert_eq!(every_step, ["sync.mode"]);
}

#[test]
fn admission_says_who_and_who_signs() {
    let ids = |fills: &[u8]| -> Vec<NodeId> { fills.iter().map(|fill| NodeId([*fill; 32])).collect() };
    let list = |allow: Vec<NodeId>| {
        keys(|s| s.admission = AdmissionSpec { mode: AdmissionMode::List, allow: allow.clone(), probation: 0 })
    };
    assert_eq!(list(ids(&[1, 2])), [""; 0]);
    assert_eq!(list(vec![]), ["admission.allow"], "nobody could train");
    assert_eq!(list(ids(&[2, 1])), ["admission.allow"]);
    assert_eq!(list(ids(&[1, 1])), ["admission.allow"], "one list has one form");
    let all: Vec<u8> = (0..=ALLOWED_MAX as u8).collect();
    assert_eq!(list(ids(&all[1..])), [""; 0]);
    assert_eq!(list(ids(&all)), ["admission.allow"]);
    for mode in [AdmissionMode::Open, AdmissionMode::Ticket] {
        assert_eq!(keys(|s| s.admission = AdmissionSpec { mode, allow: vec![], probation: 0 }), [""; 0]);
        let idle = keys(|s| s.admission = AdmissionSpec { mode, allow: ids(&[1]), probation: 0 });
        assert_eq!(idle, ["admission.allow"], "a list that would not be read");
        let unsigned = keys(|s| (s.admission.mode, s.creator) = (mode, None));
        let expect: &[&str] = if mode == AdmissionMode::Ticket { &["creator"] } else { &[] };
        assert_eq!(unsigned, expect);
    }
    let probation = |mode, rounds| keys(|s| (s.admission.mode, s.admission.probation) = (mode, rounds));
    assert_eq!(probation(AdmissionMode::Open, PROBATION_MAX), [""; 0]);
    assert_eq!(probation(AdmissionMode::Open, PROBATION_MAX + 1), ["admission.probation"]);
    assert_eq!(probation(AdmissionMode::Ticket, 0), [""; 0]);
    assert_eq!(probation(AdmissionMode::Ticket, 1), ["admission.probation"], "those were chosen");
}

#[test]
fn all_problems_are_told_at_once() {
    let mut spec = spec();
    spec.name = "\u{1b}]0;".to_owned();
    spec.inner.lr = -1.0;
    let text = spec.validate().unwrap_err().to_string();
    let expect =
        "name = \\u{1b}]0;: must be 1 to 64 of a-z, 0-9 and -; inner.lr = -1.0: must be above 0 and at most 10";
    assert_eq!(text, expect);
}

#[test]
fn differences_name_keys_and_match_the_digest() {
    let here = spec();
    let mut there = spec();
    assert!(here.differences(&there).is_empty());
    assert_eq!(here.digest(), there.digest());
    there.creator = None;
    there.inner.lr = 2e-3;
    there.sync = SyncSpec::whole(SyncMode::EveryStep, Codec::Bf16, EngineKind::Owners);
    there.sync.gossip = Some(GossipSpec::every(2));
    there.outer.lr.pop();
    there.partition = PartitionSpec { minority: Minority::Wait, grace_ms: 5_000 };
    there.admission = AdmissionSpec { mode: AdmissionMode::List, allow: vec![NodeId([1; 32])], probation: 1 };
    let differences = here.differences(&there);
    let keys: Vec<_> = differences.iter().map(|d| d.split(':').next().unwrap()).collect();
    let partition = ["partition.minority", "partition.grace_ms"];
    let admission = ["admission.mode", "admission.allow", "admission.probation"];
    assert_eq!(
        keys,
        [
            &["creator", "inner.lr", "outer.lr", "sync.mode", "sync.codec", "sync.engine", "sync.gossip"][..],
            &partition,
            &admission
        ]
        .concat()
    );
    assert_eq!(differences[1], "inner.lr: 0.001 here, 0.002 there");
    assert_eq!(differences[6], "sync.gossip: none here, steps = 2, alpha = 0.5, beta = 0.7, gamma = 1.0 there");
    assert_eq!(differences[7], "partition.minority: fork here, wait there");
    assert_ne!(here.digest(), there.digest());
}

#[test]
fn parameters_are_those_of_the_schema() {
    // Per layer 2*64 + 2*64*64 + 2*64*32 + 3*64*192; embedding 256*64; last norm 64.
    let mut model = spec().model;
    assert_eq!(model.parameters(), 2 * (128 + 8192 + 4096 + 36_864) + 16_384 + 64);
    model.tied = false;
    assert_eq!(model.parameters(), 2 * (128 + 8192 + 4096 + 36_864) + 2 * 16_384 + 64);
    (model.vocab, model.d_model, model.layers, model.ffn) = (u32::MAX, u32::MAX, u32::MAX, u32::MAX);
    assert_eq!(model.parameters(), u64::MAX);
}

#[test]
fn outer_rates_step_with_contributors() {
    let outer = OuterSpec { lr: vec![(1, 0.9), (4, 0.7), (8, 0.5)], momentum: 0.9 };
    let rates: Vec<f64> = [0, 1, 3, 4, 7, 8, 64].map(|m| outer.lr_for(m)).to_vec();
    assert_eq!(rates, [0.9, 0.9, 0.9, 0.7, 0.7, 0.5, 0.5]);
}

#[test]
fn choices_have_names_and_numbers() {
    let codecs = [Codec::Bf16, Codec::Int8, Codec::Int4, Codec::TopK { k: 64 }];
    assert_eq!(codecs.map(Codec::number), [1, 2, 3, 4]);
    assert_eq!(codecs.map(|codec| codec.to_string()), ["bf16", "int8", "int4", "top-k 64/4096"]);
    assert_eq!("ring".parse(), Ok(EngineKind::Ring));
    assert_eq!("rings".parse::<EngineKind>().unwrap_err(), "no such engine, use one of: ring, owners");
    assert_eq!(EngineKind::ALL.iter().map(|engine| engine.number()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(
        SyncMode::ALL.iter().map(|mode| (mode.number(), mode.name())).collect::<Vec<_>>(),
        [(1, "rounds"), (2, "every-step")]
    );
    assert_eq!(SyncMode::ALL.iter().map(|mode| mode.vectors()).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(Minority::ALL.iter().map(|policy| policy.name()).collect::<Vec<_>>(), ["fork", "wait", "halt"]);
    assert_eq!(AdmissionMode::ALL.iter().map(|mode| mode.number()).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn streaming_has_bounds_and_none_of_it_goes_with_every_step() {
    // 264,000 parameters: nine chunks.
    let streaming = |fragments, overlap, mixing| {
        keys(|s| {
            s.model.vocab = 2_600;
            (s.sync.fragments, s.sync.overlap, s.sync.mixing) = (fragments, overlap, mixing);
        })
    };
    for (fragments, overlap, mixing) in [(1, 0, 0.0), (9, 5, 0.5), (4, 2, 0.0), (1, 0, 0.9), (1, 1, 0.5)] {
        assert_eq!(streaming(fragments, overlap, mixing), [""; 0], "{fragments}, {overlap}, {mixing}");
    }
    assert_eq!(streaming(10, 0, 0.0), ["sync.fragments"], "one would have no chunk");
    assert_eq!(streaming(0, 0, 0.0), ["sync.fragments"]);
    assert_eq!(streaming(65, 0, 0.0), ["sync.fragments", "sync.fragments"]);
    assert_eq!(streaming(2, 6, 0.5), ["sync.overlap"]);
    assert_eq!(streaming(1, 1, 0.0), ["sync.mixing"], "nothing would be left of the steps ahead");
    for mixing in [1.0, -0.5, f64::NAN, -0.0] {
        assert_eq!(streaming(2, 0, mixing), ["sync.mixing"], "{mixing}");
    }
    assert_eq!(keys(|s| (s.inner.steps, s.sync.overlap, s.sync.mixing) = (2, 3, 0.5)), ["sync.overlap"]);
    let every_step = |fragments, overlap, mixing| {
        keys(|s| {
            (s.sync.mode, s.inner.steps, s.outer) = (SyncMode::EveryStep, 1, OuterSpec::unused());
            (s.sync.fragments, s.sync.overlap, s.sync.mixing) = (fragments, overlap, mixing);
        })
    };
    assert_eq!(every_step(1, 0, 0.0), [""; 0]);
    assert_eq!(every_step(2, 1, 0.5), ["sync.fragments", "sync.overlap", "sync.mixing"]);
    // A fragment's values have a turn in each of the fragment's rounds.
    let topk = |rounds| {
        keys(|s| {
            (s.model.vocab, s.budget.rounds) = (2_600, rounds);
            s.sync = SyncSpec::whole(SyncMode::Rounds, Codec::TopK { k: 64 }, EngineKind::Owners);
            s.sync.fragments = 4;
        })
    };
    assert_eq!((topk(4 * 1280), topk(4 * 1280 - 1)), (vec![], vec!["sync.codec"]));
}

#[test]
fn differences_in_streaming_are_named() {
    let (here, mut there) = (spec(), spec());
    (there.sync.fragments, there.sync.overlap, there.sync.mixing) = (4, 2, 0.5);
    let expect =
        ["sync.fragments: 1 here, 4 there", "sync.overlap: 0 here, 2 there", "sync.mixing: 0.0 here, 0.5 there"];
    assert_eq!(here.differences(&there), expect);
    assert!(there.sync.streams() && !there.sync.merges() && !here.sync.streams() && here.sync.merges());
}

#[test]
fn the_flock_may_choose_its_steps_in_plain_rounds_only() {
    let with = |change: fn(&mut RunSpec)| {
        keys(|s| {
            (s.sync.gap_max, s.outer.momentum) = (512, 0.3);
            change(s);
        })
    };
    assert_eq!((with(|_| {}), keys(|s| s.outer.momentum = 0.9)), (vec![], vec![]));
    assert_eq!((with(|s| s.sync.gap_max = 30), with(|s| s.sync.gap_max = 29)), (vec![], vec!["sync.gap_max"]));
    assert_eq!(with(|s| s.sync.gap_max = (1 << 20) + 1), ["sync.gap_max"]);
    assert_eq!(with(|s| s.outer.momentum = 0.31), ["sync.adapt"]);
    let top_k =
        with(|s| (s.sync.codec, s.sync.engine, s.budget.rounds) = (Codec::TopK { k: 1024 }, EngineKind::Owners, 0));
    assert_eq!(top_k, ["sync.adapt"]);
    let paired = with(|s| (s.sync.engine, s.sync.gossip) = (EngineKind::Owners, Some(GossipSpec::every(8))));
    assert_eq!(paired, ["sync.adapt"]);
    let streams = with(|s| (s.sync.fragments, s.sync.overlap) = (2, 1));
    assert_eq!(streams, ["sync.adapt"], "the first reason");
    let large = |s: &mut RunSpec| (s.inner.batch, s.inner.accumulate, s.sync.gap_max) = (1 << 16, 1 << 16, 2048);
    assert_eq!(with(large), ["sync.gap_max"]);
    let coarse = |s: &mut RunSpec| s.sync.coarsest = Some(Codec::Int4);
    assert_eq!((with(coarse), keys(coarse)), (vec![], vec!["sync.coarsest"]), "only where steps are chosen, too");
    let wrong = |coarsest: Codec| {
        let mut spec = spec();
        (spec.sync.gap_max, spec.outer.momentum, spec.sync.coarsest) = (512, 0.0, Some(coarsest));
        spec.validate().is_err()
    };
    assert!(wrong(Codec::Bf16) && wrong(Codec::Int8) && wrong(Codec::TopK { k: 64 }) && !wrong(Codec::Int4));
    let mut spec = spec();
    (spec.sync.gap_max, spec.outer.momentum, spec.sync.coarsest) = (512, 0.0, Some(Codec::Int4));
    assert_eq!(spec.rungs(), [Codec::Int8, Codec::Int4]);
    assert_eq!(spec.sync.engine_for(Codec::Int8), EngineKind::Ring);
    assert_eq!(spec.sync.engine_for(Codec::Int4), EngineKind::Owners, "it does not go around a ring");
    let mut there = spec.clone();
    there.sync.gap_max = 64;
    assert_eq!(spec.differences(&there), ["sync.gap_max: 512 here, 64 there"]);
    assert_eq!(crate::wire::decode_spec(&crate::wire::encode_spec(&spec)), Ok(spec));
}
