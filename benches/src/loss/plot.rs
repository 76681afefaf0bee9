//! The curves of a comparison beside each other: each case's validation loss, and how far it is from the first case's.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

/// Points of tokens trained on and nats per byte.
pub type Curve = Vec<(f64, f64)>;

/// The curves of a case, one a seed.
pub struct Curves {
    pub case: String,
    pub seeds: Vec<(u64, Curve)>,
}

impl Curves {
    /// The mean over the seeds, point by point.
    fn mean(&self) -> Curve {
        let points = self.seeds.iter().map(|(_, curve)| curve.len()).min().unwrap_or(0);
        let mean = |i: usize| self.seeds.iter().map(|(_, curve)| curve[i].1).sum::<f64>() / self.seeds.len() as f64;
        (0..points).map(|i| (self.seeds[0].1[i].0, mean(i))).collect()
    }

    /// The percentage by which each curve is above the same seed's in `other`.
    fn above(&self, other: &Self) -> Self {
        let percent = |a: &(f64, f64), b: &(f64, f64)| (a.0, (a.1 / b.1 - 1.0) * 100.0);
        let pair = |(seed, a): &(u64, Curve)| {
            let (_, b) = other.seeds.iter().find(|(s, _)| s == seed)?;
            Some((*seed, a.iter().zip(b).map(|(a, b)| percent(a, b)).collect()))
        };
        Self { case: self.case.clone(), seeds: self.seeds.iter().filter_map(pair).collect() }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws all charts as SVG.
///
/// # Errors
/// If the file cannot be written.
pub fn draw(path: &Path, cases: &[Curves]) -> Result<()> {
    let failed = |error: Box<dyn std::error::Error + '_>| anyhow!("cannot draw {}: {error}", path.display());
    starling_tests::letters::register();
    let root = SVGBackend::new(path, (1280, 540)).into_drawing_area();
    root.fill(&WHITE).map_err(|error| failed(error.into()))?;
    let (left, right) = root.split_horizontally(640);
    panel(&left, "Validation loss (mean of the seeds)", "nats per byte", cases).map_err(failed)?;
    let Some(first) = cases.first() else { return Ok(()) };
    let above: Vec<Curves> = cases.iter().map(|case| case.above(first)).collect();
    panel(&right, &format!("Against {} (thin: each seed)", first.case), "percent", &above).map_err(failed)?;
    root.present().map_err(|error| failed(error.into()))
}

/// One chart: thick lines for means, thin ones for seeds. The first point, of an untrained model, is left out, since it
/// would press the others together.
fn panel<'a>(
    area: &Area<'a>,
    caption: &str,
    unit: &str,
    cases: &[Curves],
) -> Result<(), Box<dyn std::error::Error + 'a>> {
    let all = || cases.iter().flat_map(|case| &case.seeds).flat_map(|(_, curve)| curve.iter().skip(1));
    if all().next().is_none() {
        return Ok(());
    }
    let tokens = all().map(|point| point.0).fold(1.0, f64::max);
    let (low, high) = all().map(|point| point.1).fold((f64::MAX, f64::MIN), |(l, h), y| (l.min(y), h.max(y)));
    let room = ((high - low) * 0.05).max(1e-6);
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(0f64..tokens, low - room..high + room)?;
    chart
        .configure_mesh()
        .x_desc("tokens")
        .y_desc(unit)
        .x_label_formatter(&|tokens| format!("{:.1}M", tokens / 1e6))
        .light_line_style(RGBColor(238, 238, 238))
        .draw()?;
    for (index, case) in cases.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        for (_, curve) in &case.seeds {
            chart.draw_series(LineSeries::new(curve.iter().skip(1).copied(), color.mix(0.3).stroke_width(1)))?;
        }
        chart
            .draw_series(LineSeries::new(case.mean().into_iter().skip(1), color.stroke_width(2)))?
            .label(case.case.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.9))
        .border_style(RGBColor(160, 160, 160))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_paired_by_seed() {
        let curve = |loss: f64| vec![(0.0, 5.0), (100.0, loss)];
        let first = Curves { case: "a".to_owned(), seeds: vec![(1, curve(2.0)), (3, curve(4.0))] };
        // With seed 1 the other diverged.
        let other = Curves { case: "b".to_owned(), seeds: vec![(2, curve(1.0)), (3, curve(5.0))] };
        let above = other.above(&first);
        assert_eq!(above.seeds, [(3, vec![(0.0, 0.0), (100.0, 25.0)])]);
        assert_eq!(first.mean(), [(0.0, 5.0), (100.0, 3.0)]);
    }

    #[test]
    fn a_case_without_curves_is_drawn_as_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("curves.svg");
        draw(&path, &[Curves { case: "a".to_owned(), seeds: Vec::new() }]).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("<svg"));
    }
}
