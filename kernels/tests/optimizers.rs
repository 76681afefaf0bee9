//! The inner optimizers of a trainer on a graphics adapter, which may be software, beside the CPU's.

use starling_kernels::host::adamw::Update;
use starling_kernels::host::optimizer::{Optimizer, Rule};
use starling_kernels::host::team::Team;
use starling_kernels::{
    DeviceChoice, ModelConfig, Moments, OpenError, Trainer, TrainerOptions, initial_parameters, open_trainer,
    open_untried_trainer,
};

/// A model whose vectors are no multiple of a tile, with groups of heads.
fn model() -> ModelConfig {
    ModelConfig {
        vocab: 17,
        d_model: 36,
        layers: 2,
        heads: 6,
        kv_heads: 2,
        ffn: 41,
        seq_len: 11,
        tied: false,
        rope_theta: 10_000.0,
        norm_eps: 1e-5,
    }
}

fn options(rule: Rule, clip: f64) -> TrainerOptions {
    let (beta1, beta2, eps, weight_decay) = (0.9, 0.99, 1e-8, 0.1);
    TrainerOptions { batch: 2, accumulate: 2, threads: 1, rule, beta1, beta2, eps, weight_decay, clip }
}

/// Rates of steps of about one length.
fn rate(rule: Rule) -> f64 {
    match rule {
        Rule::Sgd => 0.1,
        Rule::Lion | Rule::RmsProp => 1e-3,
        Rule::AdamW | Rule::Muon => 3e-3,
    }
}

/// Sequences that count in steps of a stride modulo the vocabulary.
fn tokens(model: &ModelConfig, sequences: usize, seed: usize) -> Vec<u32> {
    let sequence = |s: usize| (0..=model.seq_len).map(move |i| (s * 5 + seed + i * (1 + s % 3)) as u32 % 17);
    (0..sequences).flat_map(sequence).collect()
}

/// The trainer on a graphics adapter; `None` after saying why the test is left out.
fn graphics(opened: Result<Box<dyn Trainer>, OpenError>) -> Option<Box<dyn Trainer>> {
    match opened {
        Ok(trainer) => Some(trainer),
        Err(error) if std::env::var_os("STARLING_REQUIRE_WGPU").is_some() => panic!("{error}"),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

fn read(trainer: &mut dyn Trainer) -> Vec<f32> {
    let mut out = vec![f32::NAN; trainer.moments().elements];
    trainer.read(&mut out).unwrap();
    out
}

fn moments(trainer: &mut dyn Trainer) -> Vec<f32> {
    let mut numbers = Vec::new();
    let mut take = |piece: &[f32]| {
        numbers.extend_from_slice(piece);
        Ok(())
    };
    trainer.read_moments(&mut take).unwrap();
    numbers
}

/// Plays steps of a device beside those of the CPU's optimizer by the device's own gradients. Returns the norms.
fn play(device: &mut dyn Trainer, model: &ModelConfig, options: &TrainerOptions) -> Vec<f64> {
    let TrainerOptions { rule, beta1, beta2, eps, weight_decay, clip, .. } = *options;
    let (schema, team, lr) = (model.schema(), Team::new(1).unwrap(), rate(rule));
    let mut host = Optimizer::new(rule, schema.elements());
    let (mut theta, mut gradient) = (initial_parameters(model, 3), vec![f32::NAN; schema.elements()]);
    device.load(&theta).unwrap();
    let mut norms = Vec::new();
    for step in 0..6 {
        let batch = tokens(model, 4, step);
        let norm = device.gradient(&batch, &mut gradient).unwrap().grad_norm;
        let gradient_scale = if clip > 0.0 && norm > clip { clip / norm } else { 1.0 };
        let update = Update { lr, beta1, beta2, eps, weight_decay, gradient_scale, step: 0 };
        host.step(&team, update, &schema, &mut theta, &gradient);
        device.step(&batch, lr).unwrap();
        let theirs = read(device);
        // Muon's products have sums of their own.
        let slack = if rule == Rule::Muon { 1e-5 } else { 1e-6 };
        let far = |(a, b): &(&f32, &f32)| (*a - *b).abs() > slack;
        let off = theirs.iter().zip(&theta).filter(far).count();
        // Where both halves of its mean cancel, rounding decides the sign that Lion takes.
        let most = if rule == Rule::Lion { theta.len() / 1000 } else { 0 };
        assert!(off <= most, "{rule}, clip {clip}, step {step}: {off} of {} elements are apart", theta.len());
        theta.copy_from_slice(&theirs);
        norms.push(norm);
    }
    norms
}

#[test]
fn a_devices_optimizers_step_as_the_cpus() {
    let model = model();
    for rule in Rule::ALL {
        let opened = open_untried_trainer(&DeviceChoice::Wgpu(0), &model, &options(rule, 0.0));
        let Some(mut device) = graphics(opened) else { return };
        for clip in [0.0, 0.3, 1e6] {
            let options = options(rule, clip);
            // One device for all, since its kernels take seconds to compile.
            device.amend(options.weight_decay, clip);
            let anew = Moments { step: 0, ..device.moments() };
            let mut zeros = |piece: &mut [f32]| -> Result<(), String> {
                piece.fill(0.0);
                Ok(())
            };
            device.write_moments(anew, &mut zeros).unwrap();
            let norms = play(&mut *device, &model, &options);
            assert!(norms.iter().all(|norm| *norm > 0.3), "the least limit cuts: {norms:?}");
        }
    }
}

#[test]
fn whole_models_train_as_on_the_cpu() {
    let model = model();
    for rule in Rule::ALL {
        let options = options(rule, 1.0);
        let Some(mut device) = graphics(open_trainer(&DeviceChoice::Wgpu(0), &model, &options)) else { return };
        let mut host = open_trainer(&DeviceChoice::Cpu, &model, &options).unwrap();
        let mut losses = Vec::new();
        for trainer in [&mut device, &mut host] {
            trainer.load(&initial_parameters(&model, 3)).unwrap();
        }
        for _ in 0..20 {
            let batch = tokens(&model, 4, 1);
            losses.push([&mut device, &mut host].map(|trainer| trainer.step(&batch, rate(rule)).unwrap().loss));
        }
        let far = losses.iter().fold(0.0, |most: f64, [a, b]| most.max((a - b).abs()));
        let ([first, _], [last, _]) = (losses[0], losses[19]);
        println!("{rule}: from {first:.3} to {last:.3}, at most {far:.1e} apart");
        assert!(far < 1e-2 && last < first - 0.3, "{rule}: {losses:?}");
        let numbers = moments(&mut *device);
        let used = [0..numbers.len() / 2, numbers.len() / 2..numbers.len()]
            .map(|half| numbers[half].iter().any(|number| *number != 0.0));
        assert_eq!(used, [rule != Rule::RmsProp, matches!(rule, Rule::AdamW | Rule::Muon | Rule::RmsProp)], "{rule}");
    }
}
