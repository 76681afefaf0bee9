//! The difference of a lineage that gives way, on this node's disk (`docs/protocol/7-merging.md` §7.4; the arithmetic
//! is `protocol::difference`).
//!
//! There are two private files, each under the store's seal. `lineage-base` holds the last FORK record that this node
//! had as its head, and its parameters. `difference` holds the difference of a lineage that the node has left, until a
//! record has merged it. A damaged file is dropped: that costs its work, and nothing else.

use super::canonical::Canonical;
use super::learned::initial;
use super::trainer::Made;
use starling_protocol::difference::{self, Difference, Mix, Nothing, Origin};
use starling_protocol::engine::io::Merge;
use starling_protocol::limits::{CHUNK_ELEMENTS, RECORD_BYTES_MAX};
use starling_protocol::outer::adamw::squares;
use starling_protocol::record::Record;
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, NodeId, state, update, wire};
use starling_store::{PrivateReader, Store, StoreError};
use std::sync::Arc;

/// Names of the two files in the store.
const BASE: &str = "lineage-base";
const DIFFERENCE: &str = "difference";
/// Lineage, tokens, place, number of voters, norm, elements.
const HEADER_BYTES: usize = 32 + 8 + 4 + 4 + 8 + 8;

/// The name of a lineage that was left, and its difference, or why there is none.
pub type Left = (Digest, Result<Difference, Lost>);

/// Why no difference is kept, or the kept one cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error(transparent)]
    Nothing(#[from] Nothing),
    #[error(
        "the run averages gradients at every step, or fragments of the model: the difference of another lineage cannot \
         be merged"
    )]
    Parts,
    #[error("its difference is not on this disk any more")]
    Gone,
    #[error("the weights that the run began with are neither on this disk nor to be had from its peers")]
    NoWeights,
    #[error("a difference is kept that has more tokens behind it")]
    Outweighed,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Lost {
    /// Whether work is lost with it, as far as this node knows.
    pub fn is_a_loss(&self) -> bool {
        !matches!(self, Self::Nothing(Nothing::NoVoter | Nothing::Untrained))
    }
}

/// Keeps the parameters of a FORK record, in place of those of an earlier one.
pub fn keep_base(store: &Store, fork: &Record, theta: &[f32]) -> Result<(), StoreError> {
    let record = wire::encode_record(fork);
    let mut file = store.write_private(BASE, 16 + record.len() as u64 + 4 * theta.len() as u64)?;
    file.write(&(record.len() as u64).to_le_bytes())?;
    file.write(&record)?;
    file.write(&(theta.len() as u64).to_le_bytes())?;
    file.write_f32s(theta)?;
    file.commit()
}

/// Whether [`keep`] needs the weights with which the run began: the lineage that ended with `last` was founded, and has
/// a difference.
pub fn needs_weights(store: &Store, spec: &RunSpec, me: &NodeId, last: &Record) -> bool {
    let wanted = spec.beginning.is_some() && spec.sync.merges();
    let of_lineage = |fork: Option<&Record>| difference::of_lineage(last, fork, me);
    let origin = || base(store).ok().map(|base| of_lineage(base.as_ref().map(|(record, _)| record)));
    wanted && matches!(origin(), Some(Ok((_, Origin::Initial))))
}

/// Keeps the difference of this node's lineage, just before the node leaves it for another. `weights` are those with
/// which the run began, if its specification names any and the node has them.
///
/// # Errors
/// Why nothing is kept.
pub fn keep(
    store: &Store,
    spec: &RunSpec,
    me: &NodeId,
    last: &Canonical,
    weights: Option<Vec<f32>>,
) -> Result<Difference, Lost> {
    if !spec.sync.merges() {
        return Err(Lost::Parts);
    }
    let base = base(store)?;
    let fork = base.as_ref().map(|(record, _)| record);
    let (kept, origin) = difference::of_lineage(&last.record, fork, me)?;
    let root = last.manifest().map(|manifest| state::root(&manifest));
    if root != Ok(last.record.state_root) {
        return Err(Nothing::Damaged.into());
    }
    let mut vector = match (origin, base) {
        (Origin::Fork, Some((_, file))) => parameters(file, last.elements())?,
        _ if spec.beginning.is_some() => weights.ok_or(Lost::NoWeights)?,
        _ => initial(spec),
    };
    if vector.len() != last.elements() {
        return Err(Nothing::Damaged.into());
    }
    let norm = difference::subtract(&mut vector, &last.state.theta).sqrt();
    if !norm.is_finite() {
        return Err(Nothing::NotFinite.into());
    }
    if held(store).is_some_and(|held| held.lineage != kept.lineage && held.tokens >= kept.tokens) {
        return Err(Lost::Outweighed);
    }
    let mut file = store.write_private(DIFFERENCE, HEADER_BYTES as u64 + 4 * vector.len() as u64)?;
    file.write(&kept.lineage.0)?;
    file.write(&kept.tokens.to_le_bytes())?;
    file.write(&kept.place.to_le_bytes())?;
    file.write(&kept.of.to_le_bytes())?;
    file.write(&norm.to_le_bytes())?;
    file.write(&(vector.len() as u64).to_le_bytes())?;
    file.write_f32s(&vector)?;
    file.commit()?;
    Ok(kept)
}

/// Drops the parameters that [`keep_base`] has kept, once the state of another lineage has replaced the one that began
/// with them. They stay until then: the node may go on in its lineage, and leave again.
pub fn forget_base(store: &Store, lineage: &Digest) {
    let of_another = matches!(base(store), Ok(Some((fork, _))) if fork.lineage != *lineage);
    if of_another && let Err(e) = store.remove_private(BASE) {
        tracing::warn!("parameters that are of no use any more were not removed: {e}");
    }
}

/// The difference on disk, if there is one. Its use shows whether it is whole.
pub fn held(store: &Store) -> Option<Difference> {
    Some(header(&mut store.read_private(DIFFERENCE).ok()??).ok()?.difference)
}

/// Removes the difference of a lineage.
pub fn drop_held(store: &Store, lineage: &Digest) {
    if held(store).is_some_and(|held| held.lineage == *lineage)
        && let Err(e) = store.remove_private(DIFFERENCE)
    {
        tracing::warn!("a difference that is of no use any more was not removed: {e}");
    }
}

/// Mixes the difference on disk into a contribution of this many tokens.
///
/// # Errors
/// The difference is damaged or gone; its remains are removed.
pub fn mix(store: &Store, own: &[f32], tokens: u64, merge: &Merge) -> Result<Made, Lost> {
    let mixed = mixed(store, own, tokens, merge);
    if mixed.is_err() {
        drop_held(store, &merge.lineage);
    }
    mixed
}

fn mixed(store: &Store, own: &[f32], tokens: u64, merge: &Merge) -> Result<Made, Lost> {
    let mut file = store.read_private(DIFFERENCE)?.ok_or(Lost::Gone)?;
    let header = header(&mut file)?;
    if header.difference.lineage != merge.lineage || header.elements != own.len() as u64 {
        return Err(Lost::Gone);
    }
    let mix = Mix::new(tokens, merge.tokens, header.norm, merge.norm_bits);
    let mut mixed = own.to_vec();
    let mut piece = vec![0.0; CHUNK_ELEMENTS.min(own.len())];
    let (mut hasher, mut squared) = (update::contribution_hasher(own.len()), 0.0);
    for part in mixed.chunks_mut(CHUNK_ELEMENTS) {
        let Some(piece) = piece.get_mut(..part.len()) else { return Err(Lost::Gone) };
        file.read_f32s(piece)?;
        mix.apply(part, piece);
        hasher.put(part);
        squared += squares(part);
    }
    file.finish()?;
    let norm = squared.sqrt().min(f64::from(f32::MAX)) as f32;
    Ok(Made { delta: Arc::new(mixed), payload: hasher.finish(), norm })
}

struct Header {
    difference: Difference,
    norm: f64,
    elements: u64,
}

fn header(file: &mut PrivateReader) -> Result<Header, StoreError> {
    let lineage = Digest(bytes(file)?);
    let tokens = u64::from_le_bytes(bytes(file)?);
    let (place, of) = (u32::from_le_bytes(bytes(file)?), u32::from_le_bytes(bytes(file)?));
    let (norm, elements) = (f64::from_le_bytes(bytes(file)?), u64::from_le_bytes(bytes(file)?));
    Ok(Header { difference: Difference { lineage, tokens, place, of }, norm, elements })
}

/// The FORK record on disk, and the file, open at its parameters.
fn base(store: &Store) -> Result<Option<(Record, PrivateReader)>, Lost> {
    let Some(mut file) = store.read_private(BASE)? else { return Ok(None) };
    let length = u64::from_le_bytes(bytes(&mut file)?);
    let length = usize::try_from(length).ok().filter(|length| *length <= RECORD_BYTES_MAX).ok_or(Nothing::Damaged)?;
    let mut record = vec![0; length];
    file.read(&mut record)?;
    let record = wire::decode_record(&record).map_err(|_| Nothing::Damaged)?;
    Ok(Some((record, file)))
}

fn parameters(mut file: PrivateReader, elements: usize) -> Result<Vec<f32>, Lost> {
    if u64::from_le_bytes(bytes(&mut file)?) != elements as u64 {
        return Err(Nothing::Damaged.into());
    }
    let mut theta = vec![0.0; elements];
    file.read_f32s(&mut theta)?;
    file.finish()?;
    Ok(theta)
}

fn bytes<const N: usize>(file: &mut PrivateReader) -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    file.read(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
#[path = "difference_test.rs"]
mod tests;
