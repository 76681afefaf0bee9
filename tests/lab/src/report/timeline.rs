//! The activity of each node over time, as rows of bars.

use super::picture::{Area, Drawing, Failure, Mark, number};
use crate::history::{History, NodeHistory};
use plotters::backend::DrawingBackend;
use plotters::prelude::*;
use starling_tests::letters;

/// The activity of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doing {
    Joining,
    Training,
    Sending,
    Waiting,
    Down,
}

/// All activities, in the order of the legend.
pub const DOINGS: [Doing; 5] = [Doing::Training, Doing::Sending, Doing::Waiting, Doing::Joining, Doing::Down];

impl Doing {
    fn of(phase: &str) -> Self {
        match phase {
            "training" => Self::Training,
            "reducing" => Self::Sending,
            "ready" | "settling" | "frozen" | "quorumlost" | "finished" => Self::Waiting,
            _ => Self::Joining,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Joining => "joining, catching up",
            Self::Training => "training",
            Self::Sending => "averaging",
            Self::Waiting => "waiting, voting",
            Self::Down => "down, or stopped",
        }
    }

    fn colour(self) -> RGBColor {
        match self {
            Self::Joining => RGBColor(230, 159, 0),
            Self::Training => RGBColor(0, 158, 115),
            Self::Sending => RGBColor(0, 114, 178),
            Self::Waiting => RGBColor(205, 205, 205),
            Self::Down => RGBColor(60, 60, 60),
        }
    }
}

/// One activity of one node from begin to end, in seconds since the beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    pub from: f64,
    pub to: f64,
    pub doing: Doing,
}

/// The activities of a node from its first start to the end.
pub fn stretches(history: &History, node: &NodeHistory) -> Vec<Stretch> {
    let (start, end) = (history.start(), history.diary.last().map_or(0.0, |e| e.seen));
    let mut found = Vec::new();
    let mut down_since = None;
    for (born, died) in history.lives(&node.name) {
        if let Some(since) = down_since {
            found.push(Stretch { from: since, to: born - start, doing: Doing::Down });
        }
        let died = died.unwrap_or(end);
        let (mut since, mut doing) = (born, Doing::Joining);
        for event in node.events.iter() {
            let Some(seen) = event["seen"].as_f64().filter(|seen| (born..=died).contains(seen)) else { continue };
            let next = match event["event"].as_str() {
                Some("phase") => Doing::of(event["phase"].as_str().unwrap_or_default()),
                // The inner steps are done; then the node waits for the others.
                Some("trained") => Doing::Waiting,
                _ => continue,
            };
            if next != doing {
                found.push(Stretch { from: since - start, to: seen - start, doing });
                (since, doing) = (seen, next);
            }
        }
        found.push(Stretch { from: since - start, to: died - start, doing });
        down_since = Some(died - start);
    }
    if let Some(since) = down_since.filter(|since| end - start - since > 0.5) {
        found.push(Stretch { from: since, to: end - start, doing: Doing::Down });
    }
    let frozen = history.frozen(&node.name);
    frozen.into_iter().fold(found, |found, (from, to)| stopped(found, from - start, to.unwrap_or(end) - start))
}

/// The stretches, cut where the process was stopped: a stopped process does not do what it last reported.
fn stopped(found: Vec<Stretch>, from: f64, to: f64) -> Vec<Stretch> {
    let mut all = Vec::new();
    for stretch in found {
        let (begin, end) = (from.clamp(stretch.from, stretch.to), to.clamp(stretch.from, stretch.to));
        let parts = [(stretch.from, begin, stretch.doing), (begin, end, Doing::Down), (end, stretch.to, stretch.doing)];
        all.extend(parts.into_iter().filter(|(a, b, _)| b > a).map(|(from, to, doing)| Stretch { from, to, doing }));
    }
    all
}

/// The rows.
pub struct Timeline {
    pub rows: Vec<(String, Vec<Stretch>)>,
    pub marks: Vec<Mark>,
    pub end: f64,
}

impl Drawing for Timeline {
    fn size(&self) -> (u32, u32) {
        (960, 90 + 26 * self.rows.len().max(2) as u32)
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<(), Failure<B>> {
        let (legend, area) = area.split_vertically(26);
        for (n, doing) in DOINGS.iter().enumerate() {
            let x = 110 + n as i32 * 165;
            legend.draw(&Rectangle::new([(x, 9), (x + 14, 21)], doing.colour().filled()))?;
            legend.draw(&Text::new(doing.word(), (x + 20, 8), (letters::LETTERS, 13)))?;
        }
        let count = self.rows.len().max(1);
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .margin_right(20)
            .x_label_area_size(36)
            .y_label_area_size(100)
            .build_cartesian_2d(0.0..self.end.max(1.0), 0.0..count as f64)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .max_light_lines(0)
            .x_label_formatter(&|x| number(*x))
            .x_desc("seconds")
            .y_labels(0)
            .label_style((letters::LETTERS, 13))
            .axis_desc_style((letters::LETTERS, 14))
            .draw()?;
        for (n, (_, stretches)) in self.rows.iter().enumerate() {
            let bottom = (count - 1 - n) as f64;
            let bar = |s: &Stretch| {
                Rectangle::new([(s.from, bottom + 0.15), (s.to, bottom + 0.85)], s.doing.colour().filled())
            };
            chart.draw_series(stretches.iter().map(bar))?;
        }
        for mark in &self.marks {
            let to = mark.to.max(mark.from + self.end / 400.0);
            let corners = [(mark.from, 0.0), (to, count as f64)];
            chart.draw_series([Rectangle::new(corners, RGBColor(214, 39, 40).mix(0.16).filled())])?;
        }
        for (n, (name, _)) in self.rows.iter().enumerate() {
            let (_, y) = chart.backend_coord(&(0.0, (count - 1 - n) as f64 + 0.5));
            let top = area.get_pixel_range().1.start;
            area.draw(&Text::new(name.clone(), (12, y - top - 7), (letters::LETTERS, 13)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_does_nothing() {
        let trained = Stretch { from: 1.0, to: 9.0, doing: Doing::Training };
        let waited = Stretch { from: 9.0, to: 12.0, doing: Doing::Waiting };
        let found = stopped(vec![trained, waited], 4.0, 10.0);
        let told: Vec<_> = found.iter().map(|s| (s.from, s.to, s.doing)).collect();
        let down = Doing::Down;
        assert_eq!(
            told,
            [(1.0, 4.0, Doing::Training), (4.0, 9.0, down), (9.0, 10.0, down), (10.0, 12.0, Doing::Waiting)]
        );
    }
}
