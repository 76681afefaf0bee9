//! The inner learning rate over a run: linear warm-up, then half a cosine down to a share of the peak.

/// A learning rate for each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The rate at the end of the warm-up.
    pub peak: f64,
    /// The cosine ends at `peak * final_share`.
    pub final_share: f64,
    /// Steps of warm-up.
    pub warmup: u64,
    /// Steps of the whole run; 0 = unknown: the rate stays at its peak.
    pub total: u64,
}

impl Schedule {
    /// The rate of step `step`, counted from 0. Steps beyond the total keep the final rate.
    pub fn lr(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        if self.total == 0 {
            return self.peak;
        }
        let length = self.total.saturating_sub(self.warmup).max(1);
        let progress = ((step - self.warmup) as f64 / length as f64).min(1.0);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
        self.peak * (self.final_share + (1.0 - self.final_share) * cosine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_then_falls() {
        let schedule = Schedule { peak: 1.0, final_share: 0.1, warmup: 10, total: 110 };
        assert_eq!(schedule.lr(0), 0.1);
        assert_eq!(schedule.lr(9), 1.0);
        assert_eq!(schedule.lr(10), 1.0);
        assert!((schedule.lr(60) - 0.55).abs() < 1e-12);
        assert!((schedule.lr(110) - 0.1).abs() < 1e-12);
        assert_eq!(schedule.lr(u64::MAX), schedule.lr(110));
        assert!((11..=110).all(|s| schedule.lr(s) < schedule.lr(s - 1)));
    }

    #[test]
    fn odd_lengths() {
        let endless = Schedule { peak: 2.0, final_share: 0.1, warmup: 0, total: 0 };
        assert_eq!([endless.lr(0), endless.lr(1 << 40)], [2.0, 2.0]);
        let short = Schedule { peak: 2.0, final_share: 0.5, warmup: 100, total: 10 };
        assert_eq!(short.lr(4), 0.1);
        assert!(short.lr(1000) == 1.0);
    }
}
