use super::*;
use proptest::prelude::*;

fn state(elements: usize) -> (Vec<f32>, Vec<f32>) {
    let theta = (0..elements).map(|i| (i as f32).mul_add(0.25, -7.0)).collect();
    let momentum = (0..elements).map(|i| i as f32 * -0.5).collect();
    (theta, momentum)
}

fn manifest(elements: usize) -> Manifest {
    let (theta, momentum) = state(elements);
    manifest_of(Digest([3; 32]), &theta, &momentum).unwrap()
}

#[test]
fn golden_root_and_manifest() {
    let small = manifest(3);
    assert_eq!(small.chunks.len(), 2);
    assert_eq!(root(&small).to_string(), GOLDEN_ROOT_3);
    assert_eq!(root(&manifest(2 * CHUNK_FLOATS + 5)).to_string(), GOLDEN_ROOT_LARGE);
    assert_eq!(data_encoding::HEXLOWER.encode(&small.encode()), GOLDEN_MANIFEST_3);
}

const GOLDEN_ROOT_3: &str = "f725a2fe8bcf56e869e9c6a0b1270ee13a099797e08d85de1e3061cc29a8759c";
const GOLDEN_ROOT_LARGE: &str = "8b3d04344788fe801a43d068f0ccb80613f178dd5f7590546fe61d1219e0c8d9";
const GOLDEN_MANIFEST_3: &str = concat!(
    "010003030303030303030303030303030303030303030303030303030303030303030300000000000000cb9688691b6ba27288c3",
    "411eec5f68566abeadc1dc789513f664c65abff4dec8adabc7fb698ffc03ec53feb79b1c83a585477ccb7154107849fcedcb064fac49"
);

#[test]
fn chunks_cover_both_vectors_and_rebuild_them() {
    for elements in [1, CHUNK_FLOATS - 1, CHUNK_FLOATS, CHUNK_FLOATS + 1] {
        let (theta, momentum) = state(elements);
        let manifest = manifest_of(Digest::default(), &theta, &momentum).unwrap();
        let (mut a, mut b) = (vec![0.0; elements], vec![0.0; elements]);
        for index in (0..manifest.chunks.len()).rev() {
            let bytes = chunk_bytes(&theta, &momentum, index).unwrap();
            assert_eq!(Some(bytes.len()), manifest.chunk_len(index));
            assert_eq!(chunk_digest(&bytes), manifest.chunks[index]);
            manifest.place_chunk(index, &bytes, &mut a, &mut b).unwrap();
        }
        assert_eq!((a, b), (theta, momentum));
        assert_eq!(manifest.chunk_len(manifest.chunks.len()), None);
    }
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
    let (theta, momentum) = state(CHUNK_FLOATS + 1);
    let mut bytes = chunk_bytes(&theta, &momentum, 1).unwrap();
    assert_eq!(manifest.check_chunk(1, &bytes), Ok(()));
    assert_eq!(manifest.check_chunk(3, &bytes), Err(StateError::Digest { index: 3 }));
    assert!(matches!(manifest.check_chunk(0, &bytes), Err(StateError::Length { bytes: 4, .. })));
    assert_eq!(manifest.check_chunk(4, &bytes), Err(StateError::NoSuchChunk { index: 4, count: 4 }));
    bytes[0] ^= 1;
    assert_eq!(manifest.check_chunk(1, &bytes), Err(StateError::Digest { index: 1 }));
    let (mut short, mut m) = (vec![0.0; 3], vec![0.0; 3]);
    bytes[0] ^= 1;
    assert!(matches!(manifest.place_chunk(1, &bytes, &mut short, &mut m), Err(StateError::Halves { .. })));
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
    assert!(matches!(manifest_of(Digest::default(), &[1.0], &[]), Err(StateError::Halves { .. })));
    assert!(matches!(manifest_of(Digest::default(), &[], &[]), Err(StateError::Elements { elements: 0 })));
}

proptest! {
    #[test]
    fn any_bytes_decode_to_themselves_or_not_at_all(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(manifest) = Manifest::decode(&bytes) {
            prop_assert_eq!(manifest.encode(), bytes);
        }
    }
}
