//! Drawing a picture twice: as SVG for the page, and as PNG for other uses.

use super::png;
use anyhow::{Context, anyhow};
use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::prelude::*;
use starling_tests::letters;

pub type Area<B> = DrawingArea<B, Shift>;
pub type Failure<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

/// A drawing, for any backend.
pub trait Drawing {
    /// Width and height in pixels.
    fn size(&self) -> (u32, u32) {
        (960, 340)
    }

    /// Draws on `area`.
    ///
    /// # Errors
    /// Those of the backend.
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<(), Failure<B>>;
}

/// A drawn picture.
pub struct Picture {
    /// Name of its file, without the extension.
    pub name: &'static str,
    pub title: String,
    pub svg: String,
    pub png: Vec<u8>,
}

/// Draws it as SVG and as PNG.
///
/// # Errors
/// If it cannot be drawn.
pub fn picture(name: &'static str, title: &str, drawing: &impl Drawing) -> anyhow::Result<Picture> {
    letters::vote_state();
    let size = drawing.size();
    let mut svg = String::new();
    on(SVGBackend::with_string(&mut svg, size), drawing).with_context(|| format!("cannot draw {title:?}"))?;
    let mut rgb = vec![0; (size.0 * size.1 * 3) as usize];
    on(BitMapBackend::with_buffer(&mut rgb, size), drawing).with_context(|| format!("cannot draw {title:?}"))?;
    Ok(Picture { name, title: title.into(), svg, png: png::encode(size.0, &rgb)? })
}

fn on<B: DrawingBackend>(backend: B, drawing: &impl Drawing) -> anyhow::Result<()> {
    let area = backend.into_drawing_area();
    let drawn = area.fill(&WHITE).and_then(|()| drawing.draw(&area)).and_then(|()| area.present());
    drawn.map_err(|error| anyhow!("{error}"))
}

/// Colours that tell nodes apart (Okabe and Ito's, for all eyes), in turn.
pub fn colour(n: usize) -> RGBColor {
    const COLOURS: [RGBColor; 8] = [
        RGBColor(0, 114, 178),
        RGBColor(213, 94, 0),
        RGBColor(0, 158, 115),
        RGBColor(204, 121, 167),
        RGBColor(230, 159, 0),
        RGBColor(86, 180, 233),
        RGBColor(120, 120, 120),
        RGBColor(160, 110, 60),
    ];
    COLOURS[n % COLOURS.len()]
}

/// The time in which a fault held, or the moment of one.
#[derive(Clone, Debug)]
pub struct Mark {
    pub from: f64,
    pub to: f64,
    pub what: String,
}

/// Lines over a common axis.
pub struct Lines {
    pub x: &'static str,
    pub y: &'static str,
    pub series: Vec<(String, Vec<(f64, f64)>)>,
    pub marks: Vec<Mark>,
    /// Whether the axis begins at zero.
    pub from_zero: bool,
}

impl Drawing for Lines {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<(), Failure<B>> {
        let points = || self.series.iter().flat_map(|(_, s)| s.iter());
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN, f64::max);
        let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MAX, f64::min);
        if points().next().is_none() {
            return area.draw(&Text::new("no data", (20, 20), (letters::LETTERS, 16)));
        }
        let (left, right) = (least(&mut points().map(|p| p.0)).min(0.0), most(&mut points().map(|p| p.0)));
        let (bottom, top) = (least(&mut points().map(|p| p.1)), most(&mut points().map(|p| p.1)));
        let bottom = if self.from_zero { 0.0 } else { bottom - (top - bottom) * 0.05 };
        let top = if top > bottom { top + (top - bottom) * 0.08 } else { bottom + 1.0 };
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(20)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(left..right.max(left + 1e-9), bottom..top)?;
        for mark in &self.marks {
            let (from, to) = (mark.from.clamp(left, right), mark.to.clamp(left, right));
            // A moment gets the width of a line.
            let to = to.max(from + (right - left) / 400.0);
            chart
                .draw_series([Rectangle::new([(from, bottom), (to, top)], RGBColor(214, 39, 40).mix(0.10).filled())])?;
        }
        chart
            .configure_mesh()
            // Thin lines would hatch the bands of faults.
            .max_light_lines(0)
            .x_label_formatter(&|x| number(*x))
            .y_label_formatter(&|y| number(*y))
            .bold_line_style(RGBColor(225, 225, 225))
            .x_desc(self.x)
            .y_desc(self.y)
            .label_style((letters::LETTERS, 13))
            .axis_desc_style((letters::LETTERS, 14))
            .draw()?;
        for (n, (label, series)) in self.series.iter().enumerate() {
            let style = colour(n).stroke_width(2);
            let drawn = chart.draw_series(LineSeries::new(series.iter().copied(), style))?;
            drawn.label(label).legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], style));
        }
        if self.series.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperRight)
                .background_style(WHITE.mix(0.85))
                .border_style(RGBColor(200, 200, 200))
                .label_font((letters::LETTERS, 12))
                .draw()?;
        }
        Ok(())
    }
}

/// The number in its shortest form: 20, 0.25.
pub fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short == "-0" { "0".into() } else { short.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_axes_are_short() {
        let told = [20.0, 0.25, 0.1 + 0.2, -1.5, 0.0, -0.000_01, 1200.0].map(number);
        assert_eq!(told, ["20", "0.25", "0.3", "-1.5", "0", "0", "1200"]);
    }
}
