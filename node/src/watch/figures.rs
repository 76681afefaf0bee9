//! Figures as a person reads them.

/// Bytes as a person reads them.
pub fn bytes(n: u64) -> String {
    let (mut value, mut unit) = (n as f64, 0);
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Seconds that were measured.
pub fn seconds(s: f64) -> String {
    let s = s.max(0.0).round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        _ => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
    }
}

/// Seconds that were estimated, with no more digits than an estimate has.
pub fn about(s: f64) -> String {
    const MINUTE: f64 = 60.0;
    const HOUR: f64 = 60.0 * MINUTE;
    let s = s.max(0.0);
    if s < 10.0 {
        "a few seconds".into()
    } else if s < 95.0 {
        format!("about {:.0} s", (s / 10.0).round() * 10.0)
    } else if s < 100.0 * MINUTE {
        format!("about {:.0} min", s / MINUTE)
    } else if s < 48.0 * HOUR {
        let tens = (s / (10.0 * MINUTE)).round() as u64;
        match tens % 6 {
            0 => format!("about {} h", tens / 6),
            rest => format!("about {} h {} min", tens / 6, rest * 10),
        }
    } else if s < 1e9 {
        format!("about {:.0} days", s / (24.0 * HOUR))
    } else {
        "more than thirty years".into()
    }
}

/// Tokens, or tokens a second, in three digits or so.
pub fn tokens(n: f64) -> String {
    let n = n.max(0.0);
    if n < 1e3 {
        format!("{n:.0}")
    } else if n < 1e6 {
        format!("{:.1}k", n / 1e3)
    } else if n < 1e9 {
        format!("{:.1}M", n / 1e6)
    } else {
        format!("{:.1}G", n / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(bytes(17), "17 B");
        assert_eq!(bytes(3 << 20), "3.0 MiB");
        assert_eq!(seconds(59.4), "59 s");
        assert_eq!(seconds(61.0), "1 min 01 s");
        assert_eq!(seconds(7260.0), "2 h 01 min");
        assert_eq!((tokens(17.4), tokens(12_345.0), tokens(3.2e7)), ("17".into(), "12.3k".into(), "32.0M".into()));
    }

    #[test]
    fn an_estimate_has_few_digits() {
        let cases = [
            (f64::NAN, "a few seconds"),
            (-1.0, "a few seconds"),
            (9.9, "a few seconds"),
            (44.0, "about 40 s"),
            (94.0, "about 90 s"),
            (96.0, "about 2 min"),
            (36.2 * 60.0, "about 36 min"),
            (100.0 * 60.0, "about 1 h 40 min"),
            (3.0 * 3600.0 + 100.0, "about 3 h"),
            (14_040.0, "about 3 h 50 min"),
            (50.0 * 3600.0, "about 2 days"),
            (f64::INFINITY, "more than thirty years"),
        ];
        for (seconds, words) in cases {
            assert_eq!(about(seconds), words, "{seconds}");
        }
    }
}
