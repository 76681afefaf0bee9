//! Gradients of whole models of telling sizes on a graphics adapter, which may be software, beside the CPU's: heads and
//! their groups, lengths, vocabularies and odd widths.

use starling_kernels::host::optimizer::Rule;
use starling_kernels::{
    DeviceChoice, ModelConfig, Trainer, TrainerOptions, initial_parameters, open_trainer, open_untried_trainer,
};

/// Bound on the difference of all gradients together, and of the loss, relative to the CPU's.
const BOUND: f64 = 1e-3;

/// A model, and the sequences and parts of its step.
struct Case {
    model: ModelConfig,
    batch: usize,
    accumulate: usize,
}

impl Case {
    fn options(&self) -> TrainerOptions {
        let (batch, accumulate) = (self.batch, self.accumulate);
        let (rule, beta1, beta2, eps, weight_decay, clip) = (Rule::AdamW, 0.9, 0.99, 1e-8, 0.1, 1.0);
        TrainerOptions { batch, accumulate, threads: 1, rule, beta1, beta2, eps, weight_decay, clip }
    }

    /// Tokens without a pattern.
    fn tokens(&self) -> Vec<u32> {
        let (mut state, vocab) = (1u64, self.model.vocab as u64);
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % vocab) as u32
        };
        std::iter::repeat_with(next).take(self.batch * self.accumulate * (self.model.seq_len + 1)).collect()
    }
}

/// Each has something that no other has, as its comment says.
fn cases() -> [Case; 5] {
    let (tied, rope_theta, norm_eps) = (true, 10_000.0, 1e-5);
    let plain = ModelConfig {
        vocab: 256,
        d_model: 64,
        layers: 1,
        heads: 2,
        kv_heads: 2,
        ffn: 96,
        seq_len: 32,
        tied,
        rope_theta,
        norm_eps,
    };
    let case = |model, batch, accumulate| Case { model, batch, accumulate };
    [
        // The least of everything: one token, one unit of the feed-forward layer, heads of two, two words.
        case(ModelConfig { vocab: 2, d_model: 6, heads: 3, kv_heads: 3, ffn: 1, seq_len: 1, ..plain.clone() }, 3, 1),
        // An odd number of heads on one key head, a length one over a tile, an odd vocabulary, a table of its own.
        case(
            ModelConfig {
                vocab: 257,
                d_model: 130,
                layers: 2,
                heads: 5,
                kv_heads: 1,
                ffn: 31,
                seq_len: 65,
                tied: false,
                ..plain.clone()
            },
            1,
            2,
        ),
        // Groups of four, a prime vocabulary, a length that is no multiple of anything much.
        case(
            ModelConfig { vocab: 691, d_model: 72, heads: 12, kv_heads: 3, ffn: 157, seq_len: 90, ..plain.clone() },
            2,
            1,
        ),
        // Wide heads that are no power of two, seven of them.
        case(ModelConfig { vocab: 97, d_model: 322, heads: 7, kv_heads: 7, seq_len: 19, ..plain.clone() }, 1, 1),
        // One head, two tokens, three parts of a step.
        case(ModelConfig { vocab: 500, d_model: 48, layers: 2, heads: 1, kv_heads: 1, seq_len: 2, ..plain }, 2, 3),
    ]
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
    for case in cases() {
        let (model, options, tokens) = (&case.model, case.options(), case.tokens());
        // A device that is no card is compared here, and needs no known answers before.
        let mut device = match open_untried_trainer(&DeviceChoice::Wgpu(0), model, &options) {
            Ok(device) => device,
            Err(error) if std::env::var_os("STARLING_REQUIRE_WGPU").is_some() => panic!("{error}"),
            Err(error) => {
                println!("SKIPPED: {error}");
                return;
            }
        };
        let mut cpu = open_trainer(&DeviceChoice::Cpu, model, &options).unwrap();
        let (loss, ours) = gradient(&mut *device, model, &tokens);
        let (known, theirs) = gradient(&mut *cpu, model, &tokens);
        let error = apart(&ours, &theirs);
        println!("{error:.1e} apart: {model:?}, {options:?}");
        assert!(error < BOUND, "gradients are {error:.1e} apart: {model:?}");
        assert!((loss - known).abs() < BOUND * known, "loss {loss}, not {known}: {model:?}");
    }
}
