//! Opaque files on their way through the cache, and lists that nobody honest has made.

use super::*;
use crate::manifest::ShardInfo;

fn tree(files: &[(&str, usize)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let content: Vec<u8> = (0..*bytes).map(|n| (n * 31 % 251) as u8).collect();
        fs::write(path, content).unwrap();
    }
    root
}

fn prepared(root: &Path, sources: &[&str], cache: &Path) -> Result<Dataset, DataError> {
    let sources: Vec<_> = sources.iter().map(|source| format!("{}/{source}", root.display())).collect();
    prepare_files(&sources, root, cache, &mut |_| ())
}

fn names(dataset: &Dataset) -> Vec<String> {
    files_of(dataset).unwrap().into_iter().map(|file| file.name).collect()
}

#[test]
fn files_come_out_as_they_went_in_and_travel_shard_by_shard() {
    let large = 5 * (1 << 20) + 7;
    let root =
        tree(&[("train/b.bin", large), ("train/a.bin", 3), ("train/empty", 0), ("labels.csv", 100), (".git/x", 1)]);
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ours = prepared(root.path(), &["train", "labels.csv"], here.path()).unwrap();
    assert_eq!(names(&ours), ["labels.csv", "train/a.bin", "train/b.bin", "train/empty"]);
    // Another node has the manifest alone, and gets what it lacks.
    let theirs = Dataset::open(there.path(), ours.manifest()).unwrap();
    assert!(matches!(lay_out_files(&theirs), Err(DataError::MissingShard { .. })));
    let missing = theirs.missing();
    assert_eq!(missing.len(), 3, "two of files, and one of the list");
    for ShardInfo { digest, bytes, .. } in missing {
        let pieces = bytes.div_ceil(crate::limits::PIECE_BYTES as u64) as u32;
        let whole: Vec<u8> = (0..pieces).flat_map(|piece| ours.shard_piece(&digest, piece).unwrap()).collect();
        theirs.add_shard(&digest, &whole).unwrap();
    }
    let (folder, count) = lay_out_files(&theirs).unwrap();
    assert!(count == 4 && folder.starts_with(there.path()), "{}", folder.display());
    for name in names(&ours) {
        assert_eq!(fs::read(folder.join(&name)).unwrap(), fs::read(root.path().join(&name)).unwrap(), "{name}");
        assert!(fs::metadata(folder.join(&name)).unwrap().permissions().readonly(), "{name}");
    }
    // One that was taken away comes back, and what is whole stays.
    fs::remove_file(folder.join("train/a.bin")).unwrap();
    let (again, _) = lay_out_files(&theirs).unwrap();
    assert_eq!(fs::read(again.join("train/a.bin")).unwrap().len(), 3);
    let before = fs::metadata(again.join("labels.csv")).unwrap().modified().unwrap();
    lay_out_files(&theirs).unwrap();
    assert_eq!(fs::metadata(again.join("labels.csv")).unwrap().modified().unwrap(), before);
}

#[test]
fn equal_files_have_one_digest_wherever_they_lie_and_others_another() {
    let cache = tempfile::tempdir().unwrap();
    let (a, b) = (tree(&[("x/1", 10), ("x/2", 20)]), tree(&[("x/1", 10), ("x/2", 20)]));
    let digest = |root: &Path, sources: &[&str]| prepared(root, sources, cache.path()).unwrap().digest();
    assert_eq!(digest(a.path(), &["x"]), digest(b.path(), &["x/*"]));
    let whole = digest(b.path(), &["x"]);
    assert_ne!(digest(b.path(), &["x/1"]), whole);
    fs::rename(b.path().join("x/2"), b.path().join("x/3")).unwrap();
    assert_ne!(digest(b.path(), &["x"]), whole, "another name");
    // Bytes that move from one file to its neighbour.
    let c = tree(&[("x/1", 30), ("x/2", 0)]);
    assert_ne!(digest(c.path(), &["x"]), whole);
}

#[test]
fn a_second_start_reads_no_file() {
    let (root, cache) = (tree(&[("x/1", 10)]), tempfile::tempdir().unwrap());
    let mut said = Vec::new();
    for _ in 0..2 {
        let sources = [root.path().join("x").display().to_string()];
        prepare_files(&sources, root.path(), cache.path(), &mut |progress| {
            if let PrepareProgress::Done { built } = progress {
                said.push(built.map(|summary| (summary.files, summary.bytes)));
            }
        })
        .unwrap();
    }
    assert_eq!(said, [Some((1, 10)), None]);
}

#[test]
fn names_are_paths_from_the_run_file_or_from_the_source() {
    let root = tree(&[("run/in/a", 1), ("out/deep/b", 2), ("out/c", 3), ("other/out/c", 4)]);
    let cache = tempfile::tempdir().unwrap();
    let base = root.path().join("run");
    let at = |sources: &[&str]| {
        let sources: Vec<_> = sources.iter().map(|source| format!("{}/{source}", root.path().display())).collect();
        prepare_files(&sources, &base, cache.path(), &mut |_| ())
    };
    assert_eq!(names(&at(&["run/in", "out"]).unwrap()), ["in/a", "out/c", "out/deep/b"]);
    assert_eq!(names(&at(&["out/deep/b", "out/*"]).unwrap()), ["b", "out/c", "out/deep/b"]);
    let error = at(&["out/c", "other/out/c"]).unwrap_err();
    assert!(matches!(&error, DataError::TwoFiles { name, .. } if name == "c"), "{error}");
    assert_eq!(names(&at(&["out/c", "out/c"]).unwrap()), ["c"], "named twice");
}

#[test]
fn each_wrong_source_is_named() {
    let root = tree(&[("empty/.hidden", 1), ("zero", 0)]);
    let cache = tempfile::tempdir().unwrap();
    let error = |source: &str| prepared(root.path(), &[source], cache.path()).unwrap_err();
    assert!(matches!(error("gone"), DataError::NotFound { .. }));
    assert!(matches!(error("*.gone"), DataError::NoMatch { .. }));
    assert!(matches!(error("empty"), DataError::NoFile { .. }));
    assert!(matches!(error("zero"), DataError::Empty { files: 1 }), "nothing to learn from");
    let remote = prepare_files(&["s3://a/b".to_owned()], root.path(), cache.path(), &mut |_| ()).unwrap_err();
    assert!(matches!(remote, DataError::Remote { .. }));
}

#[test]
fn lists_of_strangers_lead_nowhere_else() {
    let file = |name: &str| Listed { name: name.to_owned(), bytes: 1 };
    let sound = [file("a"), file("b/c"), file("b/d")];
    assert_eq!(decode(&encode(&sound)).as_deref(), Some(sound.as_slice()));
    for bad in ["", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\0", "a\\b", &"x".repeat(1025)] {
        assert_eq!(decode(&encode(&[file(bad)])), None, "{bad:?}");
    }
    for bad in [&[file("b"), file("a")][..], &[file("a"), file("a")], &[file("a"), file("a/b")]] {
        assert_eq!(decode(&encode(bad)), None, "{bad:?}");
    }
    let good = encode(&sound);
    for length in 0..good.len() {
        assert_eq!(decode(&good[..length]), None, "{length}");
    }
    assert_eq!(decode(&[&good[..], &[0]].concat()), None);
    let mut many = good.clone();
    many[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(decode(&many), None);
}

#[test]
fn a_text_is_no_folder_of_files() {
    let cache = tempfile::tempdir().unwrap();
    let empty = Dataset::empty(cache.path()).unwrap();
    assert!(matches!(lay_out_files(&empty), Err(DataError::NoFiles { .. })));
    // A list that claims more bytes than there are.
    let ours = prepared(tree(&[("x", 9)]).path(), &["x"], cache.path()).unwrap();
    let mut manifest = ours.manifest().clone();
    manifest.train_tokens += 1;
    manifest.train_bytes += 1;
    let other = Dataset::open(cache.path(), &manifest).unwrap();
    let error = lay_out_files(&other).unwrap_err();
    assert!(matches!(error, DataError::NoFiles { .. }), "{error}");
}
