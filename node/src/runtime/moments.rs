//! AdamW's moments on disk: private to a node and never required, but without them the first steps after a restart are
//! a little less well scaled.
//!
//! `step u64 | elements u64 | first moment f32.. | second moment f32..`, little endian, under one seal. They travel
//! between trainer and disk in pieces: two f32 a parameter must not be in memory twice.

use anyhow::Context;
use starling_kernels::{Moments, Trainer};
use starling_store::{PrivateReader, Store};

/// Name of the file in the store.
const NAME: &str = "moments";
const HEADER_BYTES: u64 = 16;

/// Writes the trainer's moments in place of those on disk, which stay if the write does not end.
///
/// # Errors
/// The device or the disk failed, or the disk is full.
pub fn save(trainer: &mut dyn Trainer, store: &Store) -> anyhow::Result<()> {
    let Moments { step, elements } = trainer.moments();
    let mut file = store.write_private(NAME, HEADER_BYTES + 8 * elements as u64)?;
    file.write(&step.to_le_bytes())?;
    file.write(&(elements as u64).to_le_bytes())?;
    trainer.read_moments(&mut |piece| file.write_f32s(piece).map_err(|e| e.to_string()))?;
    Ok(file.commit()?)
}

/// Gives the trainer the moments on disk; false if there are none.
///
/// # Errors
/// The file is damaged or another model's; the trainer's optimizer is as new then.
pub fn restore(trainer: &mut dyn Trainer, store: &Store) -> anyhow::Result<bool> {
    let Some(mut file) = store.read_private(NAME)? else { return Ok(false) };
    let (mut step, mut elements) = ([0; 8], [0; 8]);
    file.read(&mut step)?;
    file.read(&mut elements)?;
    let elements = usize::try_from(u64::from_le_bytes(elements)).context("they are of no model that there can be")?;
    let moments = Moments { step: u64::from_le_bytes(step), elements };
    if elements == 0 {
        file.finish()?;
        trainer.write_moments(moments, &mut |_| Ok(()))?;
        return Ok(true);
    }
    let mut file = Some(file);
    let plain = |e: anyhow::Error| starling_words::of_chain(e.chain());
    trainer.write_moments(moments, &mut |piece| next_piece(&mut file, piece).map_err(plain))?;
    Ok(true)
}

/// Fills `piece`. The seal is checked with the last one, so that an error still makes the trainer begin anew.
fn next_piece(file: &mut Option<PrivateReader>, piece: &mut [f32]) -> anyhow::Result<()> {
    let mut open = file.take().context("the model has more of them")?;
    open.read_f32s(piece)?;
    match open.remaining() {
        0 => open.finish()?,
        _ => *file = Some(open),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_kernels::host::optimizer::Rule;
    use starling_kernels::{DeviceChoice, ModelConfig, TrainerOptions, initial_parameters, open_trainer};
    use starling_store::StoreOptions;
    use std::path::Path;

    fn model(layers: usize) -> ModelConfig {
        // Each moment of this model is two pieces long.
        ModelConfig {
            vocab: 300,
            d_model: 256,
            layers,
            heads: 4,
            kv_heads: 2,
            ffn: 256,
            seq_len: 8,
            tied: true,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
        }
    }

    fn trainer(model: &ModelConfig) -> Box<dyn Trainer> {
        let options = TrainerOptions {
            batch: 1,
            accumulate: 1,
            threads: 1,
            rule: Rule::AdamW,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            clip: 0.0,
        };
        let mut trainer = open_trainer(&DeviceChoice::Cpu, model, &options).expect("the CPU is there");
        trainer.load(&initial_parameters(model, 1)).expect("parameters of this model");
        trainer
    }

    fn store(dir: &Path) -> Store {
        let options = StoreOptions { ballast_bytes: 0, reserve_bytes: 0, max_bytes: 0 };
        Store::open(dir, options).expect("a folder of its own").store
    }

    fn all(trainer: &mut dyn Trainer) -> (Moments, Vec<f32>) {
        let mut numbers = Vec::new();
        let mut take = |piece: &[f32]| {
            numbers.extend_from_slice(piece);
            Ok(())
        };
        trainer.read_moments(&mut take).expect("the CPU does not fail");
        (trainer.moments(), numbers)
    }

    fn trained(model: &ModelConfig) -> Box<dyn Trainer> {
        let mut trainer = trainer(model);
        trainer.step(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 1e-3).expect("a batch of this model");
        trainer
    }

    #[test]
    fn they_come_back_to_the_bit() {
        let dir = tempfile::tempdir().expect("a folder");
        let (store, model) = (store(dir.path()), model(1));
        let (mut first, mut second) = (trained(&model), trainer(&model));
        assert!(!restore(&mut *second, &store).expect("nothing is no error"));
        save(&mut *first, &store).expect("saved");
        assert!(restore(&mut *second, &store).expect("whole"));
        let (moments, numbers) = all(&mut *second);
        assert_eq!((moments.step, numbers.len()), (1, 2 * model.parameters() as usize));
        assert!(numbers.iter().any(|x| *x != 0.0));
        assert_eq!(all(&mut *first), (moments, numbers));
    }

    #[test]
    fn damage_in_any_piece_leaves_a_new_optimizer() {
        let dir = tempfile::tempdir().expect("a folder");
        let (store, model) = (store(dir.path()), model(1));
        let path = dir.path().join("private").join(NAME);
        let mut first = trained(&model);
        save(&mut *first, &store).expect("saved");
        let good = std::fs::read(&path).expect("it is there");
        for at in [8, 20, 40, 1 << 20, good.len() / 2, good.len() - 40, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 4;
            std::fs::write(&path, bad).expect("written");
            let mut second = trained(&model);
            let before = all(&mut *second);
            restore(&mut *second, &store).expect_err("it is damaged");
            let (moments, numbers) = all(&mut *second);
            // The length in the header is checked before anything is changed.
            let new = moments.step == 0 && numbers.iter().all(|x| *x == 0.0);
            assert!(new || (at < 16 && (moments, numbers) == before), "byte {at}");
        }
    }

    #[test]
    fn another_models_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = store(dir.path());
        save(&mut *trained(&model(1)), &store).expect("saved");
        let mut other = trainer(&model(2));
        let said = restore(&mut *other, &store).expect_err("another model").to_string();
        assert!(said.contains("another model"), "{said}");
        assert_eq!(other.moments().step, 0);
    }
}
