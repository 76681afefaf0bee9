//! Makes a data set of sources in the cache, once.

use crate::blocks::{Block, BlockBuilder};
use crate::cache::Cache;
use crate::dataset::Dataset;
use crate::documents::{DocumentSink, Flow, Outcome, read_file};
use crate::entropy::PairCounts;
use crate::error::DataError;
use crate::holdout::Splitter;
use crate::limits::CORPUS_BYTES_MIN;
use crate::manifest::{DataManifest, Part};
use crate::options::CorpusOptions;
use crate::shards::ShardWriter;
use crate::sources::{self, SourceFile};
use crate::tokenizer::Tokenizer;
use starling_protocol::Digest;
use std::cell::Cell;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Raised when the same sources would give another manifest, so that no old fingerprint matches.
const RULES_VERSION: u32 = 1;
/// Shards up to this size together are checked by digest at every start (a second a gigabyte). Larger data sets have
/// each shard checked when it is first read.
const CHECKED_AT_START_BYTES: u64 = 1 << 30;
/// Blocks given to a tokenizer at once, for each core: few, because its result takes some 100 bytes a token.
const BLOCKS_PER_CORE: usize = 2;
/// Cores beyond this number do not increase the batch.
const BATCH_CORES_MAX: usize = 32;
/// Text between two reports of progress.
const REPORT_BYTES: u64 = 1 << 20;

/// The progress of [`prepare`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PrepareProgress {
    /// Looking for files; so many found.
    Listing { files: u64 },
    /// Another process prepares a corpus in the same cache folder.
    Waiting,
    /// Checking the shards of an earlier start.
    Checking { done: usize, total: usize },
    /// The data set of an earlier start is not whole.
    Rebuilding { why: String },
    /// Reading text; bytes done and in all, as far as they are known.
    Reading { done: u64, total: u64 },
    /// The data set is ready. The summary is none if the data set of an earlier start is used.
    Done { built: Option<Summary> },
}

/// The content found in a corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub files: u64,
    /// Files that a search found and that are not text.
    pub skipped: u64,
    pub documents: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// Byte sequences that are not UTF-8, each read as U+FFFD; byte-level tokens keep them as they are.
    pub replaced: u64,
    pub train_tokens: u64,
    pub validation_tokens: u64,
}

/// Makes the data set of a corpus in the cache folder, or finds it there.
///
/// The same text, tokenizer and options give the same manifest on every machine. Of several processes that prepare in
/// one folder, one works at a time, and those that wait find its result.
pub fn prepare(
    options: &CorpusOptions,
    cache: &Path,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<Dataset, DataError> {
    options.validate()?;
    let tokenizer = options.tokenizer.digest()?;
    let files = sources::list(&options.sources, &mut |files| progress(PrepareProgress::Listing { files }))?;
    let fingerprint = fingerprint(options, &tokenizer, &files);
    let cache = Cache::open(cache)?;
    if let Some(dataset) = reuse(&cache, &fingerprint, progress)? {
        return Ok(dataset);
    }
    let _lock = cache.lock(|| progress(PrepareProgress::Waiting))?;
    if let Some(dataset) = reuse(&cache, &fingerprint, progress)? {
        return Ok(dataset);
    }
    cache.sweep();
    let (manifest, summary) = build(options, &tokenizer, &files, &cache, progress)?;
    cache.sync_shards()?;
    cache.put_manifest(&manifest)?;
    cache.put_fingerprint(&fingerprint, &manifest.digest())?;
    progress(PrepareProgress::Done { built: Some(summary) });
    Ok(Dataset::in_cache(cache, manifest))
}

/// Names sources and options. Equal fingerprints mean equal manifests, unless a file changed and kept its size and
/// time.
fn fingerprint(options: &CorpusOptions, tokenizer: &Digest, files: &[SourceFile]) -> Digest {
    let mut listed = Vec::new();
    for SourceFile { path, kind, stamp, take, named } in files {
        listed.extend_from_slice(&(path.as_os_str().len() as u64).to_le_bytes());
        listed.extend_from_slice(path.as_os_str().as_bytes());
        listed.extend_from_slice(&[kind.form as u8, kind.packing as u8, u8::from(*named)]);
        for field in [stamp.bytes, stamp.seconds as u64, stamp.nanoseconds as u64, *take] {
            listed.extend_from_slice(&field.to_le_bytes());
        }
    }
    let numbers = [u64::from(RULES_VERSION), options.holdout_every(), options.bytes_max].map(u64::to_le_bytes);
    let parts: [&[u8]; 4] = [numbers.as_flattened(), options.field.as_bytes(), &tokenizer.0, &listed];
    Digest::of("starling data sources v1", &parts)
}

/// The data set that an earlier start made of the same sources, if it is whole.
pub(crate) fn reuse(
    cache: &Cache,
    fingerprint: &Digest,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<Option<Dataset>, DataError> {
    let Some(manifest) = cache.prepared(fingerprint)? else { return Ok(None) };
    let bytes: u64 = manifest.shards().map(|shard| shard.bytes).sum();
    let total = manifest.shards().len();
    let dataset = Dataset::in_cache(cache.clone(), manifest);
    let wanted = match bytes <= CHECKED_AT_START_BYTES {
        true => dataset.verify(&mut |done| progress(PrepareProgress::Checking { done, total }))?,
        false => dataset.missing(),
    };
    let Some(first) = wanted.first() else {
        progress(PrepareProgress::Done { built: None });
        return Ok(Some(dataset));
    };
    let why =
        format!("{} of {total} shards are damaged or gone from the data cache, {} first", wanted.len(), first.digest);
    progress(PrepareProgress::Rebuilding { why });
    Ok(None)
}

fn build(
    options: &CorpusOptions,
    digest: &Digest,
    files: &[SourceFile],
    cache: &Cache,
    progress: &mut dyn FnMut(PrepareProgress),
) -> Result<(DataManifest, Summary), DataError> {
    let tokenizer = Tokenizer::load(&options.tokenizer)?;
    if tokenizer.digest() != *digest {
        return Err(DataError::Changed { path: options.tokenizer.to_string().into() });
    }
    // The total is exact for plain files; for others it is the compressed size.
    let on_disk: u64 = files.iter().map(|file| file.stamp.bytes.min(file.take)).sum();
    let total = on_disk.min(options.bytes_max);
    let read = Cell::new(0);
    let mut report = |text: u64| {
        let done = if on_disk <= options.bytes_max { read.get() } else { text };
        progress(PrepareProgress::Reading { done: done.min(total), total });
    };
    report(0);
    let mut intake = Intake {
        left: options.bytes_max,
        reported: 0,
        summary: Summary::default(),
        builder: BlockBuilder::default(),
        splitter: Splitter::new(options.holdout_every()),
        tokens: TokenSink::new(&tokenizer, cache),
        report: &mut report,
    };
    for file in files {
        let outcome = read_file(file, &options.field, &read, &mut intake)?;
        intake.summary.files += 1;
        match outcome {
            Outcome::Read => {}
            Outcome::Skipped => intake.summary.skipped += 1,
            Outcome::Full => break,
        }
    }
    let built = intake.finish(files.len())?;
    report(options.bytes_max);
    Ok(built)
}

/// Takes documents and passes their blocks to the tokens of either part.
struct Intake<'a> {
    /// Bytes of text still wanted.
    left: u64,
    reported: u64,
    summary: Summary,
    builder: BlockBuilder,
    splitter: Splitter,
    tokens: TokenSink<'a>,
    report: &'a mut dyn FnMut(u64),
}

impl DocumentSink for Intake<'_> {
    fn text(&mut self, bytes: &[u8]) -> Flow {
        let wanted = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.builder.push(&bytes[..wanted]);
        self.left -= wanted as u64;
        self.summary.bytes += wanted as u64;
        if self.summary.bytes - self.reported >= REPORT_BYTES {
            self.reported = self.summary.bytes;
            (self.report)(self.reported);
        }
        self.route()?;
        if self.left == 0 {
            self.end(true)?;
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn end(&mut self, cut: bool) -> Result<(), DataError> {
        if self.builder.end_document(cut) {
            self.summary.documents += 1;
        }
        self.route()
    }
}

impl Intake<'_> {
    fn route(&mut self) -> Result<(), DataError> {
        while let Some(block) = self.builder.pop() {
            for (part, block) in self.splitter.route(block) {
                self.tokens.take(part, block)?;
            }
        }
        Ok(())
    }

    fn finish(mut self, files: usize) -> Result<(DataManifest, Summary), DataError> {
        match self.summary.bytes {
            0 => return Err(DataError::Empty { files }),
            bytes if bytes < CORPUS_BYTES_MIN => return Err(DataError::TooSmall { bytes, min: CORPUS_BYTES_MIN }),
            _ => {}
        }
        let Self { mut splitter, mut tokens, builder, ref mut summary, .. } = self;
        for block in builder.finish() {
            for (part, block) in splitter.route(block) {
                tokens.take(part, block)?;
            }
        }
        for (part, block) in splitter.finish() {
            tokens.take(part, block)?;
        }
        let (manifest, replaced) = tokens.finish()?;
        summary.replaced = replaced;
        summary.train_tokens = manifest.train_tokens;
        summary.validation_tokens = manifest.validation_tokens;
        if summary.skipped > 0 {
            tracing::warn!("{} files hold zero bytes and were skipped: they are not text", summary.skipped);
        }
        if replaced > 0 {
            tracing::warn!("{replaced} byte sequences of the corpus are not UTF-8 and were read as U+FFFD");
        }
        Ok((manifest, std::mem::take(summary)))
    }
}

/// Turns blocks into the tokens of both parts.
struct TokenSink<'a> {
    tokenizer: &'a Tokenizer,
    train: PartSink<'a>,
    validation: PartSink<'a>,
    /// The byte pairs of the held-out text.
    pairs: PairCounts,
    /// Blocks that the tokenizer has not been given yet, fewer than `batch`.
    waiting: Vec<(Part, Block)>,
    batch: usize,
    replaced: u64,
}

struct PartSink<'a> {
    writer: ShardWriter<'a>,
    bytes: u64,
}

impl<'a> TokenSink<'a> {
    fn new(tokenizer: &'a Tokenizer, cache: &'a Cache) -> Self {
        let part = || PartSink { writer: ShardWriter::new(cache, tokenizer.vocab()), bytes: 0 };
        let (train, validation) = (part(), part());
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get).min(BATCH_CORES_MAX);
        let (pairs, batch) = (PairCounts::new(), cores * BLOCKS_PER_CORE);
        Self { tokenizer, train, validation, pairs, waiting: Vec::new(), batch, replaced: 0 }
    }

    fn part(&mut self, part: Part) -> &mut PartSink<'a> {
        match part {
            Part::Train => &mut self.train,
            Part::Validation => &mut self.validation,
        }
    }

    fn take(&mut self, part: Part, block: Block) -> Result<(), DataError> {
        let ends = if self.tokenizer.end().is_some() { block.ends.len() } else { 0 };
        self.part(part).bytes += (block.text.len() + ends) as u64;
        let is_bytes = self.tokenizer.is_bytes();
        if is_bytes || part == Part::Validation {
            let stream = block.stream();
            if part == Part::Validation {
                self.pairs.add(&stream);
            }
            if is_bytes {
                return self.part(part).writer.push_bytes(&stream);
            }
        }
        self.waiting.push((part, block));
        if self.waiting.len() == self.batch { self.encode_waiting() } else { Ok(()) }
    }

    fn encode_waiting(&mut self) -> Result<(), DataError> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut texts = Vec::new();
        let mut places = Vec::new();
        for (part, block) in &waiting {
            for (segment, ended) in block.segments() {
                texts.push(self.valid_text(segment));
                places.push((*part, ended));
            }
        }
        let (vocab, end) = (self.tokenizer.vocab(), self.tokenizer.end());
        for (mut tokens, (part, ended)) in self.tokenizer.encode_each(texts)?.into_iter().zip(places) {
            tokens.extend(end.filter(|_| ended));
            if let Some(token) = tokens.iter().find(|&&token| token >= vocab) {
                let reason = format!("it gave token {token}, which its vocabulary does not list");
                return Err(DataError::Encode { reason });
            }
            self.part(part).writer.push(&tokens)?;
        }
        Ok(())
    }

    /// The text with U+FFFD for bytes that are not UTF-8, which are counted.
    fn valid_text(&mut self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                self.replaced += 1;
            }
        }
        text
    }

    /// The manifest, and the number of byte sequences that were replaced.
    fn finish(mut self) -> Result<(DataManifest, u64), DataError> {
        self.encode_waiting()?;
        let (mut shards, train_tokens) = self.train.writer.finish()?;
        let (validation_shards, validation_tokens) = self.validation.writer.finish()?;
        if train_tokens == 0 || validation_tokens == 0 {
            return Err(DataError::Encode { reason: "it made no tokens of it".to_owned() });
        }
        shards.extend(validation_shards);
        if shards.len() > crate::limits::SHARDS_MAX {
            return Err(DataError::TooManyShards { max: crate::limits::SHARDS_MAX });
        }
        let manifest = DataManifest {
            vocab: self.tokenizer.vocab(),
            tokenizer: self.tokenizer.digest(),
            train_tokens,
            validation_tokens,
            train_bytes: self.train.bytes,
            validation_bytes: self.validation.bytes,
            order1_micronats: self.pairs.conditional_micronats(),
            shards,
        };
        manifest.check(manifest.shards.len())?;
        Ok((manifest, self.replaced))
    }
}

#[cfg(test)]
#[path = "prepare_test.rs"]
mod tests;
