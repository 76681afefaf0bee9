use super::*;
use proptest::prelude::*;

/// A state of so many vectors.
fn state(elements: usize, vectors: usize) -> State {
    let theta = (0..elements).map(|i| (i as f32).mul_add(0.25, -7.0)).collect();
    let moment = |n: usize| (0..elements).map(|i| i as f32 * -0.5 / n as f32).collect();
    State { theta, moments: (1..vectors).map(moment).collect() }
}

fn manifest(elements: usize) -> Manifest {
    state(elements, 2).manifest(Digest([3; 32])).unwrap()
}

fn manifest_of_three(elements: usize) -> Manifest {
    state(elements, 3).manifest(Digest([3; 32])).unwrap()
}

#[test]
fn golden_root_and_manifest() {
    let small = manifest(3);
    assert_eq!(small.chunks.len(), 2);
    assert_eq!(root(&small).to_string(), GOLDEN_ROOT_3);
    assert_eq!(root(&manifest(2 * CHUNK_FLOATS + 5)).to_string(), GOLDEN_ROOT_LARGE);
    assert_eq!(data_encoding::HEXLOWER.encode(&small.encode()), GOLDEN_MANIFEST_3);
    assert_eq!(root(&manifest_of_three(3)).to_string(), GOLDEN_ROOT_OF_THREE);
    assert_eq!(root(&manifest_of_three(2 * CHUNK_FLOATS + 5)).to_string(), GOLDEN_ROOT_LARGE_OF_THREE);
}

const GOLDEN_ROOT_3: &str = "138f5cfcabed1f79b5f1b02639782b848c1727f711f88931f80fb41d2b7b1604";
const GOLDEN_ROOT_LARGE: &str = "3207513d7bd5866073fa9582641fadad0cbb81df49cf621a0d1f6aebd28ca1e9";
const GOLDEN_ROOT_OF_THREE: &str = "73bf68382656f1ea949761c6fbf283ff6bd4ac5491f8606323f3e9df2774696b";
const GOLDEN_ROOT_LARGE_OF_THREE: &str = "432487091842352eab3a3baf072af678e7530425cc63f7c1bac379e2d6bdbfb0";
const GOLDEN_MANIFEST_3: &str = concat!(
    "02000303030303030303030303030303030303030303030303030303030303030303030000000000000002cb9688691b6ba27288c341",
    "1eec5f68566abeadc1dc789513f664c65abff4dec8adabc7fb698ffc03ec53feb79b1c83a585477ccb7154107849fcedcb064fac49"
);

#[test]
fn chunks_cover_all_vectors_and_rebuild_them() {
    for (elements, vectors) in
        [1, CHUNK_FLOATS - 1, CHUNK_FLOATS, CHUNK_FLOATS + 1].into_iter().flat_map(|n| [(n, 2), (n, 3)])
    {
        let state = state(elements, vectors);
        let manifest = state.manifest(Digest::default()).unwrap();
        assert_eq!(usize::from(manifest.vectors), vectors);
        let mut rebuilt: Vec<Vec<f32>> = vec![Vec::new(); vectors];
        for (index, digest) in manifest.chunks.iter().enumerate() {
            let bytes = state.chunk_bytes(index).unwrap();
            assert_eq!(Some(bytes.len()), manifest.chunk_len(index));
            assert_eq!(chunk_digest(&bytes), *digest);
            let (vector, range) = chunk_span(elements as u64, manifest.vectors, index).unwrap();
            assert_eq!(range.start, rebuilt[vector].len());
            rebuilt[vector].extend(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        }
        assert_eq!(rebuilt.iter().map(Vec::as_slice).collect::<Vec<_>>(), state.vectors().collect::<Vec<_>>());
        assert_eq!(manifest.chunk_len(manifest.chunks.len()), None);
        assert_eq!(state.chunk_floats(manifest.chunks.len()), None);
    }
    assert_eq!(chunk_span(0, 3, 0), None);
}

#[test]
fn everything_enters_the_root() {
    let base = manifest(CHUNK_FLOATS + 1);
    let other = |change: &dyn Fn(&mut Manifest)| {
        let mut changed = base.clone();
        change(&mut changed);
        root(&changed)
    };
    let roots = [
        root(&base),
        other(&|m| m.schema = Digest([4; 32])),
        other(&|m| m.elements += 1),
        other(&|m| m.vectors += 1),
        other(&|m| m.chunks[0].0[0] ^= 1),
        other(&|m| m.chunks[3].0[31] ^= 1),
        other(&|m| m.chunks.swap(1, 2)),
    ];
    for (i, a) in roots.iter().enumerate() {
        assert!(roots[..i].iter().all(|b| a != b), "change {i} shows");
    }
}

#[test]
fn wrong_chunks_are_refused() {
    let manifest = manifest(CHUNK_FLOATS + 1);
    let mut bytes = state(CHUNK_FLOATS + 1, 2).chunk_bytes(1).unwrap();
    assert_eq!(manifest.check_chunk(1, &bytes), Ok(()));
    assert_eq!(manifest.check_chunk(3, &bytes), Err(StateError::Digest { index: 3 }));
    assert!(matches!(manifest.check_chunk(0, &bytes), Err(StateError::Length { bytes: 4, .. })));
    assert_eq!(manifest.check_chunk(4, &bytes), Err(StateError::NoSuchChunk { index: 4, count: 4 }));
    bytes[0] ^= 1;
    assert_eq!(manifest.check_chunk(1, &bytes), Err(StateError::Digest { index: 1 }));
}

#[test]
fn hostile_manifests_are_refused_by_their_count() {
    let good = manifest(5).encode();
    assert_eq!(Manifest::decode(&good), Ok(manifest(5)));
    for cut in 0..good.len() {
        assert!(Manifest::decode(&good[..cut]).is_err());
    }
    let with_elements = |elements: u64| {
        let mut bytes = good.clone();
        bytes[34..42].copy_from_slice(&elements.to_le_bytes());
        Manifest::decode(&bytes)
    };
    for elements in [0, PARAMETERS_MAX + 1, 1 << 40, u64::MAX] {
        assert_eq!(with_elements(elements), Err(StateError::Elements { elements }));
    }
    assert!(matches!(with_elements(PARAMETERS_MAX), Err(StateError::Length { .. })));
    assert!(Manifest::decode(&[good.as_slice(), &[0]].concat()).is_err());
    for vectors in [0, 1, 4, 255] {
        let mut bytes = good.clone();
        bytes[42] = vectors;
        assert_eq!(Manifest::decode(&bytes), Err(StateError::Vectors { vectors }));
    }
    let mut three = good.clone();
    three[42] = 3;
    assert!(matches!(Manifest::decode(&three), Err(StateError::Length { .. })), "its chunks are those of two");
    let refused = |theta: &[f32], moments: &[&[f32]]| {
        let moments = moments.iter().map(|moment| moment.to_vec()).collect();
        State { theta: theta.to_vec(), moments }.manifest(Digest::default()).unwrap_err()
    };
    assert_eq!(refused(&[1.0], &[&[]]), StateError::Lengths { theta: 1, other: 0 });
    assert_eq!(refused(&[1.0], &[&[1.0], &[1.0, 2.0]]), StateError::Lengths { theta: 1, other: 2 });
    assert_eq!(refused(&[], &[&[]]), StateError::Elements { elements: 0 });
    assert_eq!(refused(&[1.0], &[]), StateError::Vectors { vectors: 1 });
    assert_eq!(refused(&[1.0], &[&[1.0][..]; 3]), StateError::Vectors { vectors: 4 });
    assert_eq!(refused(&[1.0], &[&[1.0][..]; 300]), StateError::Vectors { vectors: 255 });
}

proptest! {
    #[test]
    fn any_bytes_decode_to_themselves_or_not_at_all(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(manifest) = Manifest::decode(&bytes) {
            prop_assert_eq!(manifest.encode(), bytes);
        }
    }
}
