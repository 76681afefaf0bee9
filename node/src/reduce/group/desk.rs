//! The arithmetic on one chunk, and the checks of foreign payloads.

use super::members::Group;
use crate::coding::Coder;
use crate::reduce::error::{PeerFault, ReduceError, own_fault};
use starling_kernels::codec::add_scaled;
use starling_protocol::frame::FRAME_PAYLOAD_BYTES_MAX;
use starling_protocol::outer::adamw::squares;
use starling_protocol::update;

/// A codec and buffers for one chunk, for one task.
pub(in crate::reduce) struct Desk {
    pub coder: Coder,
    values: Vec<f32>,
    pub payload: Vec<u8>,
}

/// Sums that are longer than the parts can be together.
pub(in crate::reduce) struct Excess {
    pub norm: f64,
    pub most: f32,
}

impl Desk {
    pub fn new(group: &Group) -> Self {
        let payload = Vec::with_capacity(FRAME_PAYLOAD_BYTES_MAX);
        Self { coder: Coder::new(group.job.codec), values: Vec::new(), payload }
    }

    /// Fills `payload` with this node's part of `chunk`.
    pub fn encode_own(&mut self, group: &Group, chunk: usize) -> Result<(), ReduceError> {
        group.share.offer(chunk, &mut self.values);
        self.coder.encode(&self.values, &mut self.payload).map_err(|source| own_fault(chunk, source))
    }

    /// Adds the payload at hand to a chunk's sum, as the part of the member at `place`. `before` is the sum of squares
    /// of the member's earlier parts, and takes in those of this one.
    pub fn add(
        &mut self,
        group: &Group,
        chunk: usize,
        (place, before): (usize, &mut f64),
        sum: &mut [f32],
    ) -> Result<(), ReduceError> {
        self.decode(group, (place, chunk), sum.len())?;
        *before += squares(&self.values);
        let stated = group.members[place].stated.norm;
        if place != group.me && update::is_longer_than_stated(group.job.codec, *before, stated) {
            return Err(group.fault(place, PeerFault::Norm { chunk, norm: before.sqrt(), stated }));
        }
        add_scaled(sum, &self.values, group.weights[place]);
        Ok(())
    }

    /// Encodes a complete sum for all.
    pub fn finish(&mut self, group: &Group, chunk: usize, sum: &mut [f32]) -> Result<(), ReduceError> {
        let Self { coder, payload, .. } = self;
        group.share.mend(chunk, sum);
        coder.encode(sum, payload).map_err(|source| ReduceError::Sum { chunk, source })?;
        group.share.stage(chunk, sum, payload, coder);
        group.sheet.finish(chunk, payload, group.job.me);
        Ok(())
    }

    /// Checks that the payload at hand, which the member at `place` has sent, is a sum: canonical. `before` is the sum of
    /// squares of the earlier sums of one owner, and takes in those of this one; returns whether they are too long now.
    pub fn check_sum(
        &mut self,
        group: &Group,
        (place, chunk): (usize, usize),
        before: &mut f64,
    ) -> Result<Option<Excess>, ReduceError> {
        let elements = group.elements_of(chunk);
        let Some(most) = group.longest_sum else {
            let refused = |source| group.fault(place, PeerFault::Payload { chunk, source });
            return self.coder.check(&self.payload, elements).map(|()| None).map_err(refused);
        };
        self.decode(group, (place, chunk), elements)?;
        *before += squares(&self.values);
        let too_long = update::is_longer_than_stated(group.job.codec, *before, most);
        Ok(too_long.then(|| Excess { norm: before.sqrt(), most }))
    }

    fn decode(&mut self, group: &Group, (place, chunk): (usize, usize), elements: usize) -> Result<(), ReduceError> {
        self.values.resize(elements, 0.0);
        let decoded = self.coder.decode(&self.payload, &mut self.values);
        decoded.map_err(|source| group.fault(place, PeerFault::Payload { chunk, source }))
    }
}
