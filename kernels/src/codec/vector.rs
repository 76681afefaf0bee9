//! Vector arithmetic of the reduction. A product and a sum are rounded one after the other, never fused, so that every
//! machine gets the same bits.

/// `dst += src * w`, element by element.
///
/// # Panics
/// If the lengths differ: both are the caller's own.
pub fn add_scaled(dst: &mut [f32], src: &[f32], w: f32) {
    assert_eq!(dst.len(), src.len(), "add_scaled: vectors of different lengths");
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for (d, s) in dst.iter_mut().zip(src) {
                *d += *s * w;
            }
        },
    );
}

/// `dst *= w`, element by element.
pub fn scale(dst: &mut [f32], w: f32) {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for d in dst.iter_mut() {
                *d *= w;
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_rounded_before_they_are_added() {
        // With a fused multiply-add the sum would be the rounding error of the product, 2^-46.
        let x = 1.0 + f32::EPSILON;
        let product = x * x;
        let mut dst = vec![-product; 100];
        add_scaled(&mut dst, &vec![x; 100], x);
        assert!(dst.iter().all(|d| *d == 0.0));
    }

    #[test]
    fn scales_and_adds() {
        let src: Vec<f32> = (0..1001).map(|i| i as f32).collect();
        let mut dst = vec![1.0; 1001];
        add_scaled(&mut dst, &src, 0.5);
        scale(&mut dst, 2.0);
        assert!(dst.iter().enumerate().all(|(i, d)| *d == i as f32 + 2.0));
    }
}
