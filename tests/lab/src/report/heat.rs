//! A figure over two axes as coloured fields, once for each combination of the others.

use super::picture::{Area, Drawing, Failure};
use plotters::backend::DrawingBackend;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use starling_tests::letters;

/// Pixels of a field, of the space left of a panel's rows, and of that above and below its fields.
const FIELD: (i32, i32) = (76, 38);
const LEFT: i32 = 84;
const ABOVE: i32 = 28;
const BELOW: i32 = 46;
const MARGIN: i32 = 14;
/// Width of a picture, unless a single panel is wider.
const WIDTH: i32 = 960;
/// The lightest and the darkest field.
const LIGHT: (f64, f64, f64) = (236.0, 244.0, 250.0);
const DARK: (f64, f64, f64) = (0.0, 92.0, 150.0);

/// One panel.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub title: String,
    /// Values by row, then column; none if the combination was left out or has no such figure.
    pub fields: Vec<Vec<Option<f64>>>,
}

/// All panels, coloured on one scale.
#[derive(Clone, Debug)]
pub struct Heat {
    /// Names of columns and rows, and their values.
    pub x: (String, Vec<String>),
    pub y: (String, Vec<String>),
    pub panels: Vec<Panel>,
    /// Digits behind the point.
    pub digits: usize,
}

impl Heat {
    fn panel_size(&self) -> (i32, i32) {
        let (columns, rows) = (self.x.1.len() as i32, self.y.1.len() as i32);
        (LEFT + columns * FIELD.0 + MARGIN, ABOVE + rows * FIELD.1 + BELOW)
    }

    fn in_a_row(&self) -> i32 {
        ((WIDTH - MARGIN) / self.panel_size().0).max(1)
    }

    /// The least and greatest value of all fields.
    fn range(&self) -> (f64, f64) {
        let all = self.panels.iter().flat_map(|p| p.fields.iter().flatten().flatten().copied());
        all.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
    }

    fn draw_panel<B: DrawingBackend>(&self, area: &Area<B>, panel: &Panel, at: (i32, i32)) -> Result<(), Failure<B>> {
        let (low, high) = self.range();
        let (left, top) = (at.0 + LEFT, at.1 + ABOVE);
        let (columns, rows) = (self.x.1.len() as i32, self.y.1.len() as i32);
        let middle = left + columns * FIELD.0 / 2;
        area.draw(&Text::new(panel.title.clone(), (middle, at.1 + 14), centred(14, BLACK)))?;
        for (r, row) in panel.fields.iter().enumerate() {
            for (c, field) in row.iter().enumerate() {
                let corner = (left + c as i32 * FIELD.0, top + r as i32 * FIELD.1);
                let opposite = (corner.0 + FIELD.0 - 2, corner.1 + FIELD.1 - 2);
                let share = field.map(|v| if high > low { (v - low) / (high - low) } else { 0.5 });
                let colour = share.map_or(RGBColor(245, 245, 245), shade);
                area.draw(&Rectangle::new([corner, opposite], colour.filled()))?;
                let text = field.map_or("-".to_owned(), |v| format!("{v:.0$}", self.digits));
                let ink = if share.is_some_and(|s| s > 0.55) { WHITE } else { BLACK };
                let centre = (corner.0 + FIELD.0 / 2, corner.1 + FIELD.1 / 2);
                area.draw(&Text::new(text, centre, centred(13, ink)))?;
            }
        }
        let right = |colour: RGBColor| centred(13, colour).pos(Pos::new(HPos::Right, VPos::Center));
        for (r, value) in self.y.1.iter().enumerate() {
            let spot = (left - 8, top + r as i32 * FIELD.1 + FIELD.1 / 2);
            area.draw(&Text::new(value.clone(), spot, right(BLACK)))?;
        }
        for (c, value) in self.x.1.iter().enumerate() {
            let spot = (left + c as i32 * FIELD.0 + FIELD.0 / 2, top + rows * FIELD.1 + 10);
            area.draw(&Text::new(value.clone(), spot, centred(13, BLACK)))?;
        }
        let grey = RGBColor(90, 90, 90);
        area.draw(&Text::new(self.x.0.clone(), (middle, top + rows * FIELD.1 + 28), centred(13, grey)))?;
        area.draw(&Text::new(self.y.0.clone(), (left - 8, top - 10), right(grey)))
    }
}

impl Drawing for Heat {
    fn size(&self) -> (u32, u32) {
        let (width, height) = self.panel_size();
        let rows = (self.panels.len() as i32 + self.in_a_row() - 1) / self.in_a_row();
        (WIDTH.max(width + MARGIN) as u32, (rows.max(1) * height + MARGIN) as u32)
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<(), Failure<B>> {
        let (width, height) = self.panel_size();
        for (n, panel) in self.panels.iter().enumerate() {
            let (column, row) = (n as i32 % self.in_a_row(), n as i32 / self.in_a_row());
            self.draw_panel(area, panel, (MARGIN + column * width, MARGIN / 2 + row * height))?;
        }
        Ok(())
    }
}

fn centred(size: i32, colour: RGBColor) -> TextStyle<'static> {
    TextStyle {
        font: (letters::LETTERS, size).into_font(),
        color: colour.to_backend_color(),
        pos: Pos::new(HPos::Center, VPos::Center),
    }
}

fn shade(share: f64) -> RGBColor {
    let mix = |light: f64, dark: f64| (light + (dark - light) * share).round() as u8;
    RGBColor(mix(LIGHT.0, DARK.0), mix(LIGHT.1, DARK.1), mix(LIGHT.2, DARK.2))
}
