//! Compares two AdamWs: the trainer's own, on each node, and the protocol's on the mean gradient of all nodes. They
//! come to nearly the same parameters, and to exactly the same ones without weight decay.

use starling_kernels::{DeviceChoice, ModelConfig, Trainer, TrainerOptions, initial_parameters, open_trainer};
use starling_node::config::model_table::model_config;
use starling_node::config::run_file::{RunFile, trainer_options};
use starling_protocol::Digest;
use starling_protocol::engine::succession;
use starling_protocol::outer::{Rule, schedule};
use starling_protocol::record::{Done, Record};
use starling_protocol::run::{DataSpec, Gains, RunSpec, SyncMode};
use starling_protocol::state::State;
use std::path::Path;

const STEPS: u64 = 8;

fn spec(model: &str) -> RunSpec {
    let text = format!(
        "name = \"agreement\"\nsync = \"every-step\"\n[model]\n{model}\n[inner]\nbatch = 2\naccumulate = 2\nlr = 1e-2\n\
         warmup_steps = 3\nweight_decay = 0.1\nclip = 0.5\n[budget]\nrounds = 20\n"
    );
    let file: RunFile = starling_bootstrap::config_file::parse(&text, Path::new("FILE")).expect("a run file");
    let data = DataSpec { manifest: Digest::of("test", &[]), tokenizer: Digest::of("test", &[]) };
    file.spec(data, 256).unwrap_or_else(|failure| panic!("{failure:?}"))
}

const SMALL: &str = "preset = \"0.1m\"\nd_model = 32\nlayers = 2\nheads = 4\nkv_heads = 2\nffn = 48\nseq_len = 16";

/// The head from which the step of this round starts.
fn parent(spec: &RunSpec, round: u64) -> Record {
    let me = starling_protocol::NodeId([1; 32]);
    let genesis = succession::genesis(spec.digest(), spec, (me, 1), 7, Digest::default()).expect("a sound run");
    Record { round: round - 1, steps: round - 1, ..genesis }
}

/// Sequences that count in steps of a stride.
fn tokens(model: &ModelConfig, sequences: usize, seed: usize) -> Vec<u32> {
    let sequence = |s: usize| (0..=model.seq_len).map(move |i| (s * 5 + seed * 11 + i * (1 + s % 3)) as u32 % 256);
    (0..sequences).flat_map(sequence).collect()
}

fn trainer(spec: &RunSpec, options: &TrainerOptions) -> Box<dyn Trainer> {
    let model = model_config(&spec.model);
    let mut trainer = open_trainer(&DeviceChoice::Cpu, &model, options).expect("a processor");
    trainer.load(&initial_parameters(&model, 3)).expect("parameters");
    trainer
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()))
}

#[test]
fn both_come_to_the_same_parameters() {
    let spec = spec(SMALL);
    let model = model_config(&spec.model);
    let options = trainer_options(&spec.inner, 1);
    let start = initial_parameters(&model, 3);
    let mut inner = trainer(&spec, &options);
    let mut outer = trainer(&spec, &options);
    let mut state = State::initial(start.clone(), SyncMode::EveryStep);
    let mut gradient = vec![0.0; start.len()];
    let mut clipped = 0;
    for round in 1..=STEPS {
        let batch = tokens(&model, 4, round as usize);
        let lr = schedule::rate(&spec.inner, &spec.budget, round, 0, &Done { tokens: 0, steps: round - 1 });
        let own = inner.step(&batch, lr).expect("a step");
        outer.load(&state.theta).expect("parameters");
        let report = outer.gradient(&batch, &mut gradient).expect("a gradient");
        assert!((own.loss - report.loss).abs() < 1e-4 && own.tokens == report.tokens, "{own:?}, {report:?}");
        let norm = gradient.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        assert!((norm / report.grad_norm - 1.0).abs() < 1e-4, "{norm}, {report:?}");
        clipped += u32::from(norm > spec.inner.clip);
        assert!(Rule::of(&spec, &parent(&spec, round), 1).apply(&mut state, &gradient));
    }
    let mut trained = vec![0.0; start.len()];
    inner.read(&mut trained).expect("parameters");
    let (moved, apart) = (furthest(&start, &trained), furthest(&state.theta, &trained));
    assert!(moved > 0.02 && apart < 1e-3 * moved, "moved by {moved}, {apart} apart");
    assert!(clipped > 0, "the clip matters");
}

#[test]
fn a_gradient_changes_nothing_and_micro_batches_add_up() {
    let spec = spec(SMALL);
    let model = model_config(&spec.model);
    let batch = tokens(&model, 4, 1);
    let mut gradients = Vec::new();
    for (size, accumulate) in [(4, 1), (2, 2), (1, 4)] {
        let options = TrainerOptions { batch: size, accumulate, ..trainer_options(&spec.inner, 1) };
        let mut trainer = trainer(&spec, &options);
        let mut gradient = vec![f32::NAN; model.schema().elements()];
        let first = trainer.gradient(&batch, &mut gradient).expect("a gradient");
        let mut again = vec![0.0; gradient.len()];
        assert_eq!(trainer.gradient(&batch, &mut again).expect("a gradient"), first);
        assert_eq!(gradient, again, "nothing has changed");
        let mut parameters = vec![0.0; gradient.len()];
        trainer.read(&mut parameters).expect("parameters");
        assert_eq!(parameters, initial_parameters(&model, 3));
        assert_eq!(trainer.moments().step, 0);
        assert!(trainer.gradient(&batch, &mut again[1..]).is_err(), "one number too few");
        gradients.push(gradient);
    }
    let largest = furthest(&gradients[0], &vec![0.0; gradients[0].len()]);
    for other in &gradients[1..] {
        assert!(furthest(&gradients[0], other) < 1e-4 * largest, "{} of {largest}", furthest(&gradients[0], other));
    }
}

#[test]
fn the_same_parameters_are_gains() {
    let untied = format!("{SMALL}\ntied = false");
    for model in [SMALL, &untied, "preset = \"3m\"", "preset = \"125m\"", "preset = \"1b\""] {
        let spec = spec(model);
        let schema = model_config(&spec.model).schema();
        let mut expected: Vec<_> = schema.tensors.iter().filter(|t| !t.decays()).map(|t| t.range()).collect();
        expected.sort_by_key(|range| range.start);
        let gains = Gains::of(&spec.model);
        let pieces = gains.cut(0..schema.elements() as u64);
        let gains = pieces.filter(|(_, gain)| *gain).map(|(range, _)| range.start as usize..range.end as usize);
        assert_eq!(gains.collect::<Vec<_>>(), expected, "{model}");
    }
}
