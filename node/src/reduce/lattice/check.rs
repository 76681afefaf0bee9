//! The checks of sums that have come over rows and columns.

use super::context::Context;
use crate::reduce::error::{PeerFault, ReduceError};
use crate::reduce::group::{Desk, Excess};
use starling_protocol::outer::adamw::squares;
use starling_protocol::update::{self, lattice};
use std::collections::BTreeMap;

/// The squares of what one stream has brought: of row sums by row, and of sums by owner.
pub(super) type Squares = BTreeMap<usize, f64>;

/// Reads the payload at hand as the sum of a row, which the member at `place` has sent: finite, and with what it sent
/// before of that row no longer than the row's parts can be together.
pub(super) fn row_sum(
    desk: &Desk,
    context: &Context,
    (chunk, row): (usize, usize),
    (place, before): (usize, &mut Squares),
) -> Result<Vec<f32>, ReduceError> {
    let mut sum = vec![0.0; context.elements_of(chunk)];
    let refused = |source| context.fault(place, PeerFault::Payload { chunk, source });
    lattice::decode_row_sum(&desk.payload, &mut sum).map_err(refused)?;
    let before = before.entry(row).or_default();
    *before += squares(&sum);
    let most = context.longest_rows.get(row).copied().unwrap_or(0.0);
    if update::is_longer_than_stated(context.job.codec, *before, most) {
        return Err(context.fault(place, PeerFault::Sum { chunk, norm: before.sqrt(), most }));
    }
    Ok(sum)
}

/// Checks that the payload at hand is a sum that its owner may have made: canonical, and with what the member at `place`
/// sent before of that owner no longer than the parts can be together. Sums that this node had count like others: so
/// whoever passes on what passed here passes everywhere, unless a node has begun fewer attempts.
pub(super) fn finished_sum(
    desk: &mut Desk,
    context: &Context,
    chunk: usize,
    (place, before): (usize, &mut Squares),
) -> Result<(), ReduceError> {
    let owner = context.lattice.owner(chunk);
    let before = before.entry(owner.unwrap_or(place)).or_default();
    let Some(Excess { norm, most }) = desk.check_sum(context, (place, chunk), before)? else { return Ok(()) };
    if owner != Some(place) && !context.sheet.has_begun_all() {
        return Err(context.fault(place, PeerFault::PassedOn { chunk, norm, most }));
    }
    Err(context.fault(place, PeerFault::Sum { chunk, norm, most }))
}
