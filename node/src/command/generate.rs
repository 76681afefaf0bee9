//! `starling generate`: text from a trained model.

use super::trained::Trained;
use crate::cli::GenerateArgs;
use crate::exit::{Code, Failure};
use rand::{Rng, SeedableRng};
use std::io::Write;
use std::process::ExitCode;

/// Prints the prompt and the text with which the model continues it.
pub fn run(args: &GenerateArgs) -> Result<ExitCode, Failure> {
    if !(args.temperature.is_finite() && args.temperature >= 0.0) {
        return Err(Failure::message(Code::Usage, "--temperature must be 0 or more"));
    }
    let trained = Trained::find(&args.model)?;
    let (tokenizer, _) = trained.tokenizer(args.tokenizer.as_deref())?;
    let (mut trainer, model) = trained.open(&args.device, trained.spec.model.seq_len as usize, 1)?;

    let mut tokens = tokenizer.encode(&args.prompt)?;
    if tokens.is_empty() {
        tokens.push(u32::from(b'\n').min(model.vocab as u32 - 1));
    }
    let mut sampler = Sampler::new(args);
    for _ in 0..args.tokens {
        let context = &tokens[tokens.len().saturating_sub(model.seq_len)..];
        let logits = trainer.logits(context)?;
        let next = sampler.sample(&logits);
        if tokenizer.end() == Some(next) {
            break;
        }
        tokens.push(next);
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", tokenizer.decode(&tokens)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Temperature and top-k sampling from a seed.
struct Sampler {
    random: rand::rngs::StdRng,
    temperature: f64,
    top_k: usize,
}

impl Sampler {
    fn new(args: &GenerateArgs) -> Self {
        Self { random: rand::rngs::StdRng::seed_from_u64(args.seed), temperature: args.temperature, top_k: args.top_k }
    }

    fn sample(&mut self, logits: &[f32]) -> u32 {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let keep = if self.temperature == 0.0 {
            1
        } else if self.top_k == 0 {
            order.len()
        } else {
            self.top_k
        };
        order.truncate(keep.max(1));
        let top = f64::from(logits[order[0]]);
        let weights: Vec<f64> =
            order.iter().map(|i| ((f64::from(logits[*i]) - top) / self.temperature.max(1e-6)).exp()).collect();
        let mut left = self.random.random::<f64>() * weights.iter().sum::<f64>();
        for (index, weight) in order.iter().zip(&weights) {
            left -= weight;
            if left <= 0.0 {
                return *index as u32;
            }
        }
        order[0] as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f64, top_k: usize) -> Sampler {
        Sampler { random: rand::rngs::StdRng::seed_from_u64(7), temperature, top_k }
    }

    #[test]
    fn cold_sampling_takes_the_likeliest_and_top_k_bounds_the_choice() {
        let logits = [0.0, 3.0, 2.9, -1.0];
        assert_eq!(sampler(0.0, 0).sample(&logits), 1);
        let mut warm = sampler(5.0, 2);
        let seen: std::collections::BTreeSet<u32> = (0..200).map(|_| warm.sample(&logits)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2]);
    }
}
