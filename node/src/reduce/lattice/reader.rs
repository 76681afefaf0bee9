//! All that one member sends to this node: parts, then sums of rows, then finished sums.

use super::context::{Context, repairs};
use super::desk::{Desk, Squares};
use super::known::{Known, NOTHING};
use crate::net::BulkStream;
use crate::reduce::error::{PeerFault, ReduceError};
use crate::reduce::linger::LINGER;
use crate::reduce::links::BulkLinks;
use crate::reduce::progress::Way;
use crate::reduce::stream::{expect_end, fault, read_frame, read_sum};
use starling_protocol::frame::{FRAME_HEADER_BYTES, FrameKind};
use starling_protocol::message::Awaited;
use starling_protocol::update::lattice::sum_hash;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

pub(super) async fn read(
    links: Arc<dyn BulkLinks>,
    context: Arc<Context>,
    place: usize,
    arrived: mpsc::Sender<Arc<Vec<u8>>>,
) -> Result<(), ReduceError> {
    let (from, first) = (context.members[place].member, first(&context, place));
    let stream = context.progress.wait(place, Way::In, first, links.accept(context.job.key, from)).await;
    let mut stream = stream.map_err(|error| fault(from, PeerFault::Silent(error)))?;
    // The member ends its streams of earlier attempts when it begins one. Bytes that are still in them count.
    let _reading = tokio::time::timeout(LINGER, context.sheet.gate(from).lock_owned()).await;
    let answer = answer(&mut stream, &context, place).await?;
    read_parts(&mut stream, &context, place, answer.parts, arrived).await?;
    read_row_sums(&mut stream, &context, place, &answer.known.row_sums).await?;
    read_sums(&mut stream, &context, place, &answer.known.sums).await?;
    tokio::spawn(expect_end(stream, from));
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
    if !repairs(&context.job) {
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

/// Reads the member's parts of the chunks that this node adds up: `kept` are those of an earlier attempt.
async fn read_parts(
    stream: &mut BulkStream,
    context: &Context,
    place: usize,
    kept: Vec<Option<Arc<Vec<u8>>>>,
    arrived: mpsc::Sender<Arc<Vec<u8>>>,
) -> Result<(), ReduceError> {
    let (key, member) = (&context.job.key, &context.members[place]);
    let mut desk = Desk::new(context);
    let chunks = context.arriving[place].parts.iter().copied().zip(kept);
    for (chunk, kept) in chunks.filter(|(chunk, _)| !context.keeps(*chunk)) {
        let part = match kept {
            Some(kept) => kept,
            None => {
                let read = read_frame(stream, &context.scope, FrameKind::Contrib, chunk, &mut desk.payload);
                let read = context.progress.wait(place, Way::In, Awaited::Part, read).await;
                read.map_err(|what| context.fault(place, what))?;
                let refused = |source| context.fault(place, PeerFault::Payload { chunk, source });
                desk.coder.check(&desk.payload, context.elements_of(chunk)).map_err(refused)?;
                context.progress.add(FRAME_HEADER_BYTES + desk.payload.len());
                let part = Arc::new(desk.payload.clone());
                context.job.parts.keep(key, member, chunk, Arc::clone(&part));
                part
            }
        };
        // The channel has room for all parts; they are kept even if the adder has stopped.
        drop(arrived.try_send(part));
    }
    Ok(())
}

/// Reads the sums of rows that come for this node as owner or relay, but for those that it has no use for.
async fn read_row_sums(
    stream: &mut BulkStream,
    context: &Context,
    place: usize,
    unwanted: &[bool],
) -> Result<(), ReduceError> {
    let (mut desk, mut before) = (Desk::new(context), Squares::new());
    for ((chunk, row), unwanted) in context.arriving[place].row_sums.iter().copied().zip(unwanted) {
        if *unwanted {
            continue;
        }
        let read = read_frame(stream, &context.scope, FrameKind::RowSum, chunk, &mut desk.payload);
        let read = context.progress.wait(place, Way::In, Awaited::RowSum, read).await;
        read.map_err(|what| context.fault(place, what))?;
        let sum = desk.row_sum(context, (chunk, row), (place, &mut before))?;
        context.progress.add(FRAME_HEADER_BYTES + desk.payload.len());
        context.post.put((chunk, row), sum);
    }
    Ok(())
}

/// Reads the finished sums that the member owns or passes on. `told` are the hashes that this node has told of them.
async fn read_sums(stream: &mut BulkStream, context: &Context, place: usize, told: &[u64]) -> Result<(), ReduceError> {
    let (mut desk, mut before) = (Desk::new(context), Squares::new());
    let of_row = context.lattice.row_of(place) == Some(context.row);
    for (index, (chunk, told)) in context.arriving[place].sums.iter().copied().zip(told).enumerate() {
        let known = (*told != NOTHING).then_some(|payload: &mut Vec<u8>| context.sheet.copy(chunk, payload));
        let read = read_sum(stream, &context.scope, chunk, known, &mut desk.payload);
        let read = context.progress.wait(place, Way::In, Awaited::Sum, read).await;
        let fresh = read.map_err(|what| context.fault(place, what))?;
        if of_row {
            // The sender is in the context, so the channel cannot close during the wait.
            drop(context.told[place].subscribe().wait_for(|told| *told).await);
            if context.sent[place].load(Ordering::Acquire) <= index {
                return Err(context.fault(place, PeerFault::Early { chunk }));
            }
        }
        desk.check_sum(context, chunk, (place, &mut before))?;
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
