use super::*;
use crate::blocks::END_BYTE;
use crate::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};
use crate::tokenizer::TokenizerChoice;
use crate::tokenizer::tests::byte_level;
use proptest::prelude::*;
use std::fs;

fn options(sources: &[&Path]) -> CorpusOptions {
    let sources = sources.iter().map(|path| path.to_str().unwrap().to_owned()).collect();
    CorpusOptions { sources, ..CorpusOptions::default() }
}

/// Prepares a data set; returns it and the progress reports.
fn prepared(options: &CorpusOptions, cache: &Path) -> Result<(Dataset, Vec<PrepareProgress>), DataError> {
    let mut said = Vec::new();
    let dataset = prepare(options, cache, &mut |progress| said.push(progress))?;
    Ok((dataset, said))
}

/// All tokens of a part, out of the shards.
fn tokens(dataset: &Dataset, part: Part) -> Vec<u32> {
    let mut tokens = Vec::new();
    for shard in dataset.manifest().shards().filter(|shard| shard.validation == (part == Part::Validation)) {
        for piece in 0..shard.pieces() {
            let bytes = dataset.shard_piece(&shard.digest, piece).unwrap();
            match dataset.manifest().token_bytes() {
                1 => tokens.extend(bytes.iter().map(|&byte| u32::from(byte))),
                _ => tokens.extend(bytes.chunks(2).map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]])))),
            }
        }
    }
    tokens
}

/// Lines of words that differ from place to place.
fn text(seed: u64, bytes: usize) -> String {
    let mut state = seed | 1;
    let mut text = String::new();
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(["the ", "flock ", "flies ", "on ", "§ ", "starling\n"][(state >> 33) as usize % 6]);
    }
    text.truncate(text.floor_char_boundary(bytes));
    text
}

/// The split by the letter of its rule, over the whole text at once.
fn naive_split(documents: &[&[u8]], every: usize) -> (Vec<u8>, Vec<u8>) {
    let mut blocks: Vec<Vec<u8>> = vec![Vec::new()];
    // Text bytes in the open block; ends do not count.
    let mut filled = 0;
    for document in documents {
        let mut rest = *document;
        while filled + rest.len() >= BLOCK_BYTES_MAX {
            let open = blocks.last_mut().unwrap();
            open.extend_from_slice(&rest[..BLOCK_BYTES_MAX - filled]);
            let extra = match open.iter().rposition(|&byte| byte == b'\n') {
                Some(at) if open.len() - at <= BLOCK_BYTES_MAX - BLOCK_BYTES_MIN => open.len() - at - 1,
                // The check starts at the open block's beginning, which is that of a character: a window at its end may
                // begin within one.
                _ => (0..4).find(|&n| std::str::from_utf8(&open[..open.len() - n]).is_ok()).unwrap_or(0),
            };
            let carried = open.split_off(open.len() - extra);
            rest = &rest[BLOCK_BYTES_MAX - filled..];
            filled = carried.len();
            blocks.push(carried);
        }
        let open = blocks.last_mut().unwrap();
        open.extend_from_slice(rest);
        open.push(END_BYTE);
        filled += rest.len();
        if filled >= BLOCK_BYTES_MIN {
            blocks.push(Vec::new());
            filled = 0;
        }
    }
    blocks.retain(|block| !block.is_empty());
    let (mut train, mut held) = (Vec::new(), Vec::new());
    for (number, block) in blocks.into_iter().enumerate() {
        // The block is in the first run; the tests' corpora have no second one.
        let part = if number == every.min(10) - 1 { &mut held } else { &mut train };
        part.extend(block);
    }
    (train, held)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn train_and_held_out_text_are_the_corpus_cut_by_the_rule(
        sizes in prop::collection::vec(prop_oneof![1usize..9_000, 50_000usize..300_000], 30..50), seed in any::<u64>(),
    ) {
        let root = tempfile::tempdir().unwrap();
        let corpus = root.path().join("corpus");
        fs::create_dir(&corpus).unwrap();
        let documents: Vec<_> = sizes.iter().zip(0..).map(|(&size, n)| text(seed ^ n, size).into_bytes()).collect();
        for (number, document) in documents.iter().enumerate() {
            fs::write(corpus.join(format!("{number:03}.txt")), document).unwrap();
        }
        prop_assume!(documents.iter().map(Vec::len).sum::<usize>() > 11 * BLOCK_BYTES_MAX);
        let (dataset, _) = prepared(&options(&[&corpus]), &root.path().join("cache")).unwrap();
        let slices: Vec<_> = documents.iter().map(Vec::as_slice).collect();
        let (train, held) = naive_split(&slices, 100);
        let as_bytes = |part| tokens(&dataset, part).into_iter().map(|token| token as u8).collect::<Vec<_>>();
        prop_assert!(as_bytes(Part::Train) == train);
        prop_assert!(as_bytes(Part::Validation) == held);
        let mut pairs = PairCounts::new();
        pairs.add(&held);
        prop_assert_eq!(dataset.order1_entropy(), f64::from(pairs.conditional_micronats()) / 1e6);
    }
}

#[test]
fn the_same_text_in_any_packing_is_the_same_data_set() {
    let root = tempfile::tempdir().unwrap();
    let text = text(1, 900_000);
    let (plain, packed, lines) =
        (root.path().join("a.txt"), root.path().join("b.txt.zst"), root.path().join("c.jsonl"));
    fs::write(&plain, &text).unwrap();
    fs::write(&packed, zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap();
    fs::write(&lines, serde_json::json!({"text": text}).to_string()).unwrap();
    let digest = |path: &Path, cache: &str| prepared(&options(&[path]), &root.path().join(cache)).unwrap().0.digest();
    let first = digest(&plain, "one");
    assert_eq!(digest(&packed, "two"), first);
    assert_eq!(digest(&lines, "one"), first);
}

#[test]
fn a_second_start_reuses_and_a_changed_file_does_not() {
    let root = tempfile::tempdir().unwrap();
    let (file, cache) = (root.path().join("a.txt"), root.path().join("cache"));
    fs::write(&file, text(1, 40_000)).unwrap();
    let options = options(&[&file]);
    let (first, said) = prepared(&options, &cache).unwrap();
    let Some(PrepareProgress::Done { built: Some(summary) }) = said.last() else { panic!("{said:?}") };
    assert_eq!((summary.files, summary.documents, summary.bytes), (1, 1, 40_000));
    assert_eq!(summary.train_tokens + summary.validation_tokens, 40_001);
    let (second, said) = prepared(&options, &cache).unwrap();
    assert_eq!(said.last(), Some(&PrepareProgress::Done { built: None }));
    assert!(!said.iter().any(|said| matches!(said, PrepareProgress::Reading { .. })));
    assert_eq!(second.digest(), first.digest());
    fs::write(&file, text(2, 40_000)).unwrap();
    let (third, said) = prepared(&options, &cache).unwrap();
    assert!(matches!(said.last(), Some(PrepareProgress::Done { built: Some(_) })));
    assert_ne!(third.digest(), first.digest());
    // An option that decides the tokens gives another data set.
    let half = CorpusOptions { holdout: 0.5, ..options.clone() };
    assert_ne!(prepared(&half, &cache).unwrap().0.digest(), third.digest());
    let bounded = CorpusOptions { bytes_max: 20_000, ..options };
    let bounded = prepared(&bounded, &cache).unwrap().0;
    assert_eq!(bounded.manifest().train_tokens + bounded.manifest().validation_tokens, 20_001);
}

#[test]
fn damaged_shards_are_named_and_built_again() {
    let root = tempfile::tempdir().unwrap();
    let (file, cache) = (root.path().join("a.txt"), root.path().join("cache"));
    fs::write(&file, text(1, 40_000)).unwrap();
    let (first, _) = prepared(&options(&[&file]), &cache).unwrap();
    let shards: Vec<_> = first.manifest().shards().collect();
    let path = |at: usize| cache.join("shards").join(shards[at].digest.to_string());
    let damages: [&dyn Fn(&Path); 3] = [
        &|path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[7] ^= 1;
            fs::remove_file(path).unwrap();
            fs::write(path, bytes).unwrap();
        },
        &|path| {
            fs::remove_file(path).unwrap();
            fs::write(path, "cut").unwrap();
        },
        &|path| fs::remove_file(path).unwrap(),
    ];
    for damage in damages {
        damage(&path(1));
        let (again, said) = prepared(&options(&[&file]), &cache).unwrap();
        let named = |said: &PrepareProgress| matches!(said, PrepareProgress::Rebuilding { why } if why.contains(&shards[1].digest.to_string()));
        assert!(said.iter().any(named), "{said:?}");
        assert_eq!(again.digest(), first.digest());
        assert!(again.verify(&mut |_| ()).unwrap().is_empty());
    }
}

#[test]
fn several_processes_may_prepare_at_once() {
    let root = tempfile::tempdir().unwrap();
    let (file, cache) = (root.path().join("a.txt"), root.path().join("cache"));
    fs::write(&file, text(1, 2_000_000)).unwrap();
    let options = options(&[&file]);
    // Locks belong to open files, so threads can stand for processes.
    let results: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| prepared(&options, &cache).unwrap())).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert!(results.windows(2).all(|pair| pair[0].0.digest() == pair[1].0.digest()));
    let built = results
        .iter()
        .filter(|(_, said)| matches!(said.last(), Some(PrepareProgress::Done { built: Some(_) })))
        .count();
    assert_eq!(built, 1);
    assert_eq!(fs::read_dir(cache.join("tmp")).unwrap().count(), 0);
}

#[test]
fn a_hugging_face_tokenizer_gives_the_same_split() {
    let root = tempfile::tempdir().unwrap();
    let (file, cache) = (root.path().join("a.txt"), root.path().join("cache"));
    let mut bytes = text(1, 1_600_000).into_bytes();
    bytes[5] = 0xff;
    fs::write(&file, &bytes).unwrap();
    let by_bytes = prepared(&options(&[&file]), &cache).unwrap().0;
    let tokenizer = byte_level(root.path());
    let choice = CorpusOptions { tokenizer: tokenizer.clone(), ..options(&[&file]) };
    let (dataset, said) = prepared(&choice, &cache).unwrap();
    let Some(PrepareProgress::Done { built: Some(summary) }) = said.last() else { panic!("{said:?}") };
    assert_eq!(summary.replaced, 1);
    let manifest = dataset.manifest();
    assert_eq!(manifest.token_bytes(), 2);
    assert_eq!(manifest.order1_entropy(), by_bytes.order1_entropy());
    assert_eq!(manifest.validation_bytes, by_bytes.manifest().validation_tokens);
    assert!(manifest.bytes_per_token() > 1.0);
    let tokenizer = Tokenizer::load(&tokenizer).unwrap();
    for part in [Part::Train, Part::Validation] {
        let expected: Vec<_> = tokens(&by_bytes, part).into_iter().map(|token| token as u8).collect();
        let expected = String::from_utf8_lossy(expected.strip_suffix(&[END_BYTE]).unwrap_or(&expected)).into_owned();
        assert!(tokenizer.decode(&tokens(&dataset, part)).unwrap() == expected);
    }
}

#[test]
fn sources_that_make_no_corpus_are_refused_with_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let cache = root.path().join("cache");
    let file = |name: &str, bytes: &[u8]| {
        let path = root.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let error = |options: &CorpusOptions| prepared(options, &cache).unwrap_err();
    let empty = file("empty.txt", b"");
    assert!(matches!(error(&options(&[&empty])), DataError::Empty { files: 1 }));
    let small = file("small.txt", b"too small");
    assert!(matches!(error(&options(&[&small])), DataError::TooSmall { bytes: 9, .. }));
    assert!(matches!(error(&options(&[])), DataError::NoSources));
    for holdout in [0.0, 0.6, -1.0, f64::NAN] {
        let options = CorpusOptions { holdout, ..options(&[&small]) };
        assert!(matches!(error(&options), DataError::Holdout { .. }));
    }
    let tokenizer = TokenizerChoice::File(small.clone());
    let wrong = CorpusOptions { tokenizer, ..options(&[&file("a.txt", text(1, 9000).as_bytes())]) };
    assert!(matches!(error(&wrong), DataError::Tokenizer { .. }));
    // After an error there is nothing that a later start would take for a result.
    assert_eq!(fs::read_dir(cache.join("sources")).unwrap().count(), 0);
    // A file is where the cache folder should be.
    let blocked = prepare(&options(&[&file("b.txt", text(1, 9000).as_bytes())]), &small, &mut |_| ()).unwrap_err();
    assert!(matches!(blocked, DataError::Cache { .. }));
}

#[test]
fn an_endless_archive_stops_at_the_bound() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("bomb.txt.zst");
    let endless = std::io::Read::take(std::io::repeat(b'x'), 1 << 30);
    fs::write(&file, zstd::encode_all(endless, 1).unwrap()).unwrap();
    let bounded = CorpusOptions { bytes_max: 3 << 20, ..options(&[&file]) };
    let (dataset, said) = prepared(&bounded, &root.path().join("cache")).unwrap();
    assert_eq!(dataset.manifest().train_tokens + dataset.manifest().validation_tokens, (3 << 20) + 1);
    let fraction = |said: &PrepareProgress| match said {
        PrepareProgress::Reading { done, total } => done <= total,
        _ => true,
    };
    assert!(said.iter().all(fraction));
}
