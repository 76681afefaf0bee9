//! Gradients of whole models of random sizes on a graphics adapter, which may be software, beside the CPU's: heads and
//! their groups, lengths, vocabularies and odd widths. The seed is printed, and STARLING_SEED plays it again.

use starling_kernels::host::optimizer::Rule;
use starling_kernels::{
    DeviceChoice, ModelConfig, Trainer, TrainerOptions, initial_parameters, open_trainer, open_untried_trainer,
};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SHAPES: usize = 12;
/// No shape is begun after it. A shape takes seconds, nearly all of them for the compilation of its kernels, so that a slow
/// machine plays fewer.
const BUDGET: Duration = Duration::from_secs(30);
/// Bound on the difference of all gradients together, and of the loss, relative to the CPU's.
const BOUND: f64 = 1e-3;

/// Numbers that depend on a seed alone.
struct Dice(u64);

impl Dice {
    /// A number from `low` to `high`.
    fn roll(&mut self, low: usize, high: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (self.0 >> 33) as usize % (high - low + 1)
    }

    fn model(&mut self) -> ModelConfig {
        let kv_heads = self.roll(1, 3);
        let heads = kv_heads * self.roll(1, 4);
        ModelConfig {
            vocab: self.roll(2, 700),
            d_model: heads * 2 * self.roll(1, 24),
            layers: self.roll(1, 2),
            heads,
            kv_heads,
            ffn: self.roll(1, 160),
            seq_len: self.roll(1, 90),
            tied: self.roll(0, 1) == 1,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
        }
    }

    fn options(&mut self) -> TrainerOptions {
        let (rule, beta1, beta2, eps, weight_decay, clip) = (Rule::AdamW, 0.9, 0.99, 1e-8, 0.1, 1.0);
        let (batch, accumulate) = (self.roll(1, 3), self.roll(1, 2));
        TrainerOptions { batch, accumulate, threads: 1, rule, beta1, beta2, eps, weight_decay, clip }
    }
}

/// The loss and the gradient.
fn gradient(trainer: &mut dyn Trainer, model: &ModelConfig, tokens: &[u32]) -> (f64, Vec<f32>) {
    let mut out = vec![f32::NAN; model.schema().elements()];
    trainer.load(&initial_parameters(model, 1)).unwrap();
    let report = trainer.gradient(tokens, &mut out).unwrap();
    (report.loss, out)
}

/// The size of the difference, relative to what is known.
fn apart(got: &[f32], known: &[f32]) -> f64 {
    let pairs = got.iter().zip(known).map(|(&a, &b)| (f64::from(a), f64::from(b)));
    let [apart, all] = pairs.fold([0.0; 2], |[apart, all], (a, b)| [apart + (a - b).powi(2), all + b * b]);
    (apart / all).sqrt()
}

#[test]
fn gradients_of_any_model_are_the_cpus() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    let seed = std::env::var("STARLING_SEED").map_or(now, |seed| seed.parse().expect("STARLING_SEED is a number"));
    println!("STARLING_SEED={seed}");
    let (mut dice, began) = (Dice(seed), Instant::now());
    for shape in 0..SHAPES {
        if began.elapsed() > BUDGET {
            println!("{shape} of {SHAPES} shapes were played in {BUDGET:?}");
            return;
        }
        let (model, options) = (dice.model(), dice.options());
        // A device that is no card is compared here, and needs no known answers before.
        let mut device = match open_untried_trainer(&DeviceChoice::Wgpu(0), &model, &options) {
            Ok(device) => device,
            Err(error) if std::env::var_os("STARLING_REQUIRE_WGPU").is_some() => panic!("{error}"),
            Err(error) => {
                println!("SKIPPED: {error}");
                return;
            }
        };
        let mut cpu = open_trainer(&DeviceChoice::Cpu, &model, &options).unwrap();
        let count = options.batch * options.accumulate * (model.seq_len + 1);
        let tokens: Vec<u32> = (0..count).map(|_| dice.roll(0, model.vocab - 1) as u32).collect();
        let (loss, ours) = gradient(&mut *device, &model, &tokens);
        let (known, theirs) = gradient(&mut *cpu, &model, &tokens);
        let error = apart(&ours, &theirs);
        println!("{:.1} s, {error:.1e} apart: {model:?}, {options:?}", began.elapsed().as_secs_f64());
        assert!(error < BOUND, "seed {seed}: gradients are {error:.1e} apart: {model:?}");
        assert!((loss - known).abs() < BOUND * known, "seed {seed}: loss {loss}, not {known}: {model:?}");
    }
}
