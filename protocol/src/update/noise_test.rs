//! The noise that averaging adds to the mean: the codecs' noise, once at the source and once or at every hop on the way
//! (with independent Gaussian contributions). These tests show that the arithmetic is right. Bit-for-bit tests only
//! show that two programs agree.

use super::*;

const ELEMENTS: usize = 4 * CHUNK_ELEMENTS;

/// Independent standard normal values.
fn gaussian(seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        // SplitMix64 (Steele, Lea, Flood 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let pair = |_| {
        let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), std::f64::consts::TAU * uniform());
        [(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]
    };
    (0..ELEMENTS / 2).flat_map(pair).collect()
}

/// Power of the error of the mean relative to that of the mean: by owners, and by a ring.
fn noise(codec: Codec, members: usize) -> [f64; 2] {
    let contributions: Vec<Vec<f32>> = (0..members).map(|n| gaussian(1 + n as u64)).collect();
    let views: Vec<&[f32]> = contributions.iter().map(Vec::as_slice).collect();
    let mean: Vec<f64> =
        (0..ELEMENTS).map(|e| views.iter().map(|view| f64::from(view[e])).sum::<f64>() / members as f64).collect();
    let power: f64 = mean.iter().map(|x| x * x).sum();
    let weights = vec![weight(1, members as u64); members];
    let weighted: Vec<Vec<f32>> = contributions
        .iter()
        .map(|delta| {
            let mut delta = delta.clone();
            apply_weight(weights[0], &mut delta);
            delta
        })
        .collect();
    let weighted: Vec<&[f32]> = weighted.iter().map(Vec::as_slice).collect();
    [owners::reduce(codec, &weights, &views).unwrap(), reduce(codec, &weighted).unwrap()].map(|update| {
        let mut decoded = vec![0.0; ELEMENTS];
        decode(codec, &update, &mut decoded).unwrap();
        let error: f64 = decoded.iter().zip(&mean).map(|(x, mean)| (f64::from(*x) - mean).powi(2)).sum();
        error / power
    })
}

#[test]
fn noise_of_the_mean_is_as_published() {
    // Members, owners, ring.
    let int8 = [(4, 1.0e-4, 1.2e-4), (8, 1.0e-4, 2.2e-4), (16, 1.0e-4, 4.1e-4)];
    let int4 = [(4, 2.3e-2, 2.9e-2), (8, 2.3e-2, 5.3e-2), (16, 2.3e-2, 10.5e-2)];
    for (codec, table) in [(Codec::Int8, &int8[..]), (Codec::Int4, &int4[..])] {
        for (members, owners, ring) in table {
            let found = noise(codec, *members);
            for (found, published) in found.iter().zip([owners, ring]) {
                let off = (found / published - 1.0).abs();
                assert!(off < 0.2, "{codec}, {members} members: {found:e}, not {published:e}");
            }
        }
    }
}

/// A ring quantises partial sums of 1 to M contributions, each with noise of its own size: (M + 1) / 2 times a
/// quantiser's in all. Owners add only two of them.
#[test]
fn a_ring_is_noisier_by_its_length() {
    for members in [2, 3, 5, 8, 12, 16] {
        let [owners, ring] = noise(Codec::Int8, members);
        let law = (members as f64 + 1.0) / 4.0;
        assert!((ring / owners / law - 1.0).abs() < 0.2, "{members}: {ring:e} and {owners:e}");
    }
}
