//! A run from its beginning to its end, and what comes of it.

use super::member::has_diverged;
use super::run::Run;
use super::setting::Setting;
use super::text::Text;
use anyhow::Result;
use starling_kernels::DeviceChoice;
use std::time::Instant;

/// Most sequences that the final loss is measured on.
const HELD_OUT_MAX: usize = 2048;
/// Most sequences for each point of a curve.
const POINT_MAX: usize = 512;

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Nats per byte at the end; none if the run diverged.
    pub loss: Option<f64>,
    /// Tokens and nats per byte, as far as the run came.
    pub curve: Vec<(f64, f64)>,
    /// Seconds of a lab's run at the points of the curve, if its rounds are played.
    pub lab_seconds: Vec<f64>,
    /// Seconds that the run took here.
    pub seconds: f64,
}

/// Plays a run.
///
/// # Errors
/// If it could not be played; a run that diverges is an outcome.
pub fn play(setting: &Setting, device: &DeviceChoice, text: &Text, seed: u64) -> Result<Outcome> {
    let (clock, mut outcome) = (Instant::now(), Outcome::default());
    match train(setting, device, text, seed, &mut outcome) {
        Ok(loss) => outcome.loss = Some(loss),
        Err(error) if has_diverged(&error) => {}
        Err(error) => return Err(error),
    }
    outcome.seconds = clock.elapsed().as_secs_f64();
    Ok(outcome)
}

/// Returns the loss at the end.
fn train(setting: &Setting, device: &DeviceChoice, text: &Text, seed: u64, outcome: &mut Outcome) -> Result<f64> {
    let mut run = Run::new(setting, device, text, seed)?;
    let rounds = setting.rounds.len();
    for round in 0..rounds {
        // Points are at equal tokens in all cases, as near as the cases' rounds allow.
        if run.done().0 * setting.points >= outcome.curve.len() * setting.steps {
            point(&mut run, setting, round, outcome)?;
        }
        run.round(round)?;
    }
    point(&mut run, setting, rounds, outcome)?;
    run.validate(HELD_OUT_MAX)
}

/// Adds a point to the curve, before the round of this number.
fn point(run: &mut Run, setting: &Setting, round: usize, outcome: &mut Outcome) -> Result<()> {
    outcome.curve.push((run.done().1 as f64, run.validate(POINT_MAX)?));
    let seconds = match round.checked_sub(1) {
        None => setting.rounds.first().and_then(|first| first.seconds).map(|_| 0.0),
        Some(before) => setting.rounds.get(before).and_then(|before| before.seconds),
    };
    outcome.lab_seconds.extend(seconds);
    Ok(())
}

#[cfg(test)]
#[path = "play_test.rs"]
mod tests;
