//! Numbers of 16 bits, and their way from and to f32.
//!
//! A narrower number is the nearest one, and of two that are as near the even one, as PyTorch has it.

/// A bf16 is the upper half of an f32.
pub(crate) fn of_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Sign, five bits of exponent with bias 15, ten of fraction. An f32 has eight with bias 127, and 23.
pub(crate) fn of_f16(bits: u16) -> f32 {
    let (exponent, fraction) = (u32::from(bits >> 10) & 0x1f, u32::from(bits) & 0x3ff);
    let magnitude = match exponent {
        // A subnormal counts units of 2^-24.
        0 => f32::from(bits & 0x3ff) / 16_777_216.0,
        0x1f => f32::from_bits(0x7f80_0000 | (fraction << 13)),
        _ => f32::from_bits(((exponent + 112) << 23) | (fraction << 13)),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

pub(crate) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    // The lowest bit that stays makes ties even. A carry out of the fraction belongs into the exponent.
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

pub(crate) fn to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let narrow = match magnitude {
        0x7f80_0001.. => 0x7e00,
        // From 65,520 on infinity is as near as the largest number, and even.
        0x477f_f000.. => 0x7c00,
        // From 2^-14 on: the exponent's bias changes, and 13 bits go.
        0x3880_0000.. => (magnitude - 0x3800_0000 + 0xfff + (magnitude >> 13 & 1)) >> 13,
        // Between a half and one an f32 counts units of 2^-24, as a subnormal does.
        _ => (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits(),
    };
    (bits >> 16) as u16 & 0x8000 | narrow as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_has_its_value() {
        let known = [
            (0x0001, 1.0 / 16_777_216.0),
            (0x03ff, 1023.0 / 16_777_216.0),
            (0x0400, 1.0 / 16_384.0),
            (0x3555, 1365.0 / 4096.0),
            (0x7bff, 65_504.0),
            (0xc000, -2.0),
        ];
        for (bits, value) in known {
            assert_eq!(of_f16(bits), value, "{bits:#06x}");
        }
        assert_eq!(of_f16(0x8000).to_bits(), (-0.0f32).to_bits());
        assert!(of_f16(0x7c00) == f32::INFINITY && of_f16(0xfc00) == f32::NEG_INFINITY && of_f16(0x7e00).is_nan());
        for bits in 0..0x7c00u16 {
            assert!(of_f16(bits) < of_f16(bits + 1), "{bits:#06x}");
            assert_eq!(of_f16(bits | 0x8000).to_bits(), (-of_f16(bits)).to_bits(), "{bits:#06x}");
        }
        assert!((0..=u16::MAX).all(|bits| (of_bf16(bits).to_bits() >> 16) as u16 == bits));
    }

    /// Between two neighbours the nearer one is taken, and halfway the even one.
    fn is_nearest(of: fn(u16) -> f32, to: fn(f32) -> u16, last: u16) {
        for bits in 0..last {
            let (low, high) = (of(bits), of(bits + 1));
            let half = ((f64::from(low) + f64::from(high)) / 2.0) as f32;
            let even = if bits.is_multiple_of(2) { bits } else { bits + 1 };
            let (below, above) = (f32::from_bits(half.to_bits() - 1), f32::from_bits(half.to_bits() + 1));
            assert_eq!((to(low), to(below), to(half), to(above)), (bits, bits, even, bits + 1), "{bits:#06x}");
            assert_eq!(to(-half), even | 0x8000, "{bits:#06x}");
        }
    }

    #[test]
    fn a_number_becomes_the_nearest_half() {
        is_nearest(of_f16, to_f16, 0x7bff);
        is_nearest(of_bf16, to_bf16, 0x7f7f);
        assert_eq!((to_f16(65_519.9), to_f16(65_520.0), to_f16(f32::MAX)), (0x7bff, 0x7c00, 0x7c00));
        assert_eq!((to_bf16(f32::MAX), to_bf16(f32::INFINITY)), (0x7f80, 0x7f80));
        assert_eq!((to_f16(f32::NEG_INFINITY), to_f16(-0.0)), (0xfc00, 0x8000));
        assert!(of_f16(to_f16(f32::NAN)).is_nan() && of_bf16(to_bf16(f32::from_bits(0x7f80_0001))).is_nan());
    }
}
