//! A model on a device, behind one interface for all runtimes and precisions.

use crate::buffers::Need;
use crate::optimizer::Update;

/// The outcome of one step, as the device told it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Mean cross-entropy before the update, in nats per token.
    pub loss: f64,
    /// Global norm of the gradient before clipping.
    pub norm: f64,
    /// Whether the optimizer changed anything: it does not where loss or norm are not finite.
    pub applied: bool,
}

/// One of the optimizer's two moments. A rule without it leaves it as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    First,
    Second,
}

/// A model on a device. Its runtime may answer with a panic: [`crate::guarded`] makes an error of it. Vectors of the
/// host are f32, in the order of its layout. Errors are the device's words; after one nothing is known of what the
/// device holds.
pub trait Session: Send {
    /// The ways of products and attention, and their precision, as the end of a sentence.
    fn ways(&self) -> String;

    /// The memory that was set aside.
    fn need(&self) -> Need;

    /// Waits for the memory that was set aside, and finds out whether it is there.
    fn check(&mut self) -> Result<(), String>;

    /// Replaces the parameters.
    fn load(&mut self, parameters: &[f32]) -> Result<(), String>;

    /// Copies the parameters out.
    fn read(&mut self, out: &mut [f32]) -> Result<(), String>;

    /// One step over all parts of 1 to [`crate::BATCHES_MAX`] batches: `inputs` and `targets` have `parts * sequences *
    /// tokens` tokens each a batch.
    fn step(&mut self, inputs: &[u32], targets: &[u32], update: &Update) -> Result<Report, String>;

    /// Instead of a step: writes the mean gradient, unclipped, into `out`.
    fn gradient(&mut self, inputs: &[u32], targets: &[u32], out: &mut [f32]) -> Result<Report, String>;

    /// The sum of nats of at most `sequences` whole sequences.
    fn evaluate(&mut self, inputs: &[u32], targets: &[u32]) -> Result<f64, String>;

    /// Logits of the token that follows 1 to `tokens` tokens.
    fn logits(&mut self, inputs: &[u32]) -> Result<Vec<f32>, String>;

    /// Numbers of a moment from the host's place `start` on.
    fn read_moment(&mut self, which: Moment, start: usize, out: &mut [f32]) -> Result<(), String>;

    /// Replaces numbers of a moment from the host's place `start` on.
    fn write_moment(&mut self, which: Moment, start: usize, values: &[f32]) -> Result<(), String>;

    /// Sets both moments to zero.
    fn clear_moments(&mut self) -> Result<(), String>;
}
