//! Adding up parts as they come.

use super::desk::Desk;
use super::members::Group;
use crate::reduce::error::ReduceError;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The parts of one member that have come, in the order of their chunks.
pub(in crate::reduce) type Arriving = Option<mpsc::Receiver<Arc<Vec<u8>>>>;

/// Adds up the parts of a chunk by the members at these places, in their order. Returns whether all came: the reader of
/// one that does not come reports why. `before` holds the squares of each member's earlier parts.
pub(in crate::reduce) async fn add_up(
    group: &Group,
    desk: &mut Desk,
    (chunk, places): (usize, &[usize]),
    (arriving, before): (&mut [Arriving], &mut [f64]),
    sum: &mut Vec<f32>,
) -> Result<bool, ReduceError> {
    if !group.sheet.is_current() {
        return Err(ReduceError::Over);
    }
    sum.clear();
    sum.resize(group.elements_of(chunk), 0.0);
    for place in places.iter().copied() {
        if place == group.me {
            desk.encode_own(group, chunk)?;
        } else {
            let Some(parts) = arriving[place].as_mut() else { return Ok(false) };
            let Some(part) = parts.recv().await else { return Ok(false) };
            desk.payload.clear();
            desk.payload.extend_from_slice(&part);
        }
        desk.add(group, chunk, (place, &mut before[place]), sum)?;
    }
    Ok(true)
}
