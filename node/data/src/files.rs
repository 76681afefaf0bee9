//! Opaque files: a data set whose training part is the files' bytes, one file behind the other, and whose held-out part
//! is the list of their names and lengths. So they travel as text does, shard by shard.
//!
//! The list, little-endian, no padding, ascending by name:
//!
//! ```text
//! 0   8   magic "STARFILE"
//! 8   8   number of files
//! 16      each: bytes of its name `u16`, the name, bytes of the file `u64`
//! ```

use crate::cache::Cache;
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::limits::{FILE_LIST_BYTES_MAX, FILE_NAME_BYTES_MAX, FILES_MAX, SHARDS_MAX};
use crate::manifest::{DataManifest, Part};
use crate::prepare::{PrepareProgress, Summary, reuse};
use crate::shards::ShardWriter;
use crate::sources::Stamp;
use starling_protocol::Digest;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

const MAGIC: &[u8; 8] = b"STARFILE";
/// Bytes are the tokens.
const VOCAB: u32 = 256;
/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;
/// Bytes between two reports of progress.
const REPORT_BYTES: u64 = 64 << 20;
/// Folders below a source, one in the other.
const DEPTH_MAX: usize = 64;

/// The digest that stands for a tokenizer in the manifest of files.
fn kind() -> Digest {
    Digest::of("starling opaque files v1", &[])
}

/// A file of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    /// Its path in the folder, with `/` between parts.
    name: String,
    bytes: u64,
}

/// A file of the user's.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    stamp: Stamp,
}

/// Makes the data set of files in the cache folder, or finds it there. A file is called by its path from `base`; one
/// that does not lie there by its path from the folder that holds its source.
///
/// # Errors
/// The error names the source that is not there, the file that cannot be read, or the two files of one name.
pub fn prepare_files(
    sources: &[String],
    base: &Path,
    cache: &Path,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<Dataset, DataError> {
    let files = list(sources, base, progress)?;
    let fingerprint = fingerprint(&files);
    let cache = Cache::open(cache)?;
    if let Some(dataset) = reuse(&cache, &fingerprint, progress)? {
        return Ok(dataset);
    }
    let _lock = cache.lock(|| progress(PrepareProgress::Waiting))?;
    if let Some(dataset) = reuse(&cache, &fingerprint, progress)? {
        return Ok(dataset);
    }
    cache.sweep();
    let manifest = build(&files, &cache, progress)?;
    cache.sync_shards()?;
    cache.put_manifest(&manifest)?;
    cache.put_fingerprint(&fingerprint, &manifest.digest())?;
    let summary = Summary { files: files.len() as u64, bytes: manifest.train_bytes, ..Summary::default() };
    progress(PrepareProgress::Done { built: Some(summary) });
    Ok(Dataset::in_cache(cache, manifest))
}

/// Puts the files of a data set, all of which is here, into a folder of the cache, or finds them there. Returns the
/// folder, and the number of files.
///
/// # Errors
/// A shard is missing, or the data set is not one of files.
pub fn lay_out_files(dataset: &Dataset) -> Result<(PathBuf, usize), DataError> {
    let files = files_of(dataset)?;
    let folder = dataset.cache().files_folder(&dataset.digest());
    if is_whole(&folder, &files) {
        return Ok((folder, files.len()));
    }
    let _lock = dataset.cache().lock(|| ())?;
    if is_whole(&folder, &files) {
        return Ok((folder, files.len()));
    }
    let unfinished = folder.with_extension("new");
    for old in [&folder, &unfinished] {
        match fs::remove_dir_all(old) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(DataError::cache("remove a folder", old)(e)),
            _ => {}
        }
    }
    fs::create_dir_all(&unfinished).map_err(DataError::cache("make a folder", &unfinished))?;
    let mut bytes = Bytes { dataset, part: Part::Train, at: 0 };
    for file in &files {
        let path = unfinished.join(&file.name);
        write_file(&path, &mut bytes, file.bytes)?;
    }
    fs::rename(&unfinished, &folder).map_err(DataError::cache("rename a folder", &folder))?;
    Ok((folder, files.len()))
}

fn write_file(path: &Path, bytes: &mut Bytes<'_>, length: u64) -> Result<(), DataError> {
    let failed = |e| DataError::cache("write", path)(e);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    let mut file = File::options().write(true).create_new(true).open(path).map_err(failed)?;
    let mut left = length;
    while left > 0 {
        let piece = bytes.next(left)?;
        file.write_all(&piece).map_err(failed)?;
        left -= piece.len() as u64;
    }
    file.set_permissions(Permissions::from_mode(0o444)).and_then(|()| file.sync_data()).map_err(failed)
}

/// Whether the folder has each file at its full length.
fn is_whole(folder: &Path, files: &[Listed]) -> bool {
    let is_there = |file: &Listed| {
        let metadata = fs::symlink_metadata(folder.join(&file.name));
        metadata.is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.bytes)
    };
    files.iter().all(is_there)
}

/// The bytes of one part of a data set, in their order.
struct Bytes<'a> {
    dataset: &'a Dataset,
    part: Part,
    at: u64,
}

impl Bytes<'_> {
    /// The next bytes, at least one and at most so many; the part has as many.
    fn next(&mut self, most: u64) -> Result<Vec<u8>, DataError> {
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(READ_BYTES);
        let bytes = self.dataset.bytes(self.part, self.at, most)?;
        if bytes.is_empty() {
            return Err(no_files("it ends before its files do"));
        }
        self.at += bytes.len() as u64;
        Ok(bytes)
    }
}

fn no_files(reason: &'static str) -> DataError {
    DataError::NoFiles { reason }
}

/// The list of a data set of files.
fn files_of(dataset: &Dataset) -> Result<Vec<Listed>, DataError> {
    let manifest = dataset.manifest();
    if manifest.tokenizer != kind() || manifest.vocab != VOCAB {
        return Err(no_files("it is a text"));
    }
    if manifest.validation_tokens > FILE_LIST_BYTES_MAX {
        return Err(no_files("its list is too long"));
    }
    let (mut list, mut bytes) = (Vec::new(), Bytes { dataset, part: Part::Validation, at: 0 });
    while (list.len() as u64) < manifest.validation_tokens {
        list.extend(bytes.next(manifest.validation_tokens - list.len() as u64)?);
    }
    let files = decode(&list).ok_or_else(|| no_files("its list cannot be read"))?;
    let total = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
    if total != manifest.train_tokens {
        return Err(no_files("its list has another length than its files"));
    }
    Ok(files)
}

fn encode(files: &[Listed]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&(files.len() as u64).to_le_bytes());
    for file in files {
        bytes.extend_from_slice(&(file.name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(file.name.as_bytes());
        bytes.extend_from_slice(&file.bytes.to_le_bytes());
    }
    bytes
}

/// Decodes a list whose names stay in the folder, and of which none needs a folder where another is a file.
fn decode(bytes: &[u8]) -> Option<Vec<Listed>> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (count, mut rest) = rest.split_first_chunk::<8>()?;
    let count = u64::from_le_bytes(*count);
    if magic != MAGIC || count > FILES_MAX as u64 {
        return None;
    }
    let mut files: Vec<Listed> = Vec::new();
    let mut folders = BTreeSet::new();
    for _ in 0..count {
        let (length, behind) = rest.split_first_chunk::<2>()?;
        let (name, behind) = behind.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        let (length, behind) = behind.split_first_chunk::<8>()?;
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name))?;
        if files.last().is_some_and(|last| last.name.as_str() >= name) {
            return None;
        }
        folders.extend(name.match_indices('/').map(|(at, _)| &name[..at]));
        files.push(Listed { name: name.to_owned(), bytes: u64::from_le_bytes(*length) });
        rest = behind;
    }
    let is_sound = rest.is_empty() && files.iter().all(|file| !folders.contains(file.name.as_str()));
    is_sound.then_some(files)
}

/// Whether a name is a path below a folder, written in one way.
fn is_name(name: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    name.len() <= FILE_NAME_BYTES_MAX && name.split('/').all(is_part) && !name.contains(['\0', '\\'])
}

/// Names sources. Equal fingerprints mean equal manifests, unless a file changed and kept its size and time.
fn fingerprint(files: &BTreeMap<String, Source>) -> Digest {
    let mut listed = Vec::new();
    for (name, Source { path, stamp }) in files {
        for text in [name.as_bytes(), path.as_os_str().as_encoded_bytes()] {
            listed.extend_from_slice(&(text.len() as u64).to_le_bytes());
            listed.extend_from_slice(text);
        }
        for field in [stamp.bytes, stamp.seconds as u64, stamp.nanoseconds as u64] {
            listed.extend_from_slice(&field.to_le_bytes());
        }
    }
    Digest::of("starling file sources v1", &[&listed])
}

fn build(
    files: &BTreeMap<String, Source>,
    cache: &Cache,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<DataManifest, DataError> {
    let total = files.values().fold(0u64, |sum, file| sum.saturating_add(file.stamp.bytes));
    if total == 0 {
        return Err(DataError::Empty { files: files.len() });
    }
    let (mut writer, mut done, mut reported) = (ShardWriter::new(cache, VOCAB), 0, 0);
    let mut buffer = vec![0; READ_BYTES];
    for source in files.values() {
        let path = &source.path;
        let mut file = File::open(path).map_err(DataError::unreadable(path))?;
        let mut left = source.stamp.bytes;
        loop {
            let read = file.read(&mut buffer).map_err(DataError::unreadable(path))?;
            let Some(after) = left.checked_sub(read as u64) else {
                return Err(DataError::Changed { path: path.clone() });
            };
            if read == 0 {
                break;
            }
            writer.push_bytes(buffer.get(..read).unwrap_or_default())?;
            (left, done) = (after, done + read as u64);
            if done - reported >= REPORT_BYTES {
                reported = done;
                progress(PrepareProgress::Reading { done, total });
            }
        }
        let metadata = file.metadata().map_err(DataError::unreadable(path))?;
        if left > 0 || Stamp::of(&metadata) != source.stamp {
            return Err(DataError::Changed { path: path.clone() });
        }
    }
    let (mut shards, train_tokens) = writer.finish()?;
    let listed: Vec<Listed> =
        files.iter().map(|(name, source)| Listed { name: name.clone(), bytes: source.stamp.bytes }).collect();
    let list = encode(&listed);
    if list.len() as u64 > FILE_LIST_BYTES_MAX {
        return Err(DataError::TooManyFiles { max: listed.len() });
    }
    let mut writer = ShardWriter::new(cache, VOCAB);
    writer.push_bytes(&list)?;
    let (of_list, validation_tokens) = writer.finish()?;
    shards.extend(of_list);
    if shards.len() > SHARDS_MAX {
        return Err(DataError::TooManyShards { max: SHARDS_MAX });
    }
    let manifest = DataManifest {
        vocab: VOCAB,
        tokenizer: kind(),
        train_tokens,
        validation_tokens,
        train_bytes: train_tokens,
        validation_bytes: validation_tokens,
        order1_micronats: 0,
        shards,
    };
    manifest.check(manifest.shards.len())?;
    Ok(manifest)
}

/// The files of all sources by the names that they get.
fn list(
    sources: &[String],
    base: &Path,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<BTreeMap<String, Source>, DataError> {
    let mut files = BTreeMap::new();
    for source in sources {
        if source.contains("://") {
            return Err(DataError::Remote { source_text: source.clone() });
        }
        let (found, root) = found(source)?;
        for path in found {
            let name = name_of(&path, base, &root).ok_or_else(|| DataError::FileName { path: path.clone() })?;
            let metadata = fs::metadata(&path).map_err(DataError::unreadable(&path))?;
            let stamp = Stamp::of(&metadata);
            if let Some(Source { path: other, .. }) = files.insert(name.clone(), Source { path: path.clone(), stamp })
                && other != path
            {
                return Err(DataError::TwoFiles { name, first: other, second: path });
            }
            if files.len() > FILES_MAX {
                return Err(DataError::TooManyFiles { max: FILES_MAX });
            }
        }
        progress(PrepareProgress::Listing { files: files.len() as u64 });
    }
    let name_in_other = files.keys().find(|name| {
        name.match_indices('/').any(|(at, _)| name.get(..at).is_some_and(|folder| files.contains_key(folder)))
    });
    match name_in_other.and_then(|name| files.get(name)) {
        Some(source) => Err(DataError::FileName { path: source.path.clone() }),
        None => Ok(files),
    }
}

/// The files of a source, and the folder that holds it.
fn found(source: &str) -> Result<(Vec<PathBuf>, PathBuf), DataError> {
    let path = Path::new(source);
    let above = |path: &Path| path.parent().unwrap_or(Path::new("")).to_path_buf();
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => return Ok((vec![path.to_path_buf()], above(path))),
        Ok(metadata) if metadata.is_dir() => {
            let (mut files, mut seen) = (Vec::new(), BTreeSet::new());
            walk(path, 0, &mut seen, &mut files)?;
            if files.is_empty() {
                return Err(DataError::NoFile { path: path.to_path_buf() });
            }
            return Ok((files, above(path)));
        }
        Ok(_) => return Err(DataError::NotAFile { path: path.to_path_buf() }),
        Err(_) if source.contains(['*', '?', '[']) => {}
        Err(error) => return Err(DataError::unreadable(path)(error)),
    }
    let rules =
        glob::MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };
    let matches = glob::glob_with(source, rules)
        .map_err(|error| DataError::BadGlob { pattern: source.to_owned(), reason: error.to_string() })?;
    let (mut files, mut seen) = (Vec::new(), BTreeSet::new());
    for found in matches {
        let path = found.map_err(|error| {
            let path = error.path().to_owned();
            DataError::Unreadable { path, source: error.into() }
        })?;
        if path.is_dir() {
            walk(&path, 0, &mut seen, &mut files)?;
        } else {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            return Err(DataError::TooManyFiles { max: FILES_MAX });
        }
    }
    if files.is_empty() {
        return Err(DataError::NoMatch { pattern: source.to_owned() });
    }
    let plain = |part: &Component<'_>| !part.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    let fixed: PathBuf = path.components().take_while(plain).collect();
    Ok((files, above(&fixed)))
}

/// The files below a folder, but for hidden ones. Links are followed; a folder that two lead to is read once.
fn walk(folder: &Path, depth: usize, seen: &mut BTreeSet<PathBuf>, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let own = folder.canonicalize().map_err(DataError::unreadable(folder))?;
    if depth > DEPTH_MAX || !seen.insert(own) {
        return Ok(());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(DataError::unreadable(folder))? {
        names.push(entry.map_err(DataError::unreadable(folder))?.file_name());
    }
    names.sort();
    for name in names.iter().filter(|name| !name.as_encoded_bytes().starts_with(b".")) {
        let path = folder.join(name);
        let metadata = fs::metadata(&path).map_err(DataError::unreadable(&path))?;
        if metadata.is_dir() {
            walk(&path, depth + 1, seen, files)?;
        } else if metadata.is_file() {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            return Err(DataError::TooManyFiles { max: FILES_MAX });
        }
    }
    Ok(())
}

/// The name of a file: its path from `base`, or from `root` if it does not lie there.
fn name_of(path: &Path, base: &Path, root: &Path) -> Option<String> {
    let from = |folder: &Path| -> Option<String> {
        let parts = path.strip_prefix(folder).ok()?.components().filter(|part| *part != Component::CurDir);
        let part = |part: Component<'_>| match part {
            Component::Normal(part) => part.to_str().map(str::to_owned),
            _ => None,
        };
        let name = parts.map(part).collect::<Option<Vec<_>>>()?.join("/");
        is_name(&name).then_some(name)
    };
    from(base).or_else(|| from(root))
}

#[cfg(test)]
#[path = "files_test.rs"]
mod tests;
