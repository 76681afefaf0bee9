//! Rows and columns: the reduction of a flock of several rows (`docs/protocol/3-reduction.md` §3.10). Parts travel in
//! rows, sums of rows in columns, and a member has streams with members of its row and its column only.
//!
//! A reduction has a *writer* and a *reader* for each member that anything goes to or comes from, an *adder* of this
//! node's row, and a *closer*, which adds up the rows of the chunks that this node owns. The things that go over a
//! stream, and their order, both ends know from [`Lattice`](starling_protocol::update::lattice::Lattice): parts, sums
//! of rows, finished sums. A relay passes the last two on as they are.
//!
//! Readers wait for nothing but their stream. Parts depend on nothing, sums of rows on parts, and sums go by ascending
//! chunk on all streams, so the first sum that is not everywhere yet never waits for another: nobody waits in a circle.
//!
//! Repair is that of [owners](super::owners): parts and finished sums are kept. A member says which parts it has, and
//! the hash of each sum, since a sum comes from its owner over others: what is the same is not sent again. Sums of rows
//! hold weights, which follow from the set, so they are never kept.

mod check;
mod context;
mod known;
mod post;
mod reader;
mod writer;

use super::error::ReduceError;
use super::group::{self, Arriving, Desk};
use super::links::BulkLinks;
use super::progress::{Progress, ProgressFn};
use super::{Attempt, ReduceEngine, ReduceJob, note_refusal};
use context::Context;
use futures::future::BoxFuture;
use starling_protocol::update::lattice::total;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The engine of rows and columns. Cheap to clone.
#[derive(Clone)]
pub struct LatticeReducer {
    links: Arc<dyn BulkLinks>,
}

impl LatticeReducer {
    pub fn new(links: impl BulkLinks) -> Self {
        Self { links: Arc::new(links) }
    }
}

impl ReduceEngine for LatticeReducer {
    fn run(&self, job: ReduceJob, progress: ProgressFn) -> BoxFuture<'static, Result<Vec<u8>, ReduceError>> {
        let links = Arc::clone(&self.links);
        Box::pin(async move {
            let attempt = Attempt { links: Arc::clone(&links), key: job.key };
            let sums = Arc::clone(&job.sums);
            let result = reduce(links, attempt, job, Progress::new(progress)).await;
            note_refusal(&result, &sums);
            result
        })
    }
}

async fn reduce(
    links: Arc<dyn BulkLinks>,
    attempt: Attempt,
    job: ReduceJob,
    progress: Progress,
) -> Result<Vec<u8>, ReduceError> {
    let context = group::begin(job, progress, Context::new).await?;
    let mut tasks = JoinSet::new();
    let (members, added) = (context.members.len(), context.added().count());
    let mut arriving: Vec<_> = (0..members).map(|_| None).collect();
    for place in (1..members).map(|after| (context.me + after) % members) {
        if !context.leaving[place].is_empty() {
            tasks.spawn(writer::write(Arc::clone(&links), Arc::clone(&context), place));
        }
        if !context.arriving[place].is_empty() {
            let (arrived, parts) = mpsc::channel(added.max(1));
            arriving[place] = Some(parts);
            tasks.spawn(reader::read(Arc::clone(&links), Arc::clone(&context), place, arrived));
        }
    }
    tasks.spawn(add_up(Arc::clone(&context), arriving));
    tasks.spawn(close_up(Arc::clone(&context)));
    group::end(tasks, attempt, &context).await
}

/// Adds up the parts of this node's row, chunk by chunk, its own like every other.
async fn add_up(context: Arc<Context>, mut arriving: Vec<Arriving>) -> Result<(), ReduceError> {
    let mut desk = Desk::new(&context);
    let mut before = vec![0.0; context.members.len()];
    let row: Vec<usize> = context.lattice.row(context.row).collect();
    for chunk in context.added() {
        let (came, mut sum) = ((arriving.as_mut_slice(), before.as_mut_slice()), Vec::new());
        if !group::add_up(&context, &mut desk, (chunk, &row), came, &mut sum).await? {
            return Ok(());
        }
        context.post.put((chunk, context.row), sum);
        // Other tasks get a turn between chunks.
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Makes the finished sums of the chunks that this node owns, one after another.
async fn close_up(context: Arc<Context>) -> Result<(), ReduceError> {
    let mut desk = Desk::new(&context);
    for chunk in context.made() {
        let mut rows = Vec::new();
        for row in context.lattice.rows(chunk) {
            tokio::select! {
                biased;
                () = context.sheet.superseded() => return Err(ReduceError::Over),
                () = context.post.arrived((chunk, row)) => (),
            }
            rows.extend(context.post.take((chunk, row)));
        }
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let mut sum = total(context.elements_of(chunk), &rows);
        desk.finish(&context, chunk, &mut sum)?;
        context.finish(chunk);
        tokio::task::yield_now().await;
    }
    Ok(())
}

#[cfg(test)]
#[path = "lattice_test.rs"]
mod tests;
