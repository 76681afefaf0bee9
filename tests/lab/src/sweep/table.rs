//! The results of a sweep: a row for each cell, as text, CSV, HTML and pictures.

use super::grid::{Axis, Grid, plain};
use crate::history::History;
use crate::report::Report;
use crate::report::heat::{Heat, Panel};
use crate::report::page::escape;
use crate::report::picture::{Picture, picture};
use crate::rows::median;
use crate::stage::What;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The results of one played cell.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub name: String,
    /// The value of each axis that the file gives.
    pub at: BTreeMap<&'static str, String>,
    /// Whether every check holds.
    pub ok: bool,
    /// Names of the checks that failed.
    pub broken: Vec<String>,
    pub rounds: u64,
    pub tokens: u64,
    pub tokens_per_s: Option<f64>,
    /// Medians, from the first commit of all nodes on.
    pub seconds_per_round: Option<f64>,
    /// From a node's last inner step to the commit on its disk.
    pub settle_seconds: Option<f64>,
    pub bytes_per_million_tokens: Option<f64>,
    /// Nats per byte on held-out text, at the end.
    pub validation_loss: Option<f64>,
    /// Seconds in all.
    pub seconds: f64,
}

/// A figure of the table.
struct Column {
    key: &'static str,
    /// Head of the column in the terminal's table.
    head: &'static str,
    /// Title of the picture, and the head of the column on the page.
    title: &'static str,
    digits: usize,
    of: fn(&Row) -> Option<f64>,
}

const COLUMNS: [Column; 7] = [
    Column { key: "rounds", head: "rounds", title: "Rounds", digits: 0, of: |r| Some(r.rounds as f64) },
    Column { key: "mtokens", head: "Mtokens", title: "Million tokens", digits: 2, of: |r| Some(r.tokens as f64 / 1e6) },
    Column { key: "tokens_per_s", head: "tokens/s", title: "Tokens a second", digits: 0, of: |r| r.tokens_per_s },
    Column {
        key: "seconds_per_round",
        head: "s/round",
        title: "Seconds a round",
        digits: 2,
        of: |r| r.seconds_per_round,
    },
    Column {
        key: "settle_seconds",
        head: "settle s",
        title: "Seconds from the last inner step to the commit",
        digits: 2,
        of: |r| r.settle_seconds,
    },
    Column {
        key: "mb_per_million_tokens",
        head: "MB/Mtoken",
        title: "MB sent by all for a million tokens",
        digits: 1,
        of: |r| r.bytes_per_million_tokens.map(|b| b / 1e6),
    },
    Column {
        key: "validation_loss",
        head: "nats per byte",
        title: "Loss on held-out text at the end, nats per byte",
        digits: 3,
        of: |r| r.validation_loss,
    },
];

impl Row {
    pub fn new(grid: &Grid, cell: usize, report: &Report, history: &History) -> Self {
        let cell = &grid.cells[cell];
        let since = history.when(What::AllIn).unwrap_or(f64::INFINITY);
        let median = |key: &str| {
            let all = history.commits();
            median(all.iter().filter(|c| c.seen > since).filter_map(|c| c.event[key].as_f64()).collect())
        };
        Self {
            name: cell.name.clone(),
            at: grid.axes.iter().zip(&cell.values).map(|((axis, _), value)| (axis.key(), plain(value))).collect(),
            ok: report.ok,
            broken: report.checks.iter().filter(|c| !c.ok).map(|c| c.name.clone()).collect(),
            rounds: report.rounds,
            tokens: report.tokens,
            tokens_per_s: report.figures.tokens_per_s,
            seconds_per_round: median("seconds"),
            settle_seconds: median("settle_seconds"),
            bytes_per_million_tokens: report.figures.bytes_per_million_tokens,
            validation_loss: report.figures.nats_per_byte,
            seconds: report.seconds,
        }
    }

    fn figures(&self) -> impl Iterator<Item = String> {
        COLUMNS.iter().map(|c| (c.of)(self).map_or("-".into(), |v| format!("{v:.0$}", c.digits)))
    }

    fn verdict(&self) -> String {
        if self.ok { "ok".into() } else { format!("RED: {}", self.broken.join(", ")) }
    }
}

/// The table for the terminal.
pub fn text(grid: &Grid, rows: &[Row]) -> String {
    let heads = grid.axes.iter().map(|(axis, _)| axis.key()).chain(COLUMNS.iter().map(|c| c.head)).chain(["checks"]);
    let mut lines: Vec<Vec<String>> = vec![heads.map(String::from).collect()];
    for row in rows {
        let at = grid.axes.iter().map(|(axis, _)| row.at[axis.key()].clone());
        lines.push(at.chain(row.figures()).chain([row.verdict()]).collect());
    }
    let width = |n: usize| lines.iter().map(|line| line[n].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let (last, cells) = line.split_last().map_or(("", &line[..]), |(last, cells)| (last.as_str(), cells));
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(text, "{cell:>width$}  ");
        }
        text += last;
        text.push('\n');
    }
    for (name, why) in &grid.left_out {
        let _ = writeln!(text, "left out: {name} ({why})");
    }
    text
}

/// The table as comma-separated values; no value holds a comma.
pub fn csv(grid: &Grid, rows: &[Row]) -> String {
    let heads = grid.axes.iter().map(|(axis, _)| axis.key()).chain(COLUMNS.iter().map(|c| c.key)).chain(["ok"]);
    let mut text = heads.collect::<Vec<_>>().join(",") + "\n";
    for row in rows {
        let at = grid.axes.iter().map(|(axis, _)| row.at[axis.key()].clone());
        let figures = COLUMNS.iter().map(|c| (c.of)(row).map_or(String::new(), |v| v.to_string()));
        text += &at.chain(figures).chain([row.ok.to_string()]).collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    text
}

/// The table as HTML; each cell leads to its own report.
pub fn html(grid: &Grid, rows: &[Row]) -> String {
    let mut page = "<h2>Cells</h2><table><tr>".to_owned();
    let heads = grid.axes.iter().map(|(axis, _)| axis.key()).chain(COLUMNS.iter().map(|c| c.head));
    heads.for_each(|head| page += &format!("<th class=\"n\">{head}</th>"));
    page += "<th>checks</th></tr>\n";
    for row in rows {
        page += "<tr>";
        let at = grid.axes.iter().map(|(axis, _)| row.at[axis.key()].clone());
        at.chain(row.figures()).for_each(|field| page += &format!("<td class=\"n\">{}</td>", escape(&field)));
        let class = if row.ok { "green" } else { "red" };
        let _ = writeln!(
            page,
            "<td><a class=\"verdict {class}\" href=\"cells/{}/index.html\">{}</a></td></tr>",
            escape(&row.name),
            escape(&row.verdict())
        );
    }
    page += "</table>\n";
    for (name, why) in &grid.left_out {
        let _ = writeln!(page, "<p class=\"note\">Left out: {} ({}).</p>", escape(name), escape(why));
    }
    page
}

/// A picture of each figure over the first two axes that vary; none if nothing varies.
///
/// # Errors
/// If one cannot be drawn.
pub fn pictures(grid: &Grid, rows: &[Row]) -> anyhow::Result<Vec<Picture>> {
    let told = COLUMNS.iter().filter(|c| !["rounds", "mtokens"].contains(&c.key));
    let drawn = told.filter_map(|c| Some(picture(c.key, c.title, &heat(grid, rows, c)?)));
    drawn.collect()
}

/// The figure over the first two varied axes; a panel for each combination of the others that was played.
fn heat(grid: &Grid, rows: &[Row], column: &Column) -> Option<Heat> {
    let varied = grid.varied();
    let (first, others) = varied.split_first()?;
    let (second, others) = others.split_first().map_or((None, others), |(second, rest)| (Some(second), rest));
    let (x, y) = (named(grid, *first), second.map(|n| named(grid, *n)));
    let key = |n: usize| grid.axes[n].0.key();
    let mut panels: Vec<Panel> = Vec::new();
    for row in rows {
        let title = others.iter().map(|n| titled(grid.axes[*n].0, &row.at[key(*n)])).collect::<Vec<_>>().join(", ");
        let found = panels.iter().position(|p| p.title == title).unwrap_or_else(|| {
            let rows = y.as_ref().map_or(1, |(_, values)| values.len());
            panels.push(Panel { title, fields: vec![vec![None; x.1.len()]; rows] });
            panels.len() - 1
        });
        let place = |axis: usize, values: &[String]| values.iter().position(|v| *v == row.at[key(axis)]);
        let r = second.zip(y.as_ref()).map_or(Some(0), |(n, (_, values))| place(*n, values))?;
        panels[found].fields[r][place(*first, &x.1)?] = (column.of)(row);
    }
    let y = y.unwrap_or_else(|| (String::new(), vec![String::new()]));
    Some(Heat { x, y, panels, digits: column.digits })
}

fn named(grid: &Grid, axis: usize) -> (String, Vec<String>) {
    let (axis, values) = &grid.axes[axis];
    let words = match axis {
        Axis::Nodes => "nodes",
        Axis::Mbit => "Mbit/s",
        Axis::DelayMs => "delay, ms",
        Axis::Steps => "inner steps",
        Axis::Codec => "codec",
        Axis::Engine => "engine",
    };
    (words.into(), values.iter().map(plain).collect())
}

fn titled(axis: Axis, value: &str) -> String {
    match axis {
        Axis::Nodes => format!("{value} nodes"),
        Axis::Mbit => format!("{value} Mbit/s"),
        Axis::DelayMs => format!("{value} ms"),
        Axis::Steps => format!("{value} steps"),
        Axis::Codec | Axis::Engine => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(axes: &str) -> (Grid, Vec<Row>) {
        let text = format!("{axes}[scenario]\nend_s = 5\n[[scenario.nodes]]\nname = \"n\"\n");
        let grid =
            Grid::parse(&text, std::path::Path::new("a.toml"), |_| anyhow::bail!("no file")).expect("a fine sweep");
        let row = |(n, cell): (usize, &super::super::grid::Cell)| Row {
            name: cell.name.clone(),
            at: grid.axes.iter().zip(&cell.values).map(|((axis, _), value)| (axis.key(), plain(value))).collect(),
            ok: n != 1,
            broken: vec!["together".into()],
            rounds: 10 + n as u64,
            settle_seconds: Some(0.25 * n as f64),
            ..Row::default()
        };
        let rows = grid.cells.iter().enumerate().map(row).collect();
        (grid, rows)
    }

    #[test]
    fn tables_hold_every_cell() {
        let (grid, rows) = played("mbit = [5, 20]\ncodec = [\"int8\", \"int4\"]\nengine = [\"ring\"]\n");
        let text = text(&grid, &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("mbit  codec  engine  rounds"), "{text}");
        assert_eq!(lines[1].split_whitespace().take(6).collect::<Vec<_>>(), ["5", "int8", "ring", "10", "0.00", "-"]);
        assert!(lines[2].ends_with("RED: together"), "{text}");
        assert!(lines[3].starts_with("left out: mbit-5-int4 (int4 needs owners"), "{text}");
        assert_eq!(lines.len(), 5);
        let csv = csv(&grid, &rows);
        assert_eq!(csv.lines().nth(2), Some("20,int8,ring,11,0,,,0.25,,,false"));
        assert!(html(&grid, &rows).contains("cells/mbit-20-int8/index.html"));
    }

    #[test]
    fn fields_are_where_their_values_are() {
        let (grid, rows) = played("nodes = [4]\nmbit = [5, 20]\ndelay_ms = [0, 40, 80]\nsteps = [30, 60]\n");
        let settle = &COLUMNS[4];
        let heat = heat(&grid, &rows, settle).expect("two axes vary");
        assert_eq!((heat.x.0.as_str(), heat.y.0.as_str()), ("Mbit/s", "delay, ms"));
        let titles: Vec<&str> = heat.panels.iter().map(|p| p.title.as_str()).collect();
        assert_eq!(titles, ["30 steps", "60 steps"]);
        let expected: Vec<Vec<Option<f64>>> = vec![
            vec![Some(0.0), Some(1.5)], // 0 ms: cells 0 and 6
            vec![Some(0.5), Some(2.0)],
            vec![Some(1.0), Some(2.5)],
        ];
        assert_eq!(heat.panels[0].fields, expected);
        assert_eq!(pictures(&grid, &rows).unwrap().len(), 5);
        let (grid, rows) = played("steps = [30]\n");
        assert!(pictures(&grid, &rows).unwrap().is_empty(), "nothing varies");
        let (grid, rows) = played("steps = [30, 60]\n");
        assert!(pictures(&grid, &rows).unwrap().iter().all(|p| p.svg.contains("inner steps")));
    }
}
