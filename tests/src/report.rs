//! The demo's report: a table, `summary.json`, the loss curve, the event log.

use anyhow::Context;
use plotters::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

/// An event to mark in the picture.
pub struct Happening {
    pub round: u64,
    pub seconds: f64,
    pub what: String,
}

/// The sums of one node's events.
pub struct NodeRow {
    pub name: String,
    pub alive: bool,
    /// Rounds that this node has contributed to.
    pub rounds: u64,
    pub tokens: u64,
    pub bytes_sent: u64,
    pub state_root: String,
    /// The number of the last five rounds that it contributed to.
    pub of_last_five: usize,
}

impl NodeRow {
    /// Sums up a node's `--json` events.
    pub fn from_events(name: &str, alive: bool, events: &[Value]) -> Self {
        let committed: Vec<&Value> = events.iter().filter(|e| e["event"] == "committed").collect();
        let me = events.iter().find_map(|e| e["node"].as_str()).unwrap_or_default();
        let mine = |e: &&&Value| e["contributors"].as_array().is_some_and(|c| c.iter().any(|id| id == me));
        let last = committed.last();
        let text = |key: &str| last.and_then(|e| e[key].as_str()).unwrap_or_default().to_string();
        let number = |key: &str| last.and_then(|e| e[key].as_u64()).unwrap_or_default();
        Self {
            name: name.into(),
            alive,
            rounds: committed.iter().filter(mine).count() as u64,
            tokens: number("tokens"),
            bytes_sent: number("bytes_sent"),
            state_root: text("state_root"),
            of_last_five: committed.iter().rev().take(5).filter(mine).count(),
        }
    }
}

/// The contents of the report.
pub struct Report {
    rows: Vec<NodeRow>,
    happenings: Vec<Happening>,
    seconds: f64,
    sample: String,
    /// (round, nats per token) of the contributors' training loss.
    training: Vec<(f64, f64)>,
    /// (round, nats per byte) of the committed model on held-out text.
    validation: Vec<(f64, f64)>,
    order1_entropy: f64,
}

impl Report {
    /// `events` are those of a node that saw the whole run.
    pub fn new(
        events: &[Value],
        rows: Vec<NodeRow>,
        happenings: Vec<Happening>,
        seconds: f64,
        sample: String,
    ) -> anyhow::Result<Self> {
        let series = |event: &str, key: &str| -> Vec<(f64, f64)> {
            events
                .iter()
                .filter(|e| e["event"] == event)
                .filter_map(|e| Some((e["round"].as_f64()?, e[key].as_f64()?)))
                .collect()
        };
        let entropy = events.iter().find(|e| e["event"] == "data").and_then(|e| e["order1_entropy"].as_f64());
        let validation = series("validated", "nats_per_byte");
        anyhow::ensure!(validation.len() >= 2, "the run was validated {} times: nothing to compare", validation.len());
        Ok(Self {
            rows,
            happenings,
            seconds,
            sample,
            training: series("committed", "loss"),
            validation,
            order1_entropy: entropy.context("no `data` event with the held-out text's entropy")?,
        })
    }

    fn first_and_last_validation(&self) -> (f64, f64) {
        let value = |point: Option<&(f64, f64)>| point.map_or(f64::NAN, |p| p.1);
        (value(self.validation.first()), value(self.validation.last()))
    }

    /// Whether live nodes have equal hashes and contributed to 3 of the last 5 rounds, and the loss is below the
    /// order-1 entropy.
    pub fn as_promised(&self) -> bool {
        let mut alive = self.rows.iter().filter(|r| r.alive);
        let Some(first) = alive.next() else { return false };
        let equal = !first.state_root.is_empty() && alive.all(|r| r.state_root == first.state_root);
        let busy = self.rows.iter().filter(|r| r.alive).all(|r| r.of_last_five >= 3);
        equal && busy && self.first_and_last_validation().1 < self.order1_entropy
    }

    /// The table and the notes below it.
    pub fn text(&self) -> String {
        let mut out = format!(
            "{:8} {:8} {:>7} {:>10} {:>11}  {:>7}  state\n",
            "node", "", "rounds", "tokens", "bytes sent", "last 5"
        );
        for row in &self.rows {
            out += &format!(
                "{:8} {:8} {:>7} {:>10} {:>11}  {:>7}  {}\n",
                row.name,
                if row.alive { "alive" } else { "killed" },
                row.rounds,
                row.tokens,
                row.bytes_sent,
                if row.alive { format!("{} of 5", row.of_last_five) } else { "-".into() },
                row.state_root.chars().take(16).collect::<String>()
            );
        }
        let alive: Vec<_> = self.rows.iter().filter(|r| r.alive).collect();
        let equal = alive.windows(2).all(|w| w[0].state_root == w[1].state_root);
        out += if equal { "all live nodes hold the same bits\n" } else { "LIVE NODES DIFFER\n" };
        let (start, end) = self.first_and_last_validation();
        out += &format!(
            "validation loss: {start:.3} nats per byte at the start, {end:.3} at the end ({} than the order-1 entropy of \
             the held-out text, {:.3})\ntraining took {:.0} s\n\nwhat the model writes after \"pub fn \":\n{}\n",
            if end < self.order1_entropy { "lower" } else { "NOT LOWER" },
            self.order1_entropy,
            self.seconds,
            indented(&self.sample)
        );
        out
    }

    fn summary(&self) -> Value {
        let nodes: Vec<Value> = self
            .rows
            .iter()
            .map(|r| {
                json!({
                    "name": r.name, "alive": r.alive, "rounds": r.rounds, "tokens": r.tokens,
                    "bytes_sent": r.bytes_sent, "state_root": r.state_root, "of_last_five": r.of_last_five,
                })
            })
            .collect();
        let (start, end) = self.first_and_last_validation();
        json!({
            "nodes": nodes, "val_loss_start": start, "val_loss_end": end,
            "order1_entropy": self.order1_entropy, "seconds": self.seconds,
            "happenings": self.happenings.iter().map(|h| json!({"round": h.round, "seconds": h.seconds, "what": h.what})).collect::<Vec<_>>(),
        })
    }

    /// Writes `summary.json`, `loss.svg`, `report.txt` and `events/`.
    pub fn write(&self, out: &Path, logs: &Path) -> anyhow::Result<()> {
        std::fs::write(out.join("summary.json"), serde_json::to_string_pretty(&self.summary())? + "\n")?;
        std::fs::write(out.join("report.txt"), self.text())?;
        let events = out.join("events");
        std::fs::create_dir_all(&events)?;
        for entry in std::fs::read_dir(logs)? {
            let path = entry?.path();
            if let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|e| e == "jsonl")) {
                std::fs::copy(&path, events.join(name))?;
            }
        }
        self.draw(&out.join("loss.svg")).map_err(|e| anyhow::anyhow!("cannot draw the loss curve: {e}"))
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn std::error::Error + '_>> {
        let points = || self.training.iter().chain(&self.validation);
        let rounds = points().map(|p| p.0).fold(1.0, f64::max);
        let top = points().map(|p| p.1).fold(self.order1_entropy, f64::max) * 1.03;
        let bottom = points().map(|p| p.1).fold(self.order1_entropy, f64::min) * 0.95;
        crate::letters::vote_state();
        let root = SVGBackend::new(path, (960, 560)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption("Loss of the flock's model", ("sans-serif", 24))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d(0f64..rounds, bottom..top)?;
        chart
            .configure_mesh()
            .x_desc("round")
            .x_label_formatter(&|round| format!("{round:.0}"))
            .y_desc("nats per byte")
            .light_line_style(RGBColor(238, 238, 238))
            .label_style(("sans-serif", 14))
            .draw()?;
        let (blue, orange, grey) = (RGBColor(31, 119, 180), RGBColor(214, 98, 20), RGBColor(110, 110, 110));
        chart
            .draw_series(LineSeries::new(self.training.iter().copied(), blue.stroke_width(2)))?
            .label("training (mean of the contributors)")
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], blue.stroke_width(2)));
        chart
            .draw_series(LineSeries::new(self.validation.iter().copied(), orange.stroke_width(3)))?
            .label("validation (committed model, held-out text)")
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], orange.stroke_width(3)));
        let entropy = self.order1_entropy;
        chart
            .draw_series(LineSeries::new([(0.0, entropy), (rounds, entropy)], grey.stroke_width(1)))?
            .label("order-1 entropy of the held-out text")
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], grey.stroke_width(1)));
        for happening in &self.happenings {
            let at = happening.round as f64;
            chart.draw_series(LineSeries::new([(at, bottom), (at, top)], RED.mix(0.6).stroke_width(1)))?;
            let label = Text::new(
                happening.what.clone(),
                (at + rounds * 0.006, top - (top - bottom) * 0.02),
                ("sans-serif", 14),
            );
            chart.draw_series(std::iter::once(label))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleRight)
            .background_style(WHITE.mix(0.9))
            .border_style(grey)
            .label_font(("sans-serif", 14))
            .draw()?;
        root.present()?;
        Ok(())
    }
}

fn indented(text: &str) -> String {
    text.trim_end().lines().map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event: &str, fields: Value) -> Value {
        let mut value = fields;
        value["event"] = event.into();
        value["node"] = "aa".into();
        value
    }

    fn committed(round: u64, contributors: &[&str]) -> Value {
        event(
            "committed",
            json!({"round": round, "contributors": contributors, "tokens": 10 * round, "bytes_sent": 7, "state_root": format!("root-{round}"), "loss": 2.0}),
        )
    }

    fn report(rows: Vec<NodeRow>, last_loss: f64) -> Report {
        let events = [
            event("data", json!({"order1_entropy": 2.5})),
            event("validated", json!({"round": 1, "nats_per_byte": 5.5})),
            event("validated", json!({"round": 9, "nats_per_byte": last_loss})),
        ];
        Report::new(&events, rows, Vec::new(), 1.0, "x".into()).expect("complete")
    }

    #[test]
    fn rows_count_own_rounds() {
        let events: Vec<_> = (1..=6).map(|r| committed(r, if r % 2 == 0 { &["aa", "bb"] } else { &["bb"] })).collect();
        let row = NodeRow::from_events("node-1", true, &events);
        assert_eq!((row.rounds, row.of_last_five, row.tokens), (3, 3, 60));
        assert_eq!(row.state_root, "root-6");
    }

    #[test]
    fn a_promise_broken_is_seen() {
        let row = |name: &str, upto: u64| {
            NodeRow::from_events(name, true, &(1..=upto).map(|r| committed(r, &["aa"])).collect::<Vec<_>>())
        };
        assert!(report(vec![row("a", 9), row("b", 9)], 2.0).as_promised());
        assert!(!report(vec![row("a", 9), row("b", 8)], 2.0).as_promised(), "states differ");
        assert!(!report(vec![row("a", 9), row("b", 9)], 2.6).as_promised(), "loss above the entropy");
    }
}
