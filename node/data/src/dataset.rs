//! A prepared data set: sequences of tokens out of memory-mapped shards.

use crate::cache::Cache;
use crate::error::DataError;
use crate::limits::{MAPS_MAX, PIECE_BYTES, SEQ_LEN_MAX};
use crate::manifest::{DataManifest, Part, ShardInfo};
use crate::shards::shard_digest;
use memmap2::Mmap;
use starling_protocol::Digest;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A data set with all or some of its shards in a cache folder. Shared between threads behind an `Arc`.
///
/// Sequence `i` of a part is its tokens `[i * seq_len, i * seq_len + seq_len]`, seq_len + 1 of them: inputs, and
/// targets one further. Neighbours share one token, and each token is a target once.
#[derive(Debug)]
pub struct Dataset {
    cache: Cache,
    manifest: DataManifest,
    digest: Digest,
    /// A shard's place in the manifest.
    places: BTreeMap<Digest, usize>,
    maps: Mutex<Maps>,
}

/// Shards that are mapped now.
#[derive(Debug, Default)]
struct Maps {
    open: BTreeMap<usize, Arc<Mmap>>,
    /// The mapped shards, oldest first.
    order: VecDeque<usize>,
    /// The shards that had the right digest when this process first opened them.
    checked: Vec<bool>,
}

impl Dataset {
    /// Opens the data set that `manifest` describes, with those of its shards that the cache folder holds.
    pub fn open(cache: &Path, manifest: &DataManifest) -> Result<Self, DataError> {
        manifest.check(manifest.shards.len())?;
        let cache = Cache::open(cache)?;
        let dataset = Self::in_cache(cache, manifest.clone());
        if dataset.cache.manifest(&dataset.digest)?.is_none() {
            dataset.cache.put_manifest(&dataset.manifest)?;
        }
        Ok(dataset)
    }

    /// Opens the data set whose manifest has this digest, if the cache folder knows it.
    pub fn open_cached(cache: &Path, manifest: &Digest) -> Result<Option<Self>, DataError> {
        let cache = Cache::open(cache)?;
        Ok(cache.manifest(manifest)?.map(|manifest| Self::in_cache(cache, manifest)))
    }

    /// The data set of a run that reads no text.
    pub fn empty(cache: &Path) -> Result<Self, DataError> {
        let manifest = DataManifest {
            vocab: 1,
            tokenizer: Digest::default(),
            train_tokens: 0,
            validation_tokens: 0,
            train_bytes: 0,
            validation_bytes: 0,
            order1_micronats: 0,
            shards: Vec::new(),
        };
        Ok(Self::in_cache(Cache::open(cache)?, manifest))
    }

    pub(crate) fn in_cache(cache: Cache, manifest: DataManifest) -> Self {
        let places = manifest.shards.iter().enumerate().map(|(place, digest)| (*digest, place)).collect();
        let maps = Maps { checked: vec![false; manifest.shards.len()], ..Maps::default() };
        Self { cache, digest: manifest.digest(), places, maps: Mutex::new(maps), manifest }
    }

    pub fn manifest(&self) -> &DataManifest {
        &self.manifest
    }

    /// Digest of the manifest, as the run names it.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Empirical entropy, in nats, of a held-out byte given the one before it.
    pub fn order1_entropy(&self) -> f64 {
        self.manifest.order1_entropy()
    }

    /// Training sequences of `seq_len` tokens.
    pub fn train_sequences(&self, seq_len: usize) -> u64 {
        sequences(self.manifest.train_tokens, seq_len)
    }

    /// Held-out sequences of `seq_len` tokens.
    pub fn validation_sequences(&self, seq_len: usize) -> u64 {
        sequences(self.manifest.validation_tokens, seq_len)
    }

    /// Refuses a data set that has no training or no held-out sequence of this length.
    pub fn require_sequences(&self, seq_len: usize) -> Result<(), DataError> {
        let (train, validation) = (self.train_sequences(seq_len), self.validation_sequences(seq_len));
        match train.min(validation) {
            0 => Err(DataError::TooFewSequences { seq_len, train, validation }),
            _ => Ok(()),
        }
    }

    /// Appends the seq_len + 1 tokens of training sequence `index` to `out`.
    ///
    /// On an error, such as [`DataError::MissingShard`], `out` is left as it was.
    pub fn read_train(&self, seq_len: usize, index: u64, out: &mut Vec<u32>) -> Result<(), DataError> {
        self.check_index(seq_len, index)?;
        self.read(Part::Train, seq_len, index, out)
    }

    /// The shards that training sequence `index` lies in; none for a sequence that does not exist.
    pub fn shards_for(&self, seq_len: usize, index: u64) -> Vec<Digest> {
        match self.check_index(seq_len, index) {
            Ok(()) => self.spanned(Part::Train, seq_len, index),
            Err(_) => Vec::new(),
        }
    }

    /// At most `sequences_max` held-out sequences of seq_len + 1 tokens, row after row, spread evenly: the same ones on
    /// every node.
    pub fn validation(&self, seq_len: usize, sequences_max: u64) -> Result<Vec<u32>, DataError> {
        let mut tokens = Vec::new();
        for index in self.validation_choice(seq_len, sequences_max) {
            self.read(Part::Validation, seq_len, index, &mut tokens)?;
        }
        Ok(tokens)
    }

    /// The shards that [`Self::validation`] reads.
    pub fn shards_for_validation(&self, seq_len: usize, sequences_max: u64) -> Vec<Digest> {
        let choice = self.validation_choice(seq_len, sequences_max);
        let mut shards: Vec<_> = choice.flat_map(|index| self.spanned(Part::Validation, seq_len, index)).collect();
        shards.dedup();
        shards
    }

    fn validation_choice(&self, seq_len: usize, sequences_max: u64) -> impl Iterator<Item = u64> {
        let total = self.validation_sequences(seq_len);
        let count = total.min(sequences_max);
        (0..count).map(move |i| (u128::from(i) * u128::from(total) / u128::from(count)) as u64)
    }

    /// The shards that are not in the cache folder, each once. A shard that is there may still prove damaged.
    pub fn missing(&self) -> Vec<ShardInfo> {
        let places = self.manifest.shards().enumerate().filter(|(place, shard)| self.places[&shard.digest] == *place);
        places.map(|(_, shard)| shard).filter(|shard| !self.cache.shard_path(&shard.digest).exists()).collect()
    }

    /// Checks the digest of every shard in the folder, and sets damaged ones aside. Returns the missing shards.
    pub fn verify(&self, progress: &mut dyn FnMut(usize)) -> Result<Vec<ShardInfo>, DataError> {
        let mut wanted = Vec::new();
        for (place, shard) in self.manifest.shards().enumerate() {
            match self.shard(place) {
                Ok(_) => {}
                Err(DataError::MissingShard { .. }) => wanted.push(shard),
                Err(error) => return Err(error),
            }
            progress(place + 1);
        }
        wanted.dedup();
        Ok(wanted)
    }

    /// Adds a whole shard that a peer served, if the manifest names it.
    pub fn add_shard(&self, digest: &Digest, bytes: &[u8]) -> Result<(), DataError> {
        let shard = self.manifest.shard_at(self.place(digest)?);
        let digest = *digest;
        if bytes.len() as u64 != shard.bytes {
            return Err(DataError::WrongShard { digest, reason: "their number is not the shard's" });
        }
        if shard_digest(bytes) != digest {
            return Err(DataError::WrongShard { digest, reason: "their digest differs" });
        }
        self.cache.put_shard(&digest, bytes)
    }

    /// Bytes of piece `index` of a shard, at most [`PIECE_BYTES`], for a peer. Only a shard that passed its check is
    /// served.
    pub fn shard_piece(&self, digest: &Digest, index: u32) -> Result<Vec<u8>, DataError> {
        let place = self.place(digest)?;
        let pieces = self.manifest.shard_at(place).pieces();
        if index >= pieces {
            return Err(DataError::OutOfRange { what: "piece", index: index.into(), count: pieces.into() });
        }
        let map = self.shard(place)?;
        let start = index as usize * PIECE_BYTES;
        Ok(map[start..map.len().min(start + PIECE_BYTES)].to_vec())
    }

    fn place(&self, digest: &Digest) -> Result<usize, DataError> {
        self.places.get(digest).copied().ok_or(DataError::UnknownShard { digest: *digest })
    }

    fn check_index(&self, seq_len: usize, index: u64) -> Result<(), DataError> {
        let count = self.train_sequences(seq_len);
        match index < count {
            true => Ok(()),
            false => Err(DataError::OutOfRange { what: "training sequence", index, count }),
        }
    }

    /// The place in the manifest of the shard that holds a part's token `at`, and the token's place in the shard.
    fn locate(&self, part: Part, at: u64) -> (usize, u64) {
        let first = if part == Part::Train { 0 } else { self.manifest.train_shards() };
        let full = self.manifest.tokens_per_shard();
        (first + (at / full) as usize, at % full)
    }

    fn spanned(&self, part: Part, seq_len: usize, index: u64) -> Vec<Digest> {
        let start = index * seq_len as u64;
        let (first, last) = (self.locate(part, start).0, self.locate(part, start + seq_len as u64).0);
        self.manifest.shards[first..=last].to_vec()
    }

    /// Appends a sequence that exists to `out`.
    fn read(&self, part: Part, seq_len: usize, index: u64, out: &mut Vec<u32>) -> Result<(), DataError> {
        let before = out.len();
        let result = self.read_tokens(part, index * seq_len as u64, seq_len + 1, out);
        if result.is_err() {
            out.truncate(before);
        }
        result
    }

    fn read_tokens(&self, part: Part, mut at: u64, mut count: usize, out: &mut Vec<u32>) -> Result<(), DataError> {
        let width = self.manifest.token_bytes();
        out.reserve(count);
        while count > 0 {
            let (place, offset) = self.locate(part, at);
            let shard = self.manifest.shard_at(place);
            let taken = count.min(shard.tokens as usize - offset as usize);
            let map = self.shard(place)?;
            let start = out.len();
            let bytes = &map[offset as usize * width..][..taken * width];
            match width {
                1 => out.extend(bytes.iter().map(|&byte| u32::from(byte))),
                2 => out.extend(bytes.as_chunks().0.iter().map(|&token| u32::from(u16::from_le_bytes(token)))),
                _ => out.extend(bytes.as_chunks().0.iter().map(|&token| u32::from_le_bytes(token))),
            }
            // The digest proves that these are the founder's tokens, but not that a model has a row for each.
            let vocab = self.manifest.vocab;
            if let Some(&token) = out[start..].iter().find(|&&token| token >= vocab) {
                return Err(DataError::TokenOutOfVocab { digest: shard.digest, token, vocab });
            }
            at += taken as u64;
            count -= taken;
        }
        Ok(())
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        // No thread that panics leaves the content half changed.
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard at a place of the manifest, mapped. Its size is checked, and its digest once in a process.
    fn shard(&self, place: usize) -> Result<Arc<Mmap>, DataError> {
        let mut maps = self.maps();
        if let Some(map) = maps.open.get(&place) {
            return Ok(Arc::clone(map));
        }
        let shard = self.manifest.shard_at(place);
        let path = self.cache.shard_path(&shard.digest);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(DataError::MissingShard { digest: shard.digest });
            }
            Err(error) => return Err(DataError::cache("open a shard", &path)(error)),
        };
        let metadata = file.metadata().map_err(DataError::cache("open a shard", &path))?;
        if metadata.len() != shard.bytes {
            return Err(self.set_aside(shard.digest));
        }
        // SAFETY: the file has the mapped length, and nobody changes it: it is written elsewhere, made read-only and
        // renamed to its name, and is only ever replaced or moved as a whole, which a mapping survives.
        let map = unsafe { Mmap::map(&file) }.map_err(DataError::cache("map a shard", &path))?;
        if !maps.checked[place] {
            if shard_digest(&map) != shard.digest {
                return Err(self.set_aside(shard.digest));
            }
            maps.checked[place] = true;
        }
        let map = Arc::new(map);
        maps.open.insert(place, Arc::clone(&map));
        maps.order.push_back(place);
        if maps.order.len() > MAPS_MAX
            && let Some(oldest) = maps.order.pop_front()
        {
            maps.open.remove(&oldest);
        }
        Ok(map)
    }

    /// Takes a damaged shard out of use. It is missing then, and the error says so.
    fn set_aside(&self, digest: Digest) -> DataError {
        match self.cache.set_aside(&digest) {
            Ok(aside) => {
                let aside = aside.display();
                tracing::warn!("shard {digest} is damaged on disk; it is set aside as {aside} and taken for missing");
                DataError::MissingShard { digest }
            }
            Err(error) => error,
        }
    }
}

/// Sequences of seq_len + 1 tokens, each starting seq_len after the one before.
fn sequences(tokens: u64, seq_len: usize) -> u64 {
    match seq_len {
        1..=SEQ_LEN_MAX => tokens.saturating_sub(1) / seq_len as u64,
        _ => 0,
    }
}

#[cfg(test)]
#[path = "dataset_test.rs"]
mod tests;
