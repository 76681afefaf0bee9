//! `starling eval`: how well a trained model predicts a text.

use super::trained::Trained;
use crate::cli::EvalArgs;
use crate::exit::{Code, Failure};
use crate::watch::terminal;
use anyhow::Context;
use serde::Serialize;
use serde_json::json;
use starling_data::{PlainText, plain_text};
use std::process::ExitCode;

/// Sequences that the device is given at a time.
const BATCH: usize = 8;

/// A text as the model predicts it.
#[derive(Debug, Serialize)]
struct Measured {
    run: String,
    seq: u64,
    round: u64,
    documents: u64,
    bytes: u64,
    tokens: u64,
    /// Tokens that were predicted: all but the first.
    predicted: u64,
    nats_per_token: f64,
    nats_per_byte: f64,
    perplexity: f64,
    /// The text goes on after `--bytes-max`.
    cut: bool,
}

/// Reads the text, measures the model on it, and prints the result.
pub fn run(args: &EvalArgs) -> Result<ExitCode, Failure> {
    let trained = Trained::find(&args.model)?;
    let (tokenizer, _) = trained.tokenizer(args.tokenizer.as_deref())?;
    let text = plain_text(&args.text, &args.field, &tokenizer, args.bytes_max)?;
    if let Some(count) = args.logits {
        return logits(&trained, &args.device, &text, count);
    }
    let measured = measure(&trained, &args.device, &text)?;
    if args.json {
        terminal::put(&(serde_json::to_string_pretty(&measured).context("cannot print the result")? + "\n"));
    } else {
        terminal::put(&words(&measured));
    }
    Ok(ExitCode::SUCCESS)
}

/// Predicts each token but the first once, in sequences as training has them: a token sees those of its own sequence.
fn measure(trained: &Trained, device: &str, text: &PlainText) -> Result<Measured, Failure> {
    let tokens = &text.tokens;
    let length = trained.spec.model.seq_len as usize;
    let predicted = tokens.len().saturating_sub(1);
    let (whole, rest) = (predicted / length, predicted % length);
    let mut nats = 0.0;
    if whole > 0 {
        let (mut trainer, _) = trained.open(device, length, BATCH.min(whole))?;
        let mut rows = Vec::with_capacity(BATCH * (length + 1));
        for first in (0..whole).step_by(BATCH) {
            rows.clear();
            for row in first..whole.min(first + BATCH) {
                rows.extend_from_slice(&tokens[row * length..=(row + 1) * length]);
            }
            nats += trainer.evaluate(&rows)?.0;
        }
    }
    if rest > 0 {
        // The last sequence is shorter. Nothing else of the model depends on the length.
        let (mut trainer, _) = trained.open(device, rest, 1)?;
        nats += trainer.evaluate(&tokens[whole * length..])?.0;
    }
    if !nats.is_finite() {
        let why = "the model's loss on this text is not a finite number: it is damaged, or has diverged in training";
        return Err(Failure::message(Code::Refused, why));
    }
    let per_token = nats / predicted.max(1) as f64;
    Ok(Measured {
        run: trained.spec.name.clone(),
        seq: trained.record.seq,
        round: trained.record.round,
        documents: text.documents,
        bytes: text.bytes,
        tokens: tokens.len() as u64,
        predicted: predicted as u64,
        nats_per_token: per_token,
        // As a node's validation: by the bytes that a token has on average.
        nats_per_byte: per_token * tokens.len() as f64 / text.bytes.max(1) as f64,
        perplexity: per_token.exp(),
        cut: text.is_cut,
    })
}

fn words(measured: &Measured) -> String {
    let Measured { documents, bytes, predicted, nats_per_token, nats_per_byte, perplexity, cut, .. } = measured;
    let cut = if *cut { " (the text goes on; --bytes-max reads more)" } else { "" };
    format!(
        "text: {}, {bytes} bytes{cut}, {predicted} tokens predicted\n\
         loss: {nats_per_token:.4} nats per token, {nats_per_byte:.4} nats per byte; perplexity {perplexity:.3} per \
         token\n",
        starling_words::count(documents, "document")
    )
}

/// Prints the logits after each of the first tokens, for a comparison with another program.
fn logits(trained: &Trained, device: &str, text: &PlainText, count: usize) -> Result<ExitCode, Failure> {
    let length = trained.spec.model.seq_len as usize;
    let count = count.min(length).min(text.tokens.len());
    let (mut trainer, _) = trained.open(device, length, 1)?;
    let tokens = &text.tokens[..count];
    let rows = (1..=count).map(|end| trainer.logits(&tokens[..end])).collect::<Result<Vec<_>, _>>()?;
    terminal::put(&format!("{}\n", json!({"tokens": tokens, "logits": rows})));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_knows_nothing_is_as_good_as_a_guess_at_any_length() {
        let trained = Trained::untrained();
        let text = |tokens: usize| PlainText {
            tokens: (0..tokens as u32).map(|n| n * 7 % 256).collect(),
            bytes: tokens as u64,
            documents: 1,
            is_cut: false,
        };
        for tokens in [2, 128, 129, 130, 300, 1500] {
            let measured = measure(&trained, "cpu", &text(tokens)).expect("it is measured");
            assert_eq!(measured.predicted, tokens as u64 - 1);
            let off = (measured.nats_per_token - 256f64.ln()).abs();
            assert!(off < 0.2, "{tokens} tokens: {measured:?}");
            assert!((measured.nats_per_byte - measured.nats_per_token).abs() < 1e-12);
        }
    }
}
