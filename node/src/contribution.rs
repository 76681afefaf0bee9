//! Digests of contributions, with their norms, and of updates: computed on all cores, piece by piece.

use rayon::prelude::*;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::outer::adamw;
use starling_protocol::{Digest, update};

/// Computes `trained <- theta - trained`, its digest and its L2 norm; none unless all values are finite.
pub fn subtract_from(theta: &[f32], trained: &mut [f32]) -> Option<(Digest, f64)> {
    let pieces = update::contribution_pieces(trained.len());
    let (mut parts, mut rest) = (Vec::new(), trained);
    for range in pieces.float_ranges() {
        let (part, after) = std::mem::take(&mut rest).split_at_mut(range.len());
        parts.push((part, &theta[range]));
        rest = after;
    }
    let made = parts.into_par_iter().enumerate().map(|(number, (trained, theta))| {
        for (trained, theta) in trained.iter_mut().zip(theta) {
            *trained = theta - *trained;
        }
        (squares(trained), pieces.hash_floats(number, trained))
    });
    let (squares, hashed): (Vec<f64>, Vec<_>) = made.unzip();
    // Squares of f32 do not overflow a sum of f64, so it is finite exactly when every element is.
    let squares: f64 = squares.iter().sum();
    squares.is_finite().then(|| (pieces.finish(&hashed), squares.sqrt()))
}

/// Digest and L2 norm.
pub fn measure(vector: &[f32]) -> (Digest, f64) {
    let pieces = update::contribution_pieces(vector.len());
    let ranges: Vec<_> = pieces.float_ranges().collect();
    let made = ranges.into_par_iter().enumerate().map(|(number, range)| {
        let part = &vector[range];
        (squares(part), pieces.hash_floats(number, part))
    });
    let (squares, hashed): (Vec<f64>, Vec<_>) = made.unzip();
    (pieces.finish(&hashed), squares.iter().sum::<f64>().sqrt())
}

/// [`update::digest`] of an update.
pub fn update_digest(update: &[u8]) -> Digest {
    let pieces = update::pieces(update.len());
    let ranges: Vec<_> = pieces.ranges().collect();
    let hashed: Vec<_> =
        ranges.into_par_iter().enumerate().map(|(number, range)| pieces.hash(number, &update[range])).collect();
    pieces.finish(&hashed)
}

fn squares(values: &[f32]) -> f64 {
    values.chunks(CHUNK_ELEMENTS).map(adamw::squares).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contribution_has_the_digest_and_norm_of_its_elements() {
        let theta: Vec<f32> = (0..600_001).map(|i| (i % 1000) as f32).collect();
        let mut trained: Vec<f32> = theta.iter().map(|x| 0.5 * x).collect();
        let (digest, norm) = subtract_from(&theta, &mut trained).unwrap();
        assert!(trained.iter().zip(&theta).all(|(delta, theta)| *delta == 0.5 * theta));
        assert_eq!(digest, update::contribution_digest(&trained));
        assert_eq!(measure(&trained), (digest, norm));
        let exact: f64 = trained.iter().map(|x| f64::from(*x).powi(2)).sum();
        assert!((norm * norm / exact - 1.0).abs() < 1e-12);
        let bytes: Vec<u8> = trained.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(update_digest(&bytes), update::digest(&bytes));
        trained[600_000] = f32::NAN;
        assert!(subtract_from(&theta, &mut trained).is_none());
    }
}
