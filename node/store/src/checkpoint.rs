//! Checkpoint folders: a trained state that leaves the node.
//!
//! ```text
//! manifest.json       for people and scripts: run, round, tokens, state root, model, tensors, files with digests
//! model.safetensors   the parameters (theta), f32, under their usual names
//! state.starling      what training needs to go on: record, specification, moments; sealed
//! ...                 further files that belong to it (a tokenizer, a config.json), listed with its digest
//! ```
//!
//! Opening a checkpoint recomputes the state root over everything that is used, so a checkpoint that opens has the
//! state that its record names.

use crate::folder::sync_dir;
use crate::replace::{install, remove_dir, sibling};
use crate::sealed::{AtomicFile, Kind, SealedWriter, extend_le};
use crate::weights::{TensorShape, safetensors_header};
use crate::writing::{self, StateChunks};
use crate::{Part, StoreError, space};
use serde::{Deserialize, Serialize};
use starling_protocol::limits::STATE_CHUNK_BYTES;
use starling_protocol::record::Record;
use starling_protocol::run::{ModelSpec, RunSpec, TensorType};
use starling_protocol::state::{self, State};
use starling_protocol::{Digest, wire};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

mod opening;

pub use opening::open_checkpoint;

/// Raised with every incompatible change, of records as well; 1 knew no amendments, 2 no cells, and 3 no inner optimizer.
const FORMAT: u32 = 4;
const MANIFEST: &str = "manifest.json";
const MODEL: &str = "model.safetensors";
const STATE: &str = "state.starling";
const STATE_KIND: Kind = *b"SLCKPT-1";
/// Bytes of the largest `manifest.json` read.
const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Bytes of the largest file beside the model, such as a tokenizer.
const EXTRA_BYTES_MAX: u64 = 256 << 20;
const EXTRAS_MAX: usize = 16;

/// The content of a checkpoint to be written.
#[derive(Clone, Copy)]
pub struct CheckpointSource<'a> {
    pub record: &'a Record,
    /// The encoded `RunSpec`.
    pub spec: &'a [u8],
    /// Digest of the model's schema, which enters the state root.
    pub schema: Digest,
    /// The tensors that theta consists of, in its order.
    pub tensors: &'a [TensorShape],
    /// The state of the record. It may change elsewhere meanwhile.
    pub state: &'a dyn StateChunks,
    /// Further files by name, such as a tokenizer.
    pub extras: &'a [(&'a str, &'a [u8])],
}

impl CheckpointSource<'_> {
    /// Bytes that the checkpoint takes on the disk, and a little more.
    pub fn bytes(&self) -> u64 {
        let extras: u64 = self.extras.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let state = self.state.elements().saturating_mul(4 * u64::from(self.state.vectors()));
        state.saturating_add(extras).saturating_add(1 << 20)
    }
}

/// An opened checkpoint, all of it verified.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    pub manifest: CheckpointManifest,
    pub record: Record,
    pub spec: RunSpec,
    pub schema: Digest,
    pub state: State,
    /// Further files by name.
    pub extras: BTreeMap<String, Vec<u8>>,
}

/// The content of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointManifest {
    pub format: u32,
    /// Name of the run.
    pub run: String,
    pub run_digest: Digest,
    pub lineage: Digest,
    pub seq: u64,
    pub round: u64,
    /// Tokens trained on.
    pub tokens: u64,
    pub record: Digest,
    pub state_root: Digest,
    pub schema: Digest,
    pub tokenizer: Digest,
    pub parameters: u64,
    pub model: ModelSpec,
    /// The tensors of theta, in its order.
    pub tensors: Vec<TensorShape>,
    pub files: Vec<CheckpointFile>,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointFile {
    pub name: String,
    pub bytes: u64,
    /// BLAKE3 of the file, as `b3sum` prints it.
    pub blake3: String,
}

/// Writes a checkpoint to `dir`. A checkpoint that is there is replaced as a whole or not at all.
///
/// # Errors
/// [`StoreError::StateMismatch`] when the state is not the record's state,
/// [`StoreError::NotACheckpoint`] when `dir` is something else, [`StoreError::Full`] when there is no room,
/// [`StoreError::GivenUp`] when the state is not wanted any more. Nothing is left of a checkpoint that was not written.
pub fn export_checkpoint(dir: &Path, source: &CheckpointSource<'_>) -> Result<(), StoreError> {
    if dir.exists() && !replaceable(dir) {
        return Err(StoreError::NotACheckpoint { path: dir.to_path_buf() });
    }
    space::require(dir, source.bytes(), 0)?;
    let spec = check_source(source)?;
    let staging = sibling(dir, "new")?;
    remove_dir(&staging)?;
    fs::create_dir_all(&staging).map_err(|e| StoreError::io("create", &staging, 4096, e))?;
    let written = write_files(&staging, source, &spec).and_then(|()| install(&staging, dir));
    // Removes the old checkpoint, or a new one that could not be finished.
    remove_dir(&staging).and(written)
}

fn check_source(source: &CheckpointSource<'_>) -> Result<RunSpec, StoreError> {
    let malformed = |what, why: String| StoreError::Malformed { what, why };
    let spec = wire::decode_spec(source.spec).map_err(|e| malformed("run specification", e.to_string()))?;
    let sizes = source.tensors.iter().try_fold(0usize, |sum, tensor| sum.checked_add(tensor.elements()?));
    if sizes.map(|sum| sum as u64) != Some(source.state.elements()) {
        return Err(malformed("the list of tensors", "it does not add up to the parameters".into()));
    }
    if source.extras.len() > EXTRAS_MAX || !source.extras.iter().all(|(name, bytes)| is_extra(name, bytes.len() as u64))
    {
        return Err(malformed("the list of further files", "too many, too large, or not plain file names".into()));
    }
    check_root(source.record, &source.schema, source.state)?;
    Ok(spec)
}

fn check_root(record: &Record, schema: &Digest, state: &dyn StateChunks) -> Result<(), StoreError> {
    let got = state::root(&writing::manifest_of(Path::new(MODEL), record.seq, schema, state)?);
    if got != record.state_root {
        return Err(StoreError::StateMismatch { seq: record.seq, expected: record.state_root, got });
    }
    Ok(())
}

fn write_files(folder: &Path, source: &CheckpointSource<'_>, spec: &RunSpec) -> Result<(), StoreError> {
    let mut files = vec![write_model(folder, source, spec)?];
    write_state(folder, source)?;
    files.push(describe(folder, STATE)?);
    for (name, bytes) in source.extras {
        write_plain(folder, name, bytes)?;
        files.push(describe(folder, name)?);
    }
    let manifest = manifest(source.record, spec, &source.schema, source.tensors.to_vec(), files);
    write_plain(folder, MANIFEST, manifest.text()?.as_bytes())?;
    sync_dir(folder)
}

fn write_model(folder: &Path, source: &CheckpointSource<'_>, spec: &RunSpec) -> Result<CheckpointFile, StoreError> {
    // The sizes were checked to add up.
    let listed = source.tensors.iter();
    let listed = listed.map(|t| (t.name.as_str(), t.shape.as_slice(), t.elements().unwrap_or(0), TensorType::F32));
    let metadata = BTreeMap::from([
        ("format".to_owned(), "pt".to_owned()),
        ("starling.run".to_owned(), spec.name.clone()),
        ("starling.round".to_owned(), source.record.round.to_string()),
        ("starling.state_root".to_owned(), source.record.state_root.to_string()),
    ]);
    let header = safetensors_header(listed, &metadata)?;
    let mut file = AtomicFile::create_shared(folder, &folder.join(MODEL))?.synced_on_the_way();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&header);
    file.write(&header)?;
    // The tensors are theta's elements in its order.
    let of_theta = state::chunk_count(source.state.elements(), 1);
    write_chunks(source, 0..of_theta, &mut |bytes| {
        hasher.update(bytes);
        file.write(bytes)
    })?;
    file.commit_unsynced_name()?;
    Ok(CheckpointFile { name: MODEL.to_owned(), bytes: hasher.count(), blake3: hasher.finalize().to_string() })
}

fn write_state(folder: &Path, source: &CheckpointSource<'_>) -> Result<(), StoreError> {
    let record = wire::encode_record(source.record);
    let (elements, vectors) = (source.state.elements(), source.state.vectors());
    let moments = elements.saturating_mul(4 * u64::from(vectors.saturating_sub(1)));
    let payload = (8 + record.len() + source.spec.len() + 32 + 8) as u64 + moments;
    let file = AtomicFile::create_shared(folder, &folder.join(STATE))?.synced_on_the_way();
    let mut writer = SealedWriter::begin(file, &STATE_KIND, payload)?;
    for part in [record.as_slice(), source.spec] {
        writer.write(&(part.len() as u32).to_le_bytes())?;
        writer.write(part)?;
    }
    writer.write(&source.schema.0)?;
    writer.write(&elements.to_le_bytes())?;
    let of_moments = state::chunk_count(elements, 1)..state::chunk_count(elements, vectors);
    write_chunks(source, of_moments, &mut |bytes| writer.write(bytes))?;
    writer.commit()
}

/// Hands the bytes of these chunks of the state to `write`, one after the other; the state is done with them then.
fn write_chunks(
    source: &CheckpointSource<'_>,
    chunks: Range<usize>,
    write: &mut dyn FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut bytes = Vec::with_capacity(STATE_CHUNK_BYTES);
    for index in chunks {
        bytes.clear();
        writing::read_chunk(source.record.seq, source.state, index, &mut |floats| extend_le(&mut bytes, floats))?;
        source.state.done_with(index);
        write(&bytes)?;
    }
    Ok(())
}

fn write_plain(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let mut file = AtomicFile::create_shared(folder, &folder.join(name))?;
    file.write(bytes)?;
    file.commit_unsynced_name()
}

/// Reads only `manifest.json`, for a list of checkpoints: nothing is verified.
pub fn describe_checkpoint(dir: &Path) -> Result<CheckpointManifest, StoreError> {
    let path = dir.join(MANIFEST);
    let text = read_limited(&path, MANIFEST_BYTES_MAX)?;
    let malformed = |e: serde_json::Error| {
        let detail = format!("from line {} on it does not describe a checkpoint", e.line());
        StoreError::damaged(Part::Checkpoint, &path, detail)
    };
    // Another format may have other fields, so its number is read first.
    let Format { format } = serde_json::from_slice(&text).map_err(malformed)?;
    if format != FORMAT {
        return Err(StoreError::CheckpointFormat { path: dir.to_path_buf(), found: format, known: FORMAT });
    }
    serde_json::from_slice(&text).map_err(malformed)
}

/// The part of `manifest.json` that all formats have.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Whether `dir` holds a checkpoint of this record with files as long as its list says; their bytes are not read.
pub fn is_checkpoint_of(dir: &Path, record: &Digest) -> bool {
    let is_whole = |file: &CheckpointFile| fs::metadata(dir.join(&file.name)).is_ok_and(|m| m.len() == file.bytes);
    describe_checkpoint(dir).is_ok_and(|manifest| manifest.record == *record && manifest.files.iter().all(is_whole))
}

fn manifest(
    record: &Record,
    spec: &RunSpec,
    schema: &Digest,
    tensors: Vec<TensorShape>,
    files: Vec<CheckpointFile>,
) -> CheckpointManifest {
    let elements = tensors.iter().filter_map(TensorShape::elements).fold(0u64, |sum, n| sum.saturating_add(n as u64));
    CheckpointManifest {
        format: FORMAT,
        run: spec.name.clone(),
        run_digest: spec.digest(),
        lineage: record.lineage,
        seq: record.seq,
        round: record.round,
        tokens: record.tokens,
        record: record.digest(),
        state_root: record.state_root,
        schema: *schema,
        tokenizer: spec.data.tokenizer,
        parameters: elements,
        model: spec.model.clone(),
        tensors,
        files,
    }
}

impl CheckpointManifest {
    fn text(&self) -> Result<String, StoreError> {
        let malformed = |e: serde_json::Error| StoreError::Malformed { what: "manifest.json", why: e.to_string() };
        serde_json::to_string_pretty(self).map(|text| text + "\n").map_err(malformed)
    }
}

fn describe(folder: &Path, name: &str) -> Result<CheckpointFile, StoreError> {
    let path = folder.join(name);
    let mut hasher = blake3::Hasher::new();
    let mut file = File::open(&path).map_err(|e| StoreError::io("open", &path, 0, e))?;
    io::copy(&mut file, &mut hasher).map_err(|e| StoreError::io("read", &path, 0, e))?;
    Ok(CheckpointFile { name: name.to_owned(), bytes: hasher.count(), blake3: hasher.finalize().to_string() })
}

fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| StoreError::io("open", path, 0, e))?;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| StoreError::io("read", path, 0, e))?;
    if bytes.len() as u64 > limit {
        return Err(StoreError::damaged(Part::Checkpoint, path, "it is larger than anything Starling writes there"));
    }
    Ok(bytes)
}

/// Whether a checkpoint may have a further file of this name and length. Only plain names are allowed, since they come
/// from a file that anybody may have written.
pub fn is_extra(name: &str, bytes: u64) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let taken = [MANIFEST, MODEL, STATE].contains(&name);
    !taken
        && (1..=64).contains(&name.len())
        && name.chars().all(plain)
        && !name.starts_with('.')
        && bytes <= EXTRA_BYTES_MAX
}

/// Whether `dir` is a checkpoint or an empty folder.
fn replaceable(dir: &Path) -> bool {
    dir.join(MANIFEST).is_file() || fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}
