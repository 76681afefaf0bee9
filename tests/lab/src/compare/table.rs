//! The results of a comparison: text, a page, and the picture of losses.

use super::play::Outcome;
use super::settings::Settings;
use crate::report::page::escape;
use crate::report::picture::{Lines, Picture, picture};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The settings and results: `compare.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub settings: Settings,
    pub outcomes: Vec<Outcome>,
    /// Systems that were not played, and the parts that this Python lacks for them.
    pub skipped: BTreeMap<String, String>,
    /// Systems that failed before their end, and why.
    pub failed: BTreeMap<String, String>,
    /// Processor cores of this machine, which all members share.
    pub cores: usize,
}

const HEADS: [&str; 9] = [
    "system",
    "to target, s",
    "against Starling",
    "steps of a member",
    "averages",
    "ms a step alone",
    "training, s",
    "MB sent by each",
    "next average after a kill",
];

impl Comparison {
    /// Rows of the table, without its headings.
    fn rows(&self) -> Vec<Vec<String>> {
        let ours = self.outcomes.iter().find(|o| o.system == "starling");
        self.outcomes.iter().map(|outcome| row(outcome, ours)).collect()
    }

    /// The table for the terminal.
    pub fn text(&self) -> String {
        let mut lines = vec![HEADS.map(String::from).to_vec()];
        lines.extend(self.rows());
        let width = |n: usize| lines.iter().map(|line| line[n].chars().count()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
        let mut text = String::new();
        for line in &lines {
            for (cell, width) in line.iter().zip(&widths) {
                let _ = write!(text, "{cell:<width$}  ");
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        self.notes().iter().for_each(|note| text += &format!("{note}\n"));
        text
    }

    /// Notes that explain the table.
    pub fn notes(&self) -> Vec<String> {
        let settings = &self.settings;
        let (own, ddp, hivemind) = (&settings.starling, &settings.ddp, &settings.hivemind);
        let mut notes = vec![
            format!(
                "{} members, {} Mbit/s each, {} ms one way; target {} nats per byte on the same held-out text, by the \
                 first member, from the first step of anybody",
                settings.nodes, settings.mbit, settings.delay_ms, settings.target
            ),
            format!(
                "all processes share {} cores, so that {} members train slower than on machines of their own; \"training\" \
                 is a member's steps alone, with as many at once",
                self.cores, settings.nodes
            ),
            format!(
                "all: batch {} x {} bytes a member, AdamW, rate {}, {} thread(s); everybody validates",
                settings.inner.batch, settings.model.seq_len, settings.inner.lr, settings.threads
            ),
            format!("Starling: rounds of {} steps, {}, {}", own.steps, own.codec, own.engine),
        ];
        for outcome in &self.outcomes {
            match outcome.system.as_str() {
                "ddp" => notes.push(format!(
                    "DDP: {}, buckets of {} MB, f32, not encrypted; a death ends it, unless it is started again from a \
                     checkpoint",
                    outcome.version, ddp.bucket_mb
                )),
                "hivemind" => notes.push(format!(
                    "hivemind: {}, {} local steps between averages of parameters in f16{}, matchmaking {} s",
                    outcome.version,
                    hivemind.steps,
                    if hivemind.delayed { ", taken over by the step after (which waits for it)" } else { "" },
                    hivemind.matchmaking_s
                )),
                _ => {}
            }
            if let Some(found) = outcome.from_mean {
                notes.push(format!(
                    "{}: after {} of the first {} averagings everybody held the mean of all (at most {:.2e} from it, {:.2e} \
                     apart beforehand){}",
                    outcome.title,
                    found.averagings - found.missed,
                    found.averagings,
                    found.from_mean,
                    found.before,
                    if found.missed > 0 { "; after the others not: they met in groups, or in vain" } else { "" }
                ));
            }
            for (when, troubles) in [("", &outcome.troubles), (" after the kill", &outcome.troubles_after)] {
                for (why, times) in troubles.iter().take(5) {
                    notes.push(format!("{}{when}: {why} ({times} times)", outcome.title));
                }
            }
        }
        notes.extend(self.skipped.iter().map(|(system, why)| format!("{system} SKIPPED: {why}")));
        notes.extend(self.failed.iter().map(|(system, why)| format!("{system} FAILED: {why}")));
        notes
    }

    /// The page's body.
    pub fn html(&self, figures: &str) -> String {
        let mut page = figures.to_owned();
        page += "<h2>Figures</h2><table><tr>";
        HEADS.iter().for_each(|head| page += &format!("<th>{head}</th>"));
        page += "</tr>\n";
        for row in self.rows() {
            page += "<tr>";
            row.iter().for_each(|field| page += &format!("<td>{}</td>", escape(field)));
            page += "</tr>\n";
        }
        page += "</table>\n";
        self.notes().iter().for_each(|note| page += &format!("<p class=\"note\">{}</p>\n", escape(note)));
        let settings = toml::to_string(&self.settings).unwrap_or_default();
        page + &format!("<h2>Settings</h2><pre><code>{}</code></pre>\n", escape(&settings))
    }

    /// The loss of all systems over time.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub fn picture(&self) -> anyhow::Result<Picture> {
        let end = self.outcomes.iter().flat_map(|o| &o.curve).map(|p| p.0).fold(1.0, f64::max);
        let mut series: Vec<_> = self.outcomes.iter().map(|o| (o.title.clone(), o.curve.clone())).collect();
        series.push(("target".into(), vec![(0.0, self.settings.target), (end, self.settings.target)]));
        let lines =
            Lines { x: "seconds", y: "nats per byte, held-out text", series, marks: Vec::new(), from_zero: false };
        picture("loss", "Loss over time", &lines)
    }
}

fn row(outcome: &Outcome, ours: Option<&Outcome>) -> Vec<String> {
    let number = |value: Option<f64>, digits: usize| value.map_or("-".into(), |v| format!("{v:.digits$}"));
    let to_target = outcome.target_s.map_or(format!("not within {:.0}", outcome.seconds), |s| format!("{s:.1}"));
    let own = ours.and_then(|o| o.target_s);
    let against = match (outcome.target_s, own) {
        (Some(theirs), Some(own)) => format!("{:.1} x", theirs / own),
        (None, Some(own)) => format!("> {:.1} x", outcome.seconds / own),
        _ => "-".into(),
    };
    let members = outcome.sent.len().max(1) as f64;
    let killed = match (outcome.next_s, outcome.next_members) {
        (Some(seconds), Some(members)) => format!("{seconds:.1} s, with {members}"),
        _ if outcome.ended > 0 => format!("none: {} of the others ended", outcome.ended),
        _ => "none".into(),
    };
    vec![
        outcome.title.clone(),
        to_target,
        against,
        outcome.steps.to_string(),
        outcome.averagings.to_string(),
        number(outcome.plain_step_s.map(|s| 1e3 * s), 1),
        number(outcome.training_s, 1),
        format!("{:.1}", outcome.sent.iter().sum::<u64>() as f64 / members / 1e6),
        killed,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(system: &str, target_s: Option<f64>) -> Outcome {
        Outcome {
            system: system.into(),
            title: system.to_uppercase(),
            target_s,
            seconds: target_s.unwrap_or(400.0),
            curve: vec![(1.0, 5.5), (9.0, 2.0)],
            sent: vec![3_000_000, 1_000_000],
            ended: 3,
            ..Outcome::default()
        }
    }

    #[test]
    fn rows_say_how_many_times_longer() {
        let mut first = outcome("starling", Some(20.0));
        (first.next_s, first.next_members) = (Some(2.04), Some(3));
        let comparison = Comparison {
            settings: Settings::default(),
            outcomes: vec![first, outcome("ddp", None), outcome("hivemind", Some(50.0))],
            skipped: BTreeMap::from([("other".to_owned(), "not here".to_owned())]),
            failed: BTreeMap::from([("third".to_owned(), "it ended".to_owned())]),
            cores: 2,
        };
        let rows = comparison.rows();
        assert_eq!(rows[0][1..3], ["20.0", "1.0 x"]);
        assert_eq!(rows[1][1..3], ["not within 400", "> 20.0 x"]);
        assert_eq!(rows[2][1..3], ["50.0", "2.5 x"]);
        assert_eq!((rows[0][8].as_str(), rows[1][8].as_str()), ("2.0 s, with 3", "none: 3 of the others ended"));
        assert_eq!(rows[0][7], "2.0");
        let text = comparison.text();
        assert!(text.contains("other SKIPPED: not here") && text.contains("third FAILED: it ended"), "{text}");
        assert!(text.contains("share 2 cores"), "{text}");
        assert!(comparison.picture().unwrap().svg.contains("HIVEMIND"));
        assert!(comparison.html("").contains("matchmaking_s = 2.0"));
    }
}
