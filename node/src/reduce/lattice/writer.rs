//! All that this node sends to one member: parts, then sums of rows, then finished sums.

use super::context::Context;
use super::known::{Known, NOTHING};
use crate::net::BulkStream;
use crate::reduce::error::ReduceError;
use crate::reduce::group::Outlet;
use crate::reduce::links::BulkLinks;
use crate::reduce::progress::Way;
use starling_protocol::frame::{FRAME_PAYLOAD_BYTES_MAX, FrameKind};
use starling_protocol::message::Awaited;
use starling_protocol::update::lattice::{encode_row_sum, sum_hash};
use std::sync::Arc;

pub(super) async fn write(links: Arc<dyn BulkLinks>, context: Arc<Context>, place: usize) -> Result<(), ReduceError> {
    let mut stream = Outlet::open(&links, &context, place).await?;
    let known = hear_known(&mut stream, &context, place).await?;
    let mut outlet = Outlet::new(&context, place, stream);
    let written = write_all(&mut outlet, &context, place, &known).await;
    outlet.end(written)
}

/// Hears from the member at `place` what it has, in any attempt but the first.
async fn hear_known(stream: &mut BulkStream, context: &Context, place: usize) -> Result<Known, ReduceError> {
    let cargo = &context.leaving[place];
    let due = (cargo.parts.len(), cargo.row_sums.len(), cargo.sums.len());
    if !context.repairs() {
        return Ok(Known::nothing(due.0, due.1, due.2));
    }
    let known = context.hear((place, Way::Out), Awaited::Part, Known::read(stream, due)).await?;
    context.heard(place, &known.parts);
    Ok(known)
}

async fn write_all(outlet: &mut Outlet<'_>, context: &Context, place: usize, known: &Known) -> Result<(), ReduceError> {
    let cargo = &context.leaving[place];
    outlet.write_parts(&cargo.parts, &known.parts).await?;
    write_row_sums(outlet, context, &cargo.row_sums, &known.row_sums).await?;
    write_sums(outlet, context, &cargo.sums, &known.sums).await?;
    outlet.finish().await
}

/// Writes the sums of rows that this node has made or passes on, as they are there.
async fn write_row_sums(
    outlet: &mut Outlet<'_>,
    context: &Context,
    due: &[(usize, usize)],
    unwanted: &[bool],
) -> Result<(), ReduceError> {
    let mut payload = Vec::new();
    for (place, _) in due.iter().zip(unwanted).filter(|(_, unwanted)| !**unwanted) {
        outlet.wait_for(context.post.has(*place), context.post.arrived(*place)).await?;
        let Some(sum) = context.post.take(*place) else { return Err(ReduceError::Over) };
        encode_row_sum(&sum, &mut payload);
        outlet.write_frame(FrameKind::RowSum, place.0, &payload).await?;
    }
    Ok(())
}

/// Writes the finished sums, as they are there: of those that the member holds, the header only.
async fn write_sums(
    outlet: &mut Outlet<'_>,
    context: &Context,
    chunks: &[usize],
    held: &[u64],
) -> Result<(), ReduceError> {
    let mut payload = Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX);
    for (chunk, held) in chunks.iter().copied().zip(held) {
        outlet.wait_for(context.is_done(chunk), context.finished(chunk)).await?;
        if !context.sheet.copy(chunk, &mut payload) {
            return Err(ReduceError::Over);
        }
        let is_known = *held != NOTHING && *held == sum_hash(&payload);
        let kind = if is_known { FrameKind::Known } else { FrameKind::Reduced };
        outlet.write_frame(kind, chunk, &payload).await?;
    }
    Ok(())
}
