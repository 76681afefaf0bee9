//! The arithmetic on one chunk, and the checks of foreign payloads.

use super::context::Context;
use crate::coding::Coder;
use crate::reduce::error::{PeerFault, ReduceError, own_fault};
use starling_kernels::codec::add_scaled;
use starling_protocol::frame::FRAME_PAYLOAD_BYTES_MAX;
use starling_protocol::outer::adamw::squares;
use starling_protocol::update::{self, lattice};
use std::collections::BTreeMap;

/// A codec and buffers for one chunk, for one task.
pub(super) struct Desk {
    pub coder: Coder,
    pub values: Vec<f32>,
    pub payload: Vec<u8>,
}

/// The squares of what one stream has brought: of row sums by row, and of sums by owner.
pub(super) type Squares = BTreeMap<usize, f64>;

impl Desk {
    pub fn new(context: &Context) -> Self {
        let payload = Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX);
        Self { coder: Coder::new(context.job.codec), values: Vec::new(), payload }
    }

    /// Fills `payload` with this node's part of `chunk`.
    pub fn encode_own(&mut self, context: &Context, chunk: usize) -> Result<(), ReduceError> {
        context.share.offer(chunk, &mut self.values);
        self.coder.encode(&self.values, &mut self.payload).map_err(|source| own_fault(chunk, source))
    }

    /// Adds the payload at hand to the sum of this node's row, as the part of the member at `place`. `before` is the
    /// sum of squares of the member's earlier parts, and takes in those of this one.
    pub fn add(
        &mut self,
        context: &Context,
        chunk: usize,
        (place, before): (usize, &mut f64),
        sum: &mut [f32],
    ) -> Result<(), ReduceError> {
        self.values.resize(sum.len(), 0.0);
        let refused = |source| context.fault(place, PeerFault::Payload { chunk, source });
        self.coder.decode(&self.payload, &mut self.values).map_err(refused)?;
        *before += squares(&self.values);
        let stated = context.members[place].stated.norm;
        if place != context.me && update::is_longer_than_stated(context.job.codec, *before, stated) {
            return Err(context.fault(place, PeerFault::Norm { chunk, norm: before.sqrt(), stated }));
        }
        add_scaled(sum, &self.values, context.weights[place]);
        Ok(())
    }

    /// Encodes a complete sum for all.
    pub fn finish(&mut self, context: &Context, chunk: usize, sum: &mut [f32]) -> Result<(), ReduceError> {
        let Self { coder, payload, .. } = self;
        context.share.mend(chunk, sum);
        coder.encode(sum, payload).map_err(|source| ReduceError::Sum { chunk, source })?;
        context.share.stage(chunk, sum, payload, coder);
        context.sheet.finish(chunk, payload, context.job.me);
        context.finish(chunk);
        Ok(())
    }

    /// Reads the payload at hand as the sum of a row, which the member at `place` has sent: finite, and with what it
    /// sent before of that row no longer than the row's parts can be together.
    pub fn row_sum(
        &mut self,
        context: &Context,
        (chunk, row): (usize, usize),
        (place, before): (usize, &mut Squares),
    ) -> Result<Vec<f32>, ReduceError> {
        let mut sum = vec![0.0; context.elements_of(chunk)];
        let refused = |source| context.fault(place, PeerFault::Payload { chunk, source });
        lattice::decode_row_sum(&self.payload, &mut sum).map_err(refused)?;
        let before = before.entry(row).or_default();
        *before += squares(&sum);
        let most = context.longest_rows.get(row).copied().unwrap_or(0.0);
        if update::is_longer_than_stated(context.job.codec, *before, most) {
            return Err(context.fault(place, PeerFault::Sum { chunk, norm: before.sqrt(), most }));
        }
        Ok(sum)
    }

    /// Checks that the payload at hand is a sum that its owner may have made: canonical, and with what the member at
    /// `place` sent before of that owner no longer than the parts can be together. Sums that this node had count like
    /// others: so whoever passes on what passed here passes everywhere, unless a node has begun fewer attempts.
    pub fn check_sum(
        &mut self,
        context: &Context,
        chunk: usize,
        (place, before): (usize, &mut Squares),
    ) -> Result<(), ReduceError> {
        let elements = context.elements_of(chunk);
        let refused = |source| context.fault(place, PeerFault::Payload { chunk, source });
        let (Some(most), Some(owner)) = (context.longest_sum, context.lattice.owner(chunk)) else {
            return self.coder.check(&self.payload, elements).map_err(refused);
        };
        self.values.resize(elements, 0.0);
        self.coder.decode(&self.payload, &mut self.values).map_err(refused)?;
        let before = before.entry(owner).or_default();
        *before += squares(&self.values);
        if !update::is_longer_than_stated(context.job.codec, *before, most) {
            return Ok(());
        }
        let norm = before.sqrt();
        if place != owner && !context.sheet.has_begun_all() {
            return Err(context.fault(place, PeerFault::PassedOn { chunk, norm, most }));
        }
        Err(context.fault(place, PeerFault::Sum { chunk, norm, most }))
    }
}
