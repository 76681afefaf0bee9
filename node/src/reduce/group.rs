//! The parts of a reduction that owners, and rows and columns, have in common: members add up encoded parts, and then
//! send each other finished sums. Which member adds up what, and who sends what to whom, are theirs ([`owners`], [`lattice`]).
//!
//! [`owners`]: super::owners
//! [`lattice`]: super::lattice

mod adder;
mod desk;
mod inlet;
mod members;
mod outlet;

pub(super) use adder::{Arriving, add_up};
pub(super) use desk::{Desk, Excess};
pub(super) use inlet::Inlet;
pub(super) use members::{Group, Lineup};
pub(super) use outlet::Outlet;

use super::error::ReduceError;
use super::linger::linger;
use super::progress::Progress;
use super::{Attempt, ReduceJob};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Begins an attempt, on a thread that may block: the norm of the offer takes as long to compute as settling takes.
pub(super) async fn begin<C: Send + 'static>(
    job: ReduceJob,
    progress: Progress,
    context: fn(ReduceJob, Progress) -> Result<C, ReduceError>,
) -> Result<Arc<C>, ReduceError> {
    let beginning = move || {
        job.feedback.settle();
        context(job, progress)
    };
    let context = tokio::task::spawn_blocking(beginning).await;
    Ok(Arc::new(context.map_err(|error| ReduceError::Task(error.to_string()))??))
}

/// Waits until all tasks of an attempt have ended, and returns the update. After a failure the others go on for a while:
/// parts and sums that still arrive are kept for the next attempt.
pub(super) async fn end(
    mut tasks: JoinSet<Result<(), ReduceError>>,
    attempt: Attempt,
    group: &Group,
) -> Result<Vec<u8>, ReduceError> {
    while let Some(ended) = tasks.join_next().await {
        let result = ended.unwrap_or_else(|error| Err(ReduceError::Task(error.to_string())));
        if let Err(error) = result {
            tokio::spawn(linger(tasks, attempt, Arc::clone(&group.job.sums)));
            return Err(error);
        }
    }
    group.progress.finish();
    group.sheet.take().ok_or(ReduceError::Over)
}
