//! Tests trainers the way the node uses them.

use starling_kernels::host::optimizer::Rule;
use starling_kernels::{
    BATCHES_MAX, DeviceChoice, DeviceError, DeviceKind, ModelConfig, Moments, OpenError, TrainError, Trainer,
    TrainerOptions, initial_parameters, open_trainer,
};

fn model() -> ModelConfig {
    ModelConfig {
        vocab: 17,
        d_model: 32,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        ffn: 48,
        seq_len: 12,
        tied: true,
        rope_theta: 10_000.0,
        norm_eps: 1e-5,
    }
}

fn options(threads: usize) -> TrainerOptions {
    TrainerOptions {
        batch: 4,
        accumulate: 2,
        threads,
        rule: Rule::AdamW,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
        clip: 1.0,
    }
}

/// Sequences that count in steps of a stride modulo the vocabulary.
fn tokens(model: &ModelConfig, sequences: usize, seed: usize) -> Vec<u32> {
    let sequence = |s: usize| (0..=model.seq_len).map(move |i| (s * 5 + seed + i * (1 + s % 3)) as u32 % 17);
    (0..sequences).flat_map(sequence).collect()
}

fn open(choice: DeviceChoice, model: &ModelConfig, options: &TrainerOptions) -> Box<dyn Trainer> {
    let mut trainer = open_trainer(&choice, model, options).unwrap();
    trainer.load(&initial_parameters(model, 3)).unwrap();
    trainer
}

fn read(trainer: &mut dyn Trainer, model: &ModelConfig) -> Vec<f32> {
    let mut out = vec![0.0; model.schema().elements()];
    trainer.read(&mut out).unwrap();
    out
}

#[test]
fn the_loss_falls() {
    for tied in [true, false] {
        let model = ModelConfig { tied, ..model() };
        let mut trainer = open(DeviceChoice::Cpu, &model, &options(2));
        let held_out = tokens(&model, 6, 1);
        let (before, count) = trainer.evaluate(&held_out).unwrap();
        assert_eq!(count, 6 * model.seq_len as u64);
        assert!((before / count as f64 - 17f64.ln()).abs() < 0.1, "{}", before / count as f64);
        let mut last = f64::INFINITY;
        for step in 0..80 {
            let report = trainer.step(&tokens(&model, 8, step), 3e-3).unwrap();
            assert_eq!(report.tokens, 8 * model.seq_len as u64);
            last = report.loss;
        }
        let (after, _) = trainer.evaluate(&held_out).unwrap();
        assert!(last < 1.0 && after < before / 3.0, "loss {last}, held out {before} -> {after}");
    }
}

#[test]
fn logits_agree_with_the_loss() {
    let model = model();
    let mut trainer = open(DeviceChoice::Cpu, &model, &options(1));
    for step in 0..20 {
        trainer.step(&tokens(&model, 8, step), 3e-3).unwrap();
    }
    let sequence = tokens(&model, 1, 4);
    let (nats, _) = trainer.evaluate(&sequence).unwrap();
    let mut sum = 0.0;
    for i in 1..=model.seq_len {
        let logits = trainer.logits(&sequence[..i]).unwrap();
        assert_eq!(logits.len(), model.vocab);
        let norm: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        sum += norm.ln() - f64::from(logits[sequence[i] as usize]);
    }
    assert!((sum - nats).abs() < 1e-3, "{sum} {nats}");
}

#[test]
fn a_step_is_the_same_whatever_the_threads_and_the_accumulation() {
    let model = model();
    let mut results = Vec::new();
    for (threads, batch, accumulate) in [(1, 8, 1), (3, 8, 1), (2, 2, 4)] {
        let options = TrainerOptions { batch, accumulate, ..options(threads) };
        let mut runs = Vec::new();
        for _ in 0..2 {
            let mut trainer = open(DeviceChoice::Cpu, &model, &options);
            for step in 0..3 {
                trainer.step(&tokens(&model, 8, step), 1e-2).unwrap();
            }
            runs.push(read(&mut *trainer, &model));
        }
        assert_eq!(runs[0], runs[1], "the same run twice");
        results.push(runs.remove(0));
    }
    for other in &results[1..] {
        let far = results[0].iter().zip(other).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(far < 1e-3, "parameters differ by {far}");
    }
}

#[test]
fn moments_come_back_to_the_bit() {
    let model = model();
    let mut first = open(DeviceChoice::Cpu, &model, &options(2));
    for step in 0..5 {
        first.step(&tokens(&model, 8, step), 3e-3).unwrap();
    }
    let theta = read(&mut *first, &model);
    let (state, numbers) = moments(&mut *first);
    assert_eq!((state.step, numbers.len()), (5, 2 * state.elements));
    let mut second = open(DeviceChoice::Cpu, &model, &options(2));
    second.load(&theta).unwrap();
    set_moments(&mut *second, state, &numbers).unwrap();
    assert_eq!(moments(&mut *second), (state, numbers));
    for trainer in [&mut first, &mut second] {
        trainer.step(&tokens(&model, 8, 9), 3e-3).unwrap();
    }
    assert_eq!(read(&mut *first, &model), read(&mut *second, &model));
    assert_eq!(moments(&mut *first), moments(&mut *second));
}

#[test]
fn moments_that_end_early_leave_a_new_optimizer() {
    let model = model();
    let mut trainer = open(DeviceChoice::Cpu, &model, &options(1));
    trainer.step(&tokens(&model, 8, 0), 3e-3).unwrap();
    let (state, numbers) = moments(&mut *trainer);
    let other = Moments { elements: state.elements - 1, ..state };
    assert!(matches!(set_moments(&mut *trainer, other, &numbers), Err(TrainError::Length { .. })));
    assert_eq!(moments(&mut *trainer), (state, numbers.clone()), "nothing has changed");
    let cut = &numbers[..state.elements];
    assert_eq!(set_moments(&mut *trainer, state, cut), Err(TrainError::Moments("no more".into())));
    assert_eq!(moments(&mut *trainer), (Moments { step: 0, ..state }, vec![0.0; numbers.len()]));
}

/// AdamW's state, in one vector.
fn moments(trainer: &mut dyn Trainer) -> (Moments, Vec<f32>) {
    let mut numbers = Vec::new();
    let mut take = |piece: &[f32]| {
        numbers.extend_from_slice(piece);
        Ok(())
    };
    trainer.read_moments(&mut take).unwrap();
    (trainer.moments(), numbers)
}

fn set_moments(trainer: &mut dyn Trainer, moments: Moments, mut numbers: &[f32]) -> Result<(), TrainError> {
    let mut give = |piece: &mut [f32]| -> Result<(), String> {
        let (next, rest) = numbers.split_at_checked(piece.len()).ok_or("no more")?;
        piece.copy_from_slice(next);
        numbers = rest;
        Ok(())
    };
    trainer.write_moments(moments, &mut give)
}

#[test]
fn clipping_bounds_the_gradient_and_decay_spares_gains() {
    let model = model();
    let still = TrainerOptions { clip: 1e-20, weight_decay: 0.5, eps: 1e-3, ..options(1) };
    let mut trainer = open(DeviceChoice::Cpu, &model, &still);
    let before = read(&mut *trainer, &model);
    trainer.step(&tokens(&model, 8, 0), 0.1).unwrap();
    let after = read(&mut *trainer, &model);
    for tensor in &model.schema().tensors {
        let keep = if tensor.shape.len() > 1 { 0.95 } else { 1.0 };
        for (a, b) in after[tensor.range()].iter().zip(&before[tensor.range()]) {
            assert!((a - b * keep).abs() < 1e-6, "{}: {b} -> {a}", tensor.name);
        }
    }
}

/// A fast member's steps have several times the run's batch.
fn steps_of_several_batches_are_those_of_one_large_batch(open: impl Fn(&TrainerOptions) -> Option<Box<dyn Trainer>>) {
    let model = model();
    let mut read_after = Vec::new();
    for accumulate in [1, 3] {
        let options = TrainerOptions { batch: 2, accumulate, ..options(1) };
        let Some(mut trainer) = open(&options) else { return };
        trainer.load(&initial_parameters(&model, 3)).unwrap();
        for step in 0..3 {
            let report = trainer.step(&tokens(&model, 6, step), 1e-2).unwrap();
            assert_eq!(report.tokens, (6 * model.seq_len) as u64);
        }
        // A smaller step after larger ones sees nothing of them.
        let mut gradient = vec![0.0; model.schema().elements()];
        let small = if accumulate == 1 { 2 } else { 6 };
        let report = trainer.gradient(&tokens(&model, small, 9), &mut gradient).unwrap();
        let (nats, count) = trainer.evaluate(&tokens(&model, small, 9)).unwrap();
        assert!((report.loss - nats / count as f64).abs() < 1e-3, "{report:?}: {nats} of {count}");
        assert!(matches!(trainer.step(&tokens(&model, 5, 0), 1e-2), Err(TrainError::Tokens { .. })));
        let many = tokens(&model, 2 * accumulate * (BATCHES_MAX + 1), 0);
        assert!(matches!(trainer.step(&many, 1e-2), Err(TrainError::Tokens { .. })));
        read_after.push(read(&mut *trainer, &model));
    }
    let far = read_after[0].iter().zip(&read_after[1]).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
    assert!(far < 1e-3, "parameters differ by {far}");
}

#[test]
fn steps_of_several_batches_on_the_cpu() {
    steps_of_several_batches_are_those_of_one_large_batch(|options| Some(open(DeviceChoice::Cpu, &model(), options)));
}

#[test]
fn steps_of_several_batches_on_a_graphics_adapter() {
    steps_of_several_batches_are_those_of_one_large_batch(|options| graphics(&model(), options));
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let model = model();
    let mut trainer = open(DeviceChoice::Cpu, &model, &options(1));
    let before = read(&mut *trainer, &model);
    let good = tokens(&model, 8, 0);
    let mut outside = good.clone();
    outside[7] = 17;
    assert_eq!(trainer.step(&outside, 1e-3), Err(TrainError::Vocabulary { token: 17, at: 7, vocab: 17 }));
    assert!(matches!(trainer.step(&good[1..], 1e-3), Err(TrainError::Tokens { .. })));
    assert!(matches!(trainer.step(&good, f64::NAN), Err(TrainError::LearningRate(_))));
    assert!(matches!(trainer.evaluate(&[]), Err(TrainError::Tokens { .. })));
    assert!(matches!(trainer.logits(&[]), Err(TrainError::Tokens { .. })));
    assert!(matches!(trainer.logits(&[1; 13]), Err(TrainError::Tokens { .. })));
    assert!(matches!(trainer.logits(&[99]), Err(TrainError::Vocabulary { .. })));
    assert!(matches!(trainer.load(&before[1..]), Err(TrainError::Length { .. })));
    assert!(matches!(trainer.read(&mut [0.0]), Err(TrainError::Length { .. })));
    assert_eq!(read(&mut *trainer, &model), before);
    trainer.load(&vec![f32::NAN; before.len()]).unwrap();
    assert!(matches!(trainer.step(&good, 1e-3), Err(TrainError::NotFinite { step: 1, .. })));
    assert_eq!(trainer.moments().step, 0);
}

#[test]
fn unsound_requests_are_refused() {
    let refused = |model: &ModelConfig, options: &TrainerOptions| {
        open_trainer(&DeviceChoice::Cpu, model, options).err().unwrap().to_string()
    };
    assert!(refused(&ModelConfig { heads: 3, ..model() }, &options(1)).contains("model.heads"));
    assert!(refused(&model(), &TrainerOptions { batch: 0, ..options(1) }).contains("batch"));
    assert!(refused(&model(), &TrainerOptions { beta2: 1.0, ..options(1) }).contains("beta2"));
    assert!(refused(&model(), &TrainerOptions { batch: usize::MAX, ..options(1) }).contains("too many"));
}

#[test]
fn auto_never_takes_software() {
    let trainer = open_trainer(&DeviceChoice::Auto, &model(), &options(1)).unwrap();
    let info = trainer.device();
    assert!(info.why.starts_with("auto"), "{info:?}");
    assert!(!info.name.contains("software"), "{info:?}");
}

#[test]
fn devices_that_are_not_there() {
    let error = |choice| open_trainer(&choice, &model(), &options(1)).err().unwrap();
    let missing = error(DeviceChoice::Wgpu(4000));
    assert!(matches!(missing, OpenError::Device(DeviceError::NoAdapter { index: 4000, .. })), "{missing}");
    assert!(missing.to_string().contains("--device cpu"));
    let cuda = error(DeviceChoice::Cuda(4000)).to_string();
    assert!(cuda.contains("--device"), "{cuda}");
    if !cfg!(feature = "cuda") {
        assert!(cuda.contains("built without CUDA"), "{cuda}");
    }
}

/// A graphics adapter, software too; `None` after saying why the test is left out.
fn graphics(model: &ModelConfig, options: &TrainerOptions) -> Option<Box<dyn Trainer>> {
    match open_trainer(&DeviceChoice::Wgpu(0), model, options) {
        Ok(trainer) => Some(trainer),
        Err(error) if std::env::var_os("STARLING_REQUIRE_WGPU").is_some() => panic!("{error}"),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

/// The largest difference, relative to the largest number.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    let size = b.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    a.iter().zip(b).fold(0.0f32, |most, (x, y)| most.max((x - y).abs())) / size
}

/// Models with sizes that no tile divides: groups of heads, one key head, narrow heads, an odd feed-forward layer.
fn odd_models() -> [ModelConfig; 4] {
    let small = ModelConfig { layers: 1, d_model: 16, heads: 2, kv_heads: 1, ffn: 24, seq_len: 8, ..model() };
    [
        small.clone(),
        ModelConfig { d_model: 96, heads: 12, kv_heads: 4, ffn: 50, seq_len: 33, tied: false, ..small.clone() },
        ModelConfig { d_model: 64, heads: 8, kv_heads: 1, ffn: 7, seq_len: 100, layers: 2, ..small.clone() },
        ModelConfig { d_model: 24, heads: 3, kv_heads: 3, ffn: 65, seq_len: 1, ..small },
    ]
}

#[test]
fn graphics_cards_learn_the_same() {
    for model in odd_models() {
        let options = TrainerOptions { batch: 2, ..options(1) };
        let Some(mut remote) = graphics(&model, &options) else { return };
        assert_eq!(remote.device().kind, DeviceKind::Wgpu);
        assert!(remote.told().iter().any(|told| told.contains("activations in f32")), "{:?}", remote.told());
        remote.load(&initial_parameters(&model, 3)).unwrap();
        let mut host = open(DeviceChoice::Cpu, &model, &options);
        let mut gradients = [0, 1].map(|_| vec![f32::NAN; model.schema().elements()]);
        remote.gradient(&tokens(&model, 4, 7), &mut gradients[0]).unwrap();
        host.gradient(&tokens(&model, 4, 7), &mut gradients[1]).unwrap();
        let [a, b] = gradients;
        assert!(apart(&a, &b) < 1e-3, "gradients of {model:?} differ by {}", apart(&a, &b));
        for step in 0..3 {
            let batch = tokens(&model, 4, step);
            let (a, b) = (remote.step(&batch, 1e-2).unwrap(), host.step(&batch, 1e-2).unwrap());
            assert!((a.loss - b.loss).abs() < 1e-3 && (a.grad_norm - b.grad_norm).abs() < 1e-2, "{a:?} {b:?}");
        }
        let (a, b) = (read(&mut *remote, &model), read(&mut *host, &model));
        let far = a.iter().zip(&b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(far < 2e-2, "parameters differ by {far}");
        let batch = tokens(&model, 3, 5);
        let nats = [&mut remote, &mut host].map(|trainer| trainer.evaluate(&batch).unwrap().0);
        assert!((nats[0] - nats[1]).abs() < 1e-2 * nats[1], "{nats:?}");
        let prompt = &batch[..model.seq_len.min(3)];
        let (a, b) = (remote.logits(prompt).unwrap(), host.logits(prompt).unwrap());
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 5e-2), "{a:?} {b:?}");
        let (state, numbers) = moments(&mut *remote);
        set_moments(&mut *remote, state, &numbers).unwrap();
        assert_eq!(moments(&mut *remote), (state, numbers));
    }
}

#[test]
fn a_device_repeats_its_steps_to_the_bit_and_leaves_out_what_is_not_finite() {
    let model = ModelConfig { seq_len: 20, ..model() };
    let options = TrainerOptions { batch: 2, ..options(1) };
    let mut runs = Vec::new();
    for _ in 0..2 {
        let Some(mut remote) = graphics(&model, &options) else { return };
        remote.load(&initial_parameters(&model, 3)).unwrap();
        for step in 0..4 {
            remote.step(&tokens(&model, 4, step), 1e-2).unwrap();
        }
        let theta = read(&mut *remote, &model);
        runs.push((theta.clone(), moments(&mut *remote)));
        let mut broken = theta.clone();
        broken[0] = f32::NAN;
        remote.load(&broken).unwrap();
        let error = remote.step(&[0; 4 * 21], 1e-2);
        assert!(matches!(error, Err(TrainError::NotFinite { step: 5, .. })), "{error:?}");
        let after = read(&mut *remote, &model);
        assert!(after.iter().zip(&broken).all(|(a, b)| a.to_bits() == b.to_bits()), "nothing has changed");
        assert_eq!(moments(&mut *remote), runs[runs.len() - 1].1);
        remote.load(&theta).unwrap();
        remote.step(&tokens(&model, 4, 9), 1e-2).unwrap();
    }
    assert!(runs[0] == runs[1], "the same run twice");
}

#[test]
fn after_300_steps_a_devices_loss_is_the_cpus() {
    let model = ModelConfig { layers: 1, seq_len: 16, ..model() };
    let options = TrainerOptions { batch: 4, accumulate: 1, ..options(1) };
    let Some(mut remote) = graphics(&model, &options) else { return };
    let mut host = open(DeviceChoice::Cpu, &model, &options);
    remote.load(&initial_parameters(&model, 3)).unwrap();
    let mut last = [0.0; 2];
    for step in 0..300 {
        let batch = tokens(&model, 4, step);
        last = [&mut remote, &mut host].map(|trainer| trainer.step(&batch, 3e-3).unwrap().loss);
    }
    assert!(last[1] < 1.0 && (last[0] - last[1]).abs() < 0.05, "{last:?}");
}
