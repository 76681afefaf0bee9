//! `[checkpoint]` of the node file: how often this node writes one, and how many stay.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The most checkpoints that a node keeps.
const KEEP_MAX: usize = 10_000;
/// The longest time between two checkpoints: a year.
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// `[checkpoint]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointTable {
    /// Rounds or time between two.
    pub every: EverySetting,
    /// Checkpoints that stay.
    pub keep: usize,
}

/// `every` as it is written: rounds, or a time in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "give a number of rounds, such as 100, or a time in quotes, such as \"30 min\"; 0 = none on the way"
)]
pub enum EverySetting {
    Rounds(u64),
    Time(String),
}

/// The distance between two checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// There are only those at the end, and those that somebody asks for.
    Never,
    Rounds(u64),
    Time(Duration),
}

impl Default for CheckpointTable {
    fn default() -> Self {
        Self { every: EverySetting::Rounds(0), keep: 2 }
    }
}

impl CheckpointTable {
    /// The distance between two checkpoints.
    ///
    /// # Errors
    /// Says in words what is wrong with the table, and what to write.
    pub fn every(&self) -> Result<Every, String> {
        if !(1..=KEEP_MAX).contains(&self.keep) {
            let keep = self.keep;
            return Err(format!("checkpoint.keep is {keep}: give the checkpoints that stay, from 1 to {KEEP_MAX}"));
        }
        match &self.every {
            EverySetting::Rounds(0) => Ok(Every::Never),
            EverySetting::Rounds(rounds) => Ok(Every::Rounds(*rounds)),
            EverySetting::Time(text) => time(text).map(Every::Time).ok_or_else(|| {
                format!(
                    "checkpoint.every is \"{text}\": give a number of rounds, such as 100, or a time of up to a year, \
                     such as \"90 s\", \"30 min\", \"2 h\" or \"1 day\""
                )
            }),
        }
    }
}

/// A time of at least a second: a whole number and a unit.
fn time(text: &str) -> Option<Duration> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let seconds = match unit.trim() {
        "s" | "sec" | "second" | "seconds" => 1,
        "min" | "minute" | "minutes" => 60,
        "h" | "hour" | "hours" => 3600,
        "d" | "day" | "days" => 24 * 3600,
        _ => return None,
    };
    let time = Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?);
    (Duration::from_secs(1)..=TIME_MAX).contains(&time).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(table: &str) -> Result<Every, String> {
        toml::from_str::<CheckpointTable>(table).map_err(|e| e.message().to_owned())?.every()
    }

    #[test]
    fn checkpoints_are_rounds_or_a_time_apart() {
        let seconds = |seconds| Ok(Every::Time(Duration::from_secs(seconds)));
        assert_eq!((every(""), every("every = 0")), (Ok(Every::Never), Ok(Every::Never)));
        assert_eq!(every("every = 40"), Ok(Every::Rounds(40)));
        for (text, expected) in [("90 s", 90), ("30min", 1800), (" 2 hours ", 7200), ("1 d", 86400)] {
            assert_eq!(every(&format!("every = \"{text}\"")), seconds(expected), "{text}");
        }
        for wrong in ["soon", "30", "0 s", "-1 h", "1.5 h", "2 years", "99999999999999999999 s", "367 days", ""] {
            let said = every(&format!("every = \"{wrong}\"")).expect_err("no time");
            assert!(said.contains(&format!("\"{wrong}\"")) && said.contains("30 min"), "{said}");
        }
        assert!(every("every = true").expect_err("neither").contains("such as 100"));
        for keep in ["0", "10001"] {
            let said = every(&format!("keep = {keep}")).expect_err("too few or many");
            assert!(said.contains(&format!("checkpoint.keep is {keep}")), "{said}");
        }
    }
}
