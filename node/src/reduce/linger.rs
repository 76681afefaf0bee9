//! The time for which a node whose reduction has failed goes on serving the others. Members that have not yet seen the
//! real cause would suspect a node that closed its streams at once; some of them may still end with the update, and
//! parts and sums that still arrive are kept for the next attempt.

use super::error::ReduceError;
use super::{Attempt, Sums, note_refusal};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

pub(super) const LINGER: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 2000 });

/// Goes on serving the others for a while.
pub(super) async fn linger(mut tasks: JoinSet<Result<(), ReduceError>>, attempt: Attempt, sums: Arc<Sums>) {
    let rest = async {
        while let Some(ended) = tasks.join_next().await {
            if let Ok(result) = ended {
                note_refusal(&result, &sums);
            }
        }
    };
    drop(tokio::time::timeout(LINGER, rest).await);
    tasks.shutdown().await;
    drop(attempt);
}
