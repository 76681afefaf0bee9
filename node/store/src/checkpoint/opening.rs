//! Reading a checkpoint, with every check.

use super::{
    Checkpoint, CheckpointManifest, EXTRA_BYTES_MAX, MANIFEST, MODEL, STATE, STATE_KIND, check_root, describe,
    describe_checkpoint, is_extra, read_limited,
};
use crate::sealed::SealedReader;
use crate::weights::{SafetensorsFile, TensorShape};
use crate::{Part, StoreError};
use starling_protocol::limits::{PARAMETERS_MAX, RECORD_BYTES_MAX, RUN_SPEC_BYTES_MAX};
use starling_protocol::record::Record;
use starling_protocol::run::RunSpec;
use starling_protocol::state::{self, State};
use starling_protocol::{Digest, wire};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Record, specification and their lengths in front of the moments in `state.starling`.
const STATE_HEAD_MAX: u64 = (RECORD_BYTES_MAX + RUN_SPEC_BYTES_MAX + 64) as u64;

/// Opens a checkpoint and verifies all of it, down to the state root.
///
/// # Errors
/// [`StoreError::Damaged`] names the file that fails a check, or is missing; [`StoreError::CheckpointFormat`] when
/// another release wrote it.
pub fn open_checkpoint(dir: &Path) -> Result<Checkpoint, StoreError> {
    let manifest = describe_checkpoint(dir)?;
    let state_path = dir.join(STATE);
    let sealed = read_state(&state_path)?;
    let mut extras = BTreeMap::new();
    for file in &manifest.files {
        let known = file.name == MODEL || file.name == STATE;
        if !known && !is_extra(&file.name, file.bytes) {
            let detail = format!("it lists a file {:?}, which no checkpoint has", file.name);
            return Err(StoreError::damaged(Part::Checkpoint, &dir.join(MANIFEST), detail));
        }
        let path = dir.join(&file.name);
        let here = match describe(dir, &file.name) {
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::damaged(
                    Part::Checkpoint,
                    &path,
                    "manifest.json lists it, and it is not there",
                ));
            }
            here => here?,
        };
        if here != *file {
            let detail = "its bytes do not have the digest that manifest.json names";
            return Err(StoreError::damaged(Part::Checkpoint, &path, detail));
        }
        if !known {
            extras.insert(file.name.clone(), read_limited(&path, EXTRA_BYTES_MAX)?);
        }
    }
    let theta = read_model(&dir.join(MODEL), &manifest.tensors, sealed.elements)?;
    let rebuilt =
        super::manifest(&sealed.record, &sealed.spec, &sealed.schema, manifest.tensors.clone(), manifest.files.clone());
    // Both sides went through the same parser of numbers.
    if serde_json::from_str::<CheckpointManifest>(&rebuilt.text()?).ok().as_ref() != Some(&manifest) {
        let detail = "it says something else than the record and the specification in state.starling";
        return Err(StoreError::damaged(Part::Checkpoint, &dir.join(MANIFEST), detail));
    }
    let state = State { theta, moments: sealed.moments };
    check_root(&sealed.record, &sealed.schema, &state).map_err(|e| {
        StoreError::damaged(Part::Checkpoint, &dir.join(MODEL), format!("it is not the state of its record: {e}"))
    })?;
    let SealedState { record, spec, schema, .. } = sealed;
    Ok(Checkpoint { manifest, record, spec, schema, state, extras })
}

/// The content of `state.starling`.
struct SealedState {
    record: Record,
    spec: RunSpec,
    schema: Digest,
    elements: usize,
    moments: Vec<Vec<f32>>,
}

fn read_state(path: &Path) -> Result<SealedState, StoreError> {
    let damaged = |detail: String| StoreError::damaged(Part::Checkpoint, path, detail);
    let missing = || damaged("it is not there".into());
    let limit = 4 * PARAMETERS_MAX * u64::from(*state::VECTORS.end() - 1) + STATE_HEAD_MAX;
    let mut reader = SealedReader::open(path, &STATE_KIND, limit, Part::Checkpoint)?.ok_or_else(missing)?;
    let mut parts = [Vec::new(), Vec::new()];
    for (part, limit) in parts.iter_mut().zip([RECORD_BYTES_MAX, RUN_SPEC_BYTES_MAX]) {
        let mut length = [0u8; 4];
        reader.read(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > limit {
            return Err(damaged("its record or specification is too long".into()));
        }
        part.resize(length, 0);
        reader.read(part)?;
    }
    let (mut schema, mut elements) = ([0u8; 32], [0u8; 8]);
    reader.read(&mut schema)?;
    reader.read(&mut elements)?;
    let elements = usize::try_from(u64::from_le_bytes(elements)).unwrap_or(usize::MAX);
    let [record, spec] = parts;
    let spec = wire::decode_spec(&spec).map_err(|e| damaged(e.to_string()))?;
    let moments = (1..spec.sync.mode.vectors()).map(|_| reader.read_f32s(elements)).collect::<Result<_, _>>()?;
    reader.finish()?;
    let record = wire::decode_record(&record).map_err(|e| damaged(e.to_string()))?;
    Ok(SealedState { record, spec, schema: Digest(schema), elements, moments })
}

/// Reads theta from the tensors of `tensors`, in that order; the file may hold nothing else.
fn read_model(path: &Path, tensors: &[TensorShape], elements: usize) -> Result<Vec<f32>, StoreError> {
    let damaged = |detail: String| StoreError::damaged(Part::Checkpoint, path, detail);
    let mut file = SafetensorsFile::open(path)?;
    if file.len() != tensors.len() {
        return Err(damaged("it has other tensors than manifest.json lists".into()));
    }
    let mut theta = Vec::new();
    theta.reserve_exact(elements);
    for tensor in tensors {
        if file.shape(&tensor.name).as_ref() != Some(&tensor.shape) {
            return Err(damaged(format!("tensor {} is not here as manifest.json lists it", tensor.name)));
        }
        file.append(&tensor.name, &mut theta)?;
    }
    Ok(theta)
}
