//! Why a round has as many inner steps as it has, and its codec: the figures of the last record, and what other choices
//! would give.

use super::names::short;
use serde::{Deserialize, Serialize};
use starling_protocol::control::{self, Figures, GAIN_MIN, Room};
use starling_protocol::record::Record;
use starling_protocol::run::{Codec, RunSpec};
use std::fmt::Write;

/// The choice of the next round's inner steps and codec, recomputed from a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChoiceStatus {
    pub seq: u64,
    /// Inner steps of the round after the record.
    pub inner_steps: u32,
    /// The most that the flock may choose; 0: the run file fixes the number.
    pub gap_max: u32,
    /// Why no flock of this run could choose, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<String>,
    /// The figures that it went by, if they are known.
    pub figures: Option<FiguresStatus>,
    /// The number at hand first, then half as many and twice as many, as far as there are figures.
    pub numbers: Vec<NumberStatus>,
    /// The codec of the round after the record, and its engine.
    pub codec: String,
    pub engine: String,
    /// The codecs among which the flock chooses, as far as there are figures; empty if the run file names one.
    pub codecs: Vec<CodecStatus>,
    /// The statements of the contributors.
    pub stated: Vec<StatedStatus>,
}

/// The expected result of a codec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodecStatus {
    pub codec: String,
    /// The cost of a round beyond its inner steps.
    pub overhead_seconds: f64,
    /// Goodput at the best number of steps.
    pub goodput: f64,
}

/// Medians of what the contributors stated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FiguresStatus {
    pub step_seconds: f64,
    /// The cost of a round beyond its inner steps, and the part of it in which updates are added up.
    pub overhead_seconds: f64,
    pub reduce_seconds: f64,
    /// The time for which the median line is full; 0 if its rate is unknown.
    pub wire_seconds: f64,
    pub contributors: u32,
}

/// The expected result of a number of inner steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumberStatus {
    pub inner_steps: u32,
    /// The share of the time in which nodes train.
    pub training: f64,
    /// The worth of a token, against one machine's.
    pub worth: f64,
    /// Their product.
    pub goodput: f64,
}

/// One contributor's statement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatedStatus {
    pub node: String,
    /// Seconds; 0 = not measured.
    pub step_seconds: f64,
    pub overhead_seconds: f64,
    pub reduce_seconds: f64,
    pub upload_kbps: u32,
}

impl ChoiceStatus {
    /// The choice in `record`, which is the newest one.
    pub fn of(spec: &RunSpec, record: &Record) -> Self {
        // Those that vote now, where the rule takes those that voted before: it differs only if one was promoted.
        let measured = control::of_voters(record, record.contributors.iter().map(|c| (&c.member, &c.measured)));
        let (now, codec) = (record.next.inner_steps, record.next.codec);
        // A run that fixes both shows what a choice would go by.
        let elements = usize::try_from(spec.parameters()).unwrap_or(usize::MAX);
        let room = Room::of(spec).unwrap_or_else(|| Room { steps: now, rungs: vec![codec], elements });
        let bytes = room.bytes(codec);
        let figures = Figures::of(&measured, &record.next.overheads, record.contributors.len(), bytes);
        let rung = |figures: &Figures, other: Codec| {
            let expected = room.with(figures, (codec, other));
            CodecStatus {
                codec: other.to_string(),
                overhead_seconds: seconds(expected.overhead_us),
                goodput: expected.peak(now, room.steps),
            }
        };
        let number = |figures: &Figures, steps: u32| NumberStatus {
            inner_steps: steps,
            training: figures.training(steps),
            worth: figures.worth(steps),
            goodput: figures.goodput(steps),
        };
        let mut reductions: Vec<u32> = measured.iter().map(|m| m.reduce_us).filter(|us| *us > 0).collect();
        reductions.sort_unstable();
        let reduce_us = reductions.get(reductions.len().saturating_sub(1) / 2).copied().unwrap_or(0);
        Self {
            seq: record.seq,
            inner_steps: now,
            gap_max: spec.sync.gap_max,
            fixed: spec.fixes_steps().map(str::to_owned),
            numbers: figures
                .iter()
                .flat_map(|figures| [now, now / 2, now.saturating_mul(2)].map(|steps| number(figures, steps)))
                .filter(|number| number.inner_steps > 0)
                .collect(),
            codec: codec.to_string(),
            engine: spec.sync.engine_for(codec).name().to_owned(),
            codecs: figures
                .iter()
                .filter(|_| spec.sync.coarsest.is_some())
                .flat_map(|figures| room.rungs.iter().map(|other| rung(figures, *other)))
                .collect(),
            figures: figures.map(|figures| FiguresStatus {
                step_seconds: seconds(figures.step_us),
                overhead_seconds: seconds(figures.overhead_us),
                reduce_seconds: seconds(reduce_us.min(figures.overhead_us)),
                wire_seconds: seconds(figures.wire_us),
                contributors: figures.members,
            }),
            stated: record
                .contributors
                .iter()
                .map(|c| StatedStatus {
                    node: c.member.to_string(),
                    step_seconds: seconds(c.measured.step_us),
                    overhead_seconds: seconds(c.measured.overhead_us),
                    reduce_seconds: seconds(c.measured.reduce_us),
                    upload_kbps: c.measured.upload_kbps,
                })
                .collect(),
        }
    }

    /// The lines for a person.
    pub fn text(&self) -> String {
        let mut out = format!("record {}: the next round has {} inner steps", self.seq, self.inner_steps);
        out += match self.gap_max {
            0 => ", which the run file fixes\n",
            _ if self.seq == 0 => ", which are the run file's: the flock chooses from there on\n",
            _ => ", which the flock has chosen\n",
        };
        if let Some(why) = &self.fixed {
            return out + &format!("the flock cannot choose another number {why}\n");
        }
        let Some(figures) = &self.figures else {
            return out + self.unknown() + &self.way(".\n");
        };
        let _ = writeln!(
            out,
            "{} contributors; a step takes {:.3} s, and a round {:.2} s beyond its steps, {:.2} s of them to add updates \
             up",
            figures.contributors, figures.step_seconds, figures.overhead_seconds, figures.reduce_seconds
        );
        out += "steps a round   time in training   worth of a token   goodput\n";
        for number in &self.numbers {
            let [training, worth, goodput] = [number.training, number.worth, number.goodput].map(|x| x * 100.0);
            let _ =
                writeln!(out, "{:>13}   {training:>14.1} %   {worth:>14.1} %   {goodput:>5.1} %", number.inner_steps);
        }
        out + &self.reason(figures) + &self.codecs(figures) + &self.statements()
    }

    /// The way in which updates travel, and what follows.
    fn way(&self, and: &str) -> String {
        format!("updates travel as {} by {}{and}", self.codec, if self.engine == "ring" { "a ring" } else { "owners" })
    }

    /// The lines about codecs.
    fn codecs(&self, figures: &FiguresStatus) -> String {
        if self.codecs.is_empty() {
            return self.way(", which the run file says\n");
        }
        let line = match figures.wire_seconds {
            0.0 => "how fast the median line is, is not known yet\n".to_owned(),
            wire => format!("the median line is full for {wire:.2} s of a round\n"),
        };
        let mut out = self.way(&format!(", which the flock has chosen: {line}"));
        out += "codec   a round beyond its steps   goodput at the best steps\n";
        for CodecStatus { codec, overhead_seconds, goodput } in &self.codecs {
            let _ = writeln!(out, "{codec:<5}   {overhead_seconds:>22.2} s   {:>23.1} %", goodput * 100.0);
        }
        out
    }

    fn unknown(&self) -> &'static str {
        if self.seq == 0 {
            "no round has ended yet\n"
        } else if self.stated.is_empty() {
            "the record changed no state, so the number is that of the round before\n"
        } else if self.stated.len() == 1 {
            "only one node contributed to it: without averaging there is nothing to choose\n"
        } else {
            "what a round costs is not known yet: that takes three rounds of two nodes or more, whose voters \
             measured it\n"
        }
    }

    /// The limit that binds.
    fn reason(&self, figures: &FiguresStatus) -> String {
        let best = self.numbers.iter().max_by(|a, b| a.goodput.total_cmp(&b.goodput));
        let (Some(now), Some(best)) = (self.numbers.first(), best) else { return String::new() };
        let gain = best.goodput / now.goodput;
        if gain > GAIN_MIN {
            let more = format!("{} steps would give {:.0} % more", best.inner_steps, (gain - 1.0) * 100.0);
            return match self.gap_max {
                0 => format!(
                    "{more}: a run file without inner.steps and budget.rounds, or with sync.adapt = true, lets the flock \
                     choose\n"
                ),
                most if best.inner_steps > most => format!("sync.gap_max = {most} binds: {more}\n"),
                _ => format!("{more}: the next records will move there\n"),
            };
        }
        let wire = figures.reduce_seconds > figures.overhead_seconds / 2.0;
        let cost =
            if wire { "adding updates up, over the nodes' lines" } else { "the commit: votes, disks and processors" };
        if now.training > 0.97 {
            return "nearly all of the time is training\n".to_owned();
        }
        format!(
            "shorter rounds would lose more to {cost}; in longer ones nodes would drift further apart, and learn less\n"
        )
    }

    fn statements(&self) -> String {
        let mut out = "node              step s   round beyond s   adding up s   uplink Mbit/s\n".to_owned();
        for stated in &self.stated {
            let uplink = match stated.upload_kbps {
                0 => "-".to_owned(),
                kbps => format!("{:.1}", f64::from(kbps) / 1000.0),
            };
            let _ = writeln!(
                out,
                "{:<16}  {:>6.3}   {:>14.2}   {:>11.2}   {uplink:>13}",
                short(&stated.node),
                stated.step_seconds,
                stated.overhead_seconds,
                stated.reduce_seconds
            );
        }
        out
    }
}

fn seconds(micros: u32) -> f64 {
    f64::from(micros) / 1e6
}

#[cfg(test)]
#[path = "choice_test.rs"]
mod tests;
