use super::*;
use crate::limits::SHARD_BYTES;
use crate::shards::ShardWriter;
use proptest::prelude::*;
use std::fs;

/// A data set whose tokens give their place; u16 tokens unless `vocab` is 256.
struct Fixture {
    folder: tempfile::TempDir,
    train: Vec<u32>,
    validation: Vec<u32>,
    manifest: DataManifest,
}

fn fixture(vocab: u32, train: usize, validation: usize) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path()).unwrap();
    let tokens = |count: usize, salt: u32| -> Vec<u32> {
        (0..count as u32).map(|at| (at.wrapping_mul(2_654_435_761) ^ salt) >> 7).map(|token| token % vocab).collect()
    };
    let (train, validation) = (tokens(train, 1), tokens(validation, 2));
    let mut shards = Vec::new();
    for part in [&train, &validation] {
        let mut writer = ShardWriter::new(&cache, vocab);
        for piece in part.chunks(99_991) {
            writer.push(piece).unwrap();
        }
        shards.extend(writer.finish().unwrap().0);
    }
    let manifest = DataManifest {
        vocab,
        tokenizer: Digest([1; 32]),
        train_tokens: train.len() as u64,
        validation_tokens: validation.len() as u64,
        train_bytes: 3,
        validation_bytes: 3,
        order1_micronats: 1,
        shards,
    };
    manifest.check(manifest.shards.len()).unwrap();
    Fixture { folder, train, validation, manifest }
}

impl Fixture {
    fn open(&self) -> Dataset {
        Dataset::open(self.folder.path(), &self.manifest).unwrap()
    }

    fn shard_path(&self, place: usize) -> std::path::PathBuf {
        self.folder.path().join("shards").join(self.manifest.shards[place].to_string())
    }

    /// Overwrites a shard's file, as a disk that lies would.
    fn damage(&self, place: usize, bytes: &[u8]) {
        fs::remove_file(self.shard_path(place)).unwrap();
        fs::write(self.shard_path(place), bytes).unwrap();
    }
}

#[test]
fn sequences_are_windows_of_the_concatenated_tokens() {
    // Two and a half shards, so that some sequences cross their borders.
    let fixture = fixture(300, SHARD_BYTES / 2 * 5 / 2, 70_000);
    let dataset = fixture.open();
    for seq_len in [1, 7, 1000, 65_536] {
        assert_eq!(dataset.train_sequences(seq_len), (fixture.train.len() as u64 - 1) / seq_len as u64);
    }
    proptest!(ProptestConfig::with_cases(64), |(seq_len in 1usize..5000, at in any::<prop::sample::Index>())| {
        // Half of the cases are at a border between shards.
        let count = dataset.train_sequences(seq_len);
        let border = (SHARD_BYTES / 2 / seq_len) as u64;
        for index in [at.index(count as usize) as u64, border, count - 1] {
            let mut out = vec![9];
            dataset.read_train(seq_len, index, &mut out).unwrap();
            let start = index as usize * seq_len;
            prop_assert!(out[0] == 9 && out[1..] == fixture.train[start..=start + seq_len]);
            let per = SHARD_BYTES / 2;
            let spanned = &fixture.manifest.shards[start / per..=(start + seq_len) / per];
            prop_assert_eq!(dataset.shards_for(seq_len, index), spanned);
        }
        let beyond = dataset.read_train(seq_len, count, &mut Vec::new());
        prop_assert!(matches!(beyond, Err(DataError::OutOfRange { .. })), "there is one more");
    });
    // A sequence that covers a whole shard and reaches into both neighbours.
    let (mut out, long) = (Vec::new(), 1 << 20);
    dataset.read_train(long, 2, &mut out).unwrap();
    assert!(out == fixture.train[2 * long..=3 * long]);
}

#[test]
fn four_byte_tokens_are_read_as_written() {
    let fixture = fixture(100_000, 5000, 100);
    let mut out = Vec::new();
    fixture.open().read_train(4999, 0, &mut out).unwrap();
    assert_eq!(out, fixture.train);
}

#[test]
fn held_out_sequences_are_spread_evenly() {
    let fixture = fixture(256, 2000, 70_000);
    let dataset = fixture.open();
    let rows = |max| dataset.validation(100, max).unwrap();
    assert_eq!(dataset.validation_sequences(100), 699);
    assert_eq!(rows(u64::MAX).len(), 699 * 101);
    let some = rows(3);
    for (row, start) in some.chunks(101).zip([0, 23_300, 46_600]) {
        assert_eq!(row, &fixture.validation[start..=start + 100]);
    }
    assert!(rows(0).is_empty());
    assert_eq!(dataset.shards_for_validation(100, 3), fixture.manifest.shards[1..]);
}

#[test]
fn lengths_that_give_no_sequence_are_refused() {
    let fixture = fixture(256, 2000, 100);
    let dataset = fixture.open();
    dataset.require_sequences(99).unwrap();
    for seq_len in [0, 100, 1999, 2000, usize::MAX] {
        let error = dataset.require_sequences(seq_len).unwrap_err();
        assert!(matches!(error, DataError::TooFewSequences { .. }));
        assert!(dataset.validation(seq_len, 9).unwrap().is_empty());
    }
}

#[test]
fn a_node_without_shards_adds_them_one_by_one() {
    let source = fixture(300, SHARD_BYTES / 2 + 10, 50);
    let giver = source.open();
    let folder = tempfile::tempdir().unwrap();
    let manifest = DataManifest::decode(&source.manifest.encode()).unwrap();
    let taker = Dataset::open(folder.path(), &manifest).unwrap();
    assert_eq!(taker.missing(), manifest.shards().collect::<Vec<_>>());
    let mut out = Vec::new();
    let error = taker.read_train(100, 0, &mut out).unwrap_err();
    assert!(matches!(error, DataError::MissingShard { digest } if digest == manifest.shards[0]));
    assert!(out.is_empty());
    assert!(matches!(taker.shard_piece(&manifest.shards[0], 0), Err(DataError::MissingShard { .. })));
    for shard in manifest.shards() {
        let pieces = (0..shard.pieces()).map(|piece| giver.shard_piece(&shard.digest, piece).unwrap());
        let mut bytes: Vec<u8> = pieces.flatten().collect();
        bytes[3] ^= 4;
        assert!(matches!(taker.add_shard(&shard.digest, &bytes), Err(DataError::WrongShard { .. })));
        assert!(matches!(taker.add_shard(&shard.digest, &bytes[1..]), Err(DataError::WrongShard { .. })));
        assert!(matches!(taker.add_shard(&shard.digest, &[]), Err(DataError::WrongShard { .. })));
        bytes[3] ^= 4;
        assert!(matches!(taker.add_shard(&Digest([9; 32]), &bytes), Err(DataError::UnknownShard { .. })));
        taker.add_shard(&shard.digest, &bytes).unwrap();
    }
    assert!(taker.missing().is_empty());
    assert!(taker.verify(&mut |_| ()).unwrap().is_empty());
    // The last sequence of this length lies in both shards; its read checks the first half of the next assertion.
    taker.read_train(4096, 511, &mut out).unwrap();
    assert!(out == source.train[511 * 4096..=512 * 4096]);
    assert!(taker.validation(40, 9).unwrap() == source.validation[..41]);
    // The folder now knows the data set by its digest alone.
    assert!(Dataset::open_cached(folder.path(), &manifest.digest()).unwrap().is_some());
    assert!(Dataset::open_cached(folder.path(), &Digest([9; 32])).unwrap().is_none());
}

#[test]
fn a_damaged_shard_is_set_aside_and_neither_read_nor_served() {
    let fixture = fixture(256, 5000, 100);
    let good = fs::read(fixture.shard_path(0)).unwrap();
    let mut flipped = good.clone();
    flipped[4999] ^= 0x80;
    for bad in [&flipped[..], &good[..10], &[], &[&good[..], b"x"].concat()] {
        fixture.damage(0, bad);
        let dataset = fixture.open();
        let error = dataset.shard_piece(&fixture.manifest.shards[0], 0).unwrap_err();
        assert!(matches!(error, DataError::MissingShard { .. }), "{error}");
        assert_eq!(fs::read(fixture.shard_path(0).with_extension("damaged")).unwrap(), bad);
        let error = dataset.read_train(10, 0, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, DataError::MissingShard { .. }));
        assert_eq!(dataset.missing().len(), 1);
        dataset.add_shard(&fixture.manifest.shards[0], &good).unwrap();
        dataset.read_train(10, 0, &mut Vec::new()).unwrap();
    }
}

#[test]
fn pieces_and_shards_that_do_not_exist_are_refused() {
    let fixture = fixture(256, PIECE_BYTES + 5, 100);
    let dataset = fixture.open();
    let shard = fixture.manifest.shards[0];
    assert_eq!(dataset.shard_piece(&shard, 1).unwrap().len(), 5);
    for piece in [2, u32::MAX] {
        assert!(matches!(dataset.shard_piece(&shard, piece), Err(DataError::OutOfRange { .. })));
    }
    assert!(matches!(dataset.shard_piece(&Digest([9; 32]), 0), Err(DataError::UnknownShard { .. })));
}

#[test]
fn tokens_beyond_the_vocabulary_are_refused_although_their_digest_holds() {
    let mut fixture = fixture(300, 5000, 100);
    let folder = fixture.folder.path().to_owned();
    let mut writer_tokens = fixture.train.clone();
    writer_tokens[77] = 300;
    let cache = Cache::open(&folder).unwrap();
    let mut writer = ShardWriter::new(&cache, 300);
    writer.push(&writer_tokens).unwrap();
    fixture.manifest.shards[0] = writer.finish().unwrap().0[0];
    let mut out = Vec::new();
    let error = fixture.open().read_train(100, 0, &mut out).unwrap_err();
    assert!(matches!(error, DataError::TokenOutOfVocab { token: 300, .. }) && out.is_empty());
}

#[test]
fn more_shards_than_may_be_mapped_are_read() {
    // One shard that the manifest lists many times: each place has a mapping of its own.
    let mut fixture = fixture(256, SHARD_BYTES, 100);
    let (shard, held) = (fixture.manifest.shards[0], fixture.manifest.shards[1]);
    fixture.manifest.shards = vec![shard; MAPS_MAX + 2];
    fixture.manifest.shards.push(held);
    fixture.manifest.train_tokens = ((MAPS_MAX + 2) * SHARD_BYTES) as u64;
    let dataset =
        Dataset::open(fixture.folder.path(), &DataManifest::decode(&fixture.manifest.encode()).unwrap()).unwrap();
    // Checking 4 GiB would take seconds.
    dataset.maps().checked.fill(true);
    assert_eq!(dataset.verify(&mut |_| ()).unwrap(), []);
    let maps = dataset.maps();
    assert_eq!((maps.open.len(), maps.order.len()), (MAPS_MAX, MAPS_MAX));
    assert!(maps.open.contains_key(&(MAPS_MAX + 2)) && !maps.open.contains_key(&0));
}
