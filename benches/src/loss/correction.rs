//! The outer step for rounds of different lengths, so that momentum decays and adds up by training, not by rounds.

/// Steps parameters and momentum by the mean of a round that is `length` reference rounds long:
///
/// ```text
/// mu_p  = mu ^ length
/// m     <- mu_p * m + (1 - mu_p) / (1 - mu) * d / length
/// theta <- theta - lr * (d + length * mu * m)
/// ```
///
/// With a length of one it is the outer step of the protocol, to the bit. Returns whether all results are finite.
pub fn step(theta: &mut [f32], momentum: &mut [f32], mean: &[f32], [lr, mu]: [f32; 2], length: f64) -> bool {
    let exact = f64::from(mu);
    let kept = exact.powf(length);
    let (kept, taken) = (kept as f32, ((1.0 - kept) / (1.0 - exact) / length) as f32);
    let ahead = (length * exact) as f32;
    let mut finite = true;
    for ((theta, m), d) in theta.iter_mut().zip(momentum).zip(mean) {
        *m = kept * *m + taken * *d;
        *theta -= lr * (*d + ahead * *m);
        finite &= theta.is_finite() & m.is_finite();
    }
    finite
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::outer::nesterov;

    #[test]
    fn a_round_of_the_reference_length_is_stepped_as_ever() {
        let d: Vec<f32> = (0..200).map(|n| n as f32 * 1e-3 - 0.1).collect();
        let (mut ours, mut theirs) = ((d.clone(), d.clone()), (d.clone(), d.clone()));
        for _ in 0..3 {
            assert!(step(&mut ours.0, &mut ours.1, &d, [0.7, 0.6], 1.0));
            assert!(nesterov(&mut theirs.0, &mut theirs.1, &d, 0.7, 0.6));
        }
        assert_eq!(ours, theirs);
    }

    #[test]
    fn under_a_constant_pull_rounds_of_all_lengths_go_as_far() {
        // So many rounds that momentum has settled, each pulled by its length.
        let moved = |length: f64| {
            let (mut theta, mut m) = ([0.0f32], [0.0f32]);
            let rounds = (400.0 / length) as usize;
            (0..rounds).for_each(|_| assert!(step(&mut theta, &mut m, &[length as f32 * 1e-2], [0.7, 0.6], length)));
            -theta[0]
        };
        let whole = moved(1.0);
        // 400 pulls of 0.01, at a rate of 0.7 and a gain of 1 / (1 - 0.6).
        assert!((whole / 7.0 - 1.0).abs() < 0.02, "{whole}");
        for length in [0.25, 0.5, 2.0, 4.0] {
            assert!((moved(length) / whole - 1.0).abs() < 0.02, "{length}: {}", moved(length));
        }
    }

    #[test]
    fn a_state_that_is_lost_is_told() {
        assert!(!step(&mut [1.0], &mut [f32::MAX], &[f32::MAX], [0.7, 0.9], 1.0));
    }
}
