//! All that one member sends to this node: parts, then sums of rows, then finished sums.

use super::check::{self, Squares};
use super::context::Context;
use super::known::{Known, NOTHING};
use crate::net::BulkStream;
use crate::reduce::error::{PeerFault, ReduceError};
use crate::reduce::group::{Desk, Inlet};
use crate::reduce::links::BulkLinks;
use crate::reduce::progress::Way;
use crate::reduce::stream::{read_frame, read_sum};
use starling_protocol::frame::{FRAME_HEADER_BYTES, FrameKind};
use starling_protocol::message::Awaited;
use starling_protocol::update::lattice::sum_hash;
use std::sync::Arc;
use tokio::sync::mpsc;

pub(super) async fn read(
    links: Arc<dyn BulkLinks>,
    context: Arc<Context>,
    place: usize,
    arrived: mpsc::Sender<Arc<Vec<u8>>>,
) -> Result<(), ReduceError> {
    let mut inlet = Inlet::accept(&links, &context, place, first(&context, place)).await?;
    let Answer { parts, known } = answer(&mut inlet.stream, &context, place).await?;
    let parts = context.arriving[place].parts.iter().copied().zip(parts);
    inlet.read_parts(parts.filter(|(chunk, _)| !context.keeps(*chunk)), arrived).await?;
    read_row_sums(&mut inlet, &context, &known.row_sums).await?;
    read_sums(&mut inlet, &context, &known.sums).await?;
    inlet.end();
    Ok(())
}

/// The first thing that is to come from a member.
fn first(context: &Context, place: usize) -> Awaited {
    let cargo = &context.arriving[place];
    match (cargo.parts.is_empty(), cargo.row_sums.is_empty()) {
        (false, _) => Awaited::Part,
        (true, false) => Awaited::RowSum,
        (true, true) => Awaited::Sum,
    }
}

/// The things that this node has of what a member is to send.
struct Answer {
    /// Its parts that are here; none of chunks that this node keeps.
    parts: Vec<Option<Arc<Vec<u8>>>>,
    known: Known,
}

/// Tells the member at `place` what is here, in any attempt but the first.
async fn answer(stream: &mut BulkStream, context: &Context, place: usize) -> Result<Answer, ReduceError> {
    let (key, member, cargo) = (&context.job.key, &context.members[place], &context.arriving[place]);
    if !context.repairs() {
        let known = Known::nothing(cargo.parts.len(), cargo.row_sums.len(), cargo.sums.len());
        return Ok(Answer { parts: vec![None; cargo.parts.len()], known });
    }
    let parts: Vec<_> = cargo.parts.iter().map(|chunk| context.job.parts.get(key, member, *chunk)).collect();
    let has = |(chunk, part): (&usize, &Option<_>)| part.is_some() || context.keeps(*chunk);
    let known = Known {
        parts: cargo.parts.iter().zip(&parts).map(has).collect(),
        row_sums: cargo.row_sums.iter().map(|(chunk, _)| context.keeps(*chunk)).collect(),
        sums: context.sheet.tell_hashes(member.member, &cargo.sums, sum_hash),
    };
    known.write(stream).await.map_err(|error| context.fault(place, PeerFault::Lost(error)))?;
    Ok(Answer { parts, known })
}

/// Reads the sums of rows that come for this node as owner or relay, but for those that it has no use for.
async fn read_row_sums(inlet: &mut Inlet<'_>, context: &Context, unwanted: &[bool]) -> Result<(), ReduceError> {
    let place = inlet.place;
    let (mut desk, mut before) = (Desk::new(context), Squares::new());
    let due = context.arriving[place].row_sums.iter().copied().zip(unwanted);
    for ((chunk, row), _) in due.filter(|(_, unwanted)| !**unwanted) {
        let read = read_frame(&mut inlet.stream, &context.scope, FrameKind::RowSum, chunk, &mut desk.payload);
        context.hear((place, Way::In), Awaited::RowSum, read).await?;
        let sum = check::row_sum(&desk, context, (chunk, row), (place, &mut before))?;
        context.progress.add(FRAME_HEADER_BYTES + desk.payload.len());
        context.post.put((chunk, row), sum);
    }
    Ok(())
}

/// Reads the finished sums that the member owns or passes on. `told` are the hashes that this node has told of them.
async fn read_sums(inlet: &mut Inlet<'_>, context: &Context, told: &[u64]) -> Result<(), ReduceError> {
    let place = inlet.place;
    let (mut desk, mut before) = (Desk::new(context), Squares::new());
    let of_row = context.lattice.row_of(place) == Some(context.row);
    for (index, (chunk, told)) in context.arriving[place].sums.iter().copied().zip(told).enumerate() {
        let known = (*told != NOTHING).then_some(|payload: &mut Vec<u8>| context.sheet.copy(chunk, payload));
        let read = read_sum(&mut inlet.stream, &context.scope, chunk, known, &mut desk.payload);
        let fresh = context.hear((place, Way::In), Awaited::Sum, read).await?;
        if of_row {
            context.check_not_early(place, index, chunk).await?;
        }
        check::finished_sum(&mut desk, context, chunk, (place, &mut before))?;
        if fresh {
            context.progress.add(FRAME_HEADER_BYTES + desk.payload.len());
            let owner = context.owner_of(chunk).unwrap_or(context.members[place].member);
            context.sheet.pass(chunk, &desk.payload, (context.members[place].member, owner));
        } else {
            context.progress.add(FRAME_HEADER_BYTES);
        }
        context.finish(chunk);
    }
    Ok(())
}
