//! Error feedback (Seide et al. 2014; Karimireddy et al., arXiv 1901.09847): the part of a vector that its payload did
//! not carry is added to the next vector. With residual e, decay beta and vector x a payload is made of [`offered`],
//! `a = beta e + x`. Once the payload is known to count, [`settle`] leaves `e = a - decode(payload)`. Until then the
//! residual is as it was, and the same bytes can be offered again. Products and sums are rounded one after the other,
//! never fused.

/// `sum = beta * residual + src`, element by element.
///
/// # Panics
/// If the lengths differ: all are the caller's own.
pub fn offered(src: &[f32], residual: &[f32], beta: f32, sum: &mut [f32]) {
    assert_eq!((src.len(), residual.len()), (sum.len(), sum.len()), "offered: vectors of different lengths");
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for ((sum, x), e) in sum.iter_mut().zip(src).zip(residual) {
                *sum = beta * *e + *x;
            }
        },
    );
}

/// `residual = beta * residual + src - said`, where `said` is what was decoded from the payload.
///
/// # Panics
/// If the lengths differ: all are the caller's own.
pub fn settle(src: &[f32], residual: &mut [f32], beta: f32, said: &[f32]) {
    assert_eq!((src.len(), said.len()), (residual.len(), residual.len()), "settle: vectors of different lengths");
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for ((e, x), said) in residual.iter_mut().zip(src).zip(said) {
                *e = (beta * *e + *x) - *said;
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::super::{TopkScratch, int4_decode, int4_encode, topk_decode, topk_encode};
    use super::*;

    /// Vectors of a few large and many small values, another one each round.
    fn vector(round: usize, elements: usize) -> Vec<f32> {
        (0..elements).map(|i| ((i * 7919 + round * 104_729) % 1000) as f32 / 1000.0 - 0.4).collect()
    }

    /// Checks that over many rounds the sum of the decoded payloads is the sum of the vectors, but for one residual.
    fn adds_up(mut say: impl FnMut(&[f32], &mut [f32])) {
        let n = 5000;
        let (mut residual, mut offered_in_all, mut said_in_all) = (vec![0.0; n], vec![0.0f64; n], vec![0.0f64; n]);
        let (mut sum, mut said) = (vec![0.0; n], vec![0.0; n]);
        for round in 0..40 {
            let x = vector(round, n);
            offered(&x, &residual, 1.0, &mut sum);
            say(&sum, &mut said);
            settle(&x, &mut residual, 1.0, &said);
            for i in 0..n {
                offered_in_all[i] += f64::from(x[i]);
                said_in_all[i] += f64::from(said[i]);
            }
        }
        for i in 0..n {
            let missing = offered_in_all[i] - said_in_all[i];
            assert!((missing - f64::from(residual[i])).abs() < 1e-3, "element {i}: {missing} is lost");
        }
    }

    #[test]
    fn int4_loses_nothing() {
        adds_up(|sum, said| {
            let mut bytes = vec![0; 2 * sum.len().div_ceil(64) + sum.len().div_ceil(2)];
            int4_encode(sum, &mut bytes).unwrap();
            int4_decode(&bytes, said).unwrap();
        });
    }

    #[test]
    fn topk_loses_nothing() {
        let (mut scratch, mut bytes) = (TopkScratch::default(), Vec::new());
        adds_up(|sum, said| {
            topk_encode(64, sum, &mut scratch, &mut bytes).unwrap();
            topk_decode(64, &bytes, said).unwrap();
        });
    }

    #[test]
    fn an_old_residual_fades() {
        let (mut residual, x) = (vec![1.0f32; 3], [0.5f32; 3]);
        let mut sum = [0.0; 3];
        offered(&x, &residual, 0.5, &mut sum);
        assert_eq!(sum, [1.0; 3]);
        settle(&x, &mut residual, 0.5, &[0.75; 3]);
        assert_eq!(residual, [0.25; 3]);
    }
}
