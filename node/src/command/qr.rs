//! The QR code of a ticket in letters of a terminal, each of which shows two modules, one above the other.

use crate::watch::terminal::Shape;
use qrcode::{Color, EcLevel, QrCode};

/// Light modules on each side, as readers ask for; and fewer, with which they manage where there is no room.
const QUIET_ZONES: [usize; 2] = [4, 2];
/// Black letters on white, by two of the 256 colours that no theme changes: the same on dark and on light terminals.
const BLACK_ON_WHITE: &str = "\x1b[38;5;16;48;5;231m";
const NO_COLOURS: &str = "\x1b[0m";

/// The lines that show a ticket as a QR code on a terminal, or where there is none (`shape`).
///
/// Without colours the light modules are drawn, since most terminals are dark.
///
/// # Errors
/// In words for the user: the terminal has too few columns.
pub fn lines(ticket: &str, shape: Option<Shape>) -> Result<String, String> {
    // A ticket goes from screen to camera undamaged, and less correction makes a smaller code.
    let code = QrCode::with_error_correction_level(ticket, EcLevel::L)
        .map_err(|_| "the ticket is too long for a QR code".to_owned())?;
    let zone = quiet_zone(code.width(), shape)?;
    let has_colours = shape.is_some_and(|shape| shape.has_colours);
    let ink = if has_colours { Color::Dark } else { Color::Light };
    let (before, after) = if has_colours { (BLACK_ON_WHITE, NO_COLOURS) } else { ("", "") };
    let mut text: String = drawn(&code, zone, ink).iter().map(|line| format!("{before}{line}{after}\n")).collect();
    let height = height(code.width(), zone);
    if let Some(shape) = shape.filter(|shape| shape.rows <= height) {
        text += &format!(
            "the QR code has {height} lines, and this terminal has {}: make it higher, or its letters smaller, to see \
             it whole\n",
            shape.rows
        );
    }
    Ok(text)
}

/// The widest quiet zone with which all of the code is seen, or at least its whole width.
fn quiet_zone(width: usize, shape: Option<Shape>) -> Result<usize, String> {
    let Some(Shape { columns, rows, .. }) = shape else { return Ok(QUIET_ZONES[0]) };
    let wide: Vec<usize> = QUIET_ZONES.into_iter().filter(|zone| side(width, *zone) <= columns).collect();
    // A row is the prompt's.
    let whole = wide.iter().find(|zone| height(width, **zone) < rows);
    whole.or(wide.first()).copied().ok_or_else(|| {
        let needed = QUIET_ZONES.map(|zone| side(width, zone)).into_iter().min().unwrap_or(width);
        format!(
            "the QR code needs {needed} columns, and this terminal has {columns}: make it wider, or its letters \
             smaller, and ask again"
        )
    })
}

/// Modules on a side of the code with its quiet zone, each of which takes a column.
fn side(width: usize, zone: usize) -> usize {
    width + 2 * zone
}

/// Lines that the code takes.
fn height(width: usize, zone: usize) -> usize {
    side(width, zone).div_ceil(2)
}

/// The lines of the code, in which modules of the colour `ink` are drawn.
fn drawn(code: &QrCode, zone: usize, ink: Color) -> Vec<String> {
    let is_drawn = |column: usize, row: usize| colour(code, zone, column, row) == ink;
    let letter = |column: usize, row: usize| match (is_drawn(column, row), is_drawn(column, row + 1)) {
        (true, true) => '█',
        (true, false) => '▀',
        (false, true) => '▄',
        (false, false) => ' ',
    };
    let side = side(code.width(), zone);
    let line = |row| (0..side).map(|column| letter(column, row)).collect::<String>();
    (0..side).step_by(2).map(line).collect()
}

/// The colour of a module; all around the code is light.
fn colour(code: &QrCode, zone: usize, column: usize, row: usize) -> Color {
    let within = |at: usize| at.checked_sub(zone).filter(|at| *at < code.width());
    within(column).zip(within(row)).map_or(Color::Light, |at| code[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tickets of one address, of three, and of three with an admission: letters, and modules on a side (ISO/IEC 18004,
    /// correction L: at most 134, 271 and 425 bytes).
    const SIZES: [(usize, usize); 3] = [(115, 41), (260, 57), (380, 69)];
    const HAS_COLOURS: bool = true;

    fn shape(columns: usize, rows: usize, has_colours: bool) -> Option<Shape> {
        Some(Shape { columns, rows, has_colours })
    }

    fn ticket(letters: usize) -> String {
        "starling2xYz-_".chars().cycle().take(letters).collect()
    }

    /// The modules that lines show: whether each is drawn.
    fn modules(text: &str) -> Vec<Vec<bool>> {
        let halves = |letter| match letter {
            '█' => (true, true),
            '▀' => (true, false),
            '▄' => (false, true),
            ' ' => (false, false),
            other => panic!("{other} is no letter of a code"),
        };
        let both = |line: &str| {
            let (above, below): (Vec<bool>, Vec<bool>) = line.chars().map(halves).unzip();
            [above, below]
        };
        text.lines().flat_map(both).collect()
    }

    /// Checks that each module of the lines is the code's, and that `zone` light ones are around them.
    fn assert_shows(text: &str, ticket: &str, zone: usize, ink: Color) {
        let code = QrCode::with_error_correction_level(ticket, EcLevel::L).expect("it fits");
        let (width, rows) = (code.width(), modules(text));
        assert_eq!(rows.len(), 2 * (width + 2 * zone).div_ceil(2));
        let colours = code.to_colors();
        for (y, row) in rows.iter().enumerate() {
            assert_eq!(row.len(), width + 2 * zone);
            for (x, drawn) in row.iter().enumerate() {
                let inside = (zone..zone + width).contains(&x) && (zone..zone + width).contains(&y);
                let expected = if inside { colours[(y - zone) * width + x - zone] } else { Color::Light };
                assert_eq!(*drawn, expected == ink, "column {x}, row {y}");
            }
        }
    }

    #[test]
    fn every_module_is_shown_within_the_quiet_zone() {
        for (letters, width) in SIZES {
            let ticket = ticket(letters);
            let plain = lines(&ticket, None).expect("there is room");
            assert_shows(&plain, &ticket, 4, Color::Light);
            assert_eq!(plain.lines().map(|line| line.chars().count()).max(), Some(width + 8));
            let coloured = lines(&ticket, shape(100, 50, HAS_COLOURS)).expect("there is room");
            let of_line = |line: &str| {
                let rest = line.strip_prefix(BLACK_ON_WHITE).expect("black on white");
                rest.strip_suffix(NO_COLOURS).expect("no colour stays").to_owned() + "\n"
            };
            let inside: String = coloured.lines().map(of_line).collect();
            assert_shows(&inside, &ticket, 4, Color::Dark);
        }
    }

    #[test]
    fn a_narrow_terminal_gets_a_narrow_zone_or_words() {
        let (letters, width) = SIZES[0];
        let ticket = ticket(letters);
        let on = |columns, rows| lines(&ticket, shape(columns, rows, !HAS_COLOURS));
        for (columns, zone) in [(width + 8, 4), (width + 7, 2), (width + 4, 2)] {
            assert_shows(&on(columns, 50).expect("there is room"), &ticket, zone, Color::Light);
        }
        let why = on(width + 3, 50).expect_err("a reader needs some light around it");
        assert!(why.contains("needs 45 columns") && why.contains("has 44"), "{why}");
    }

    #[test]
    fn a_low_terminal_gets_a_narrow_zone_or_is_told() {
        let (letters, width) = SIZES[0];
        let ticket = ticket(letters);
        let on = |rows| lines(&ticket, shape(80, rows, !HAS_COLOURS)).expect("it is wide enough");
        assert_shows(&on((width + 8).div_ceil(2) + 1), &ticket, 4, Color::Light);
        assert_shows(&on(24), &ticket, 2, Color::Light);
        let low = on(20);
        let words = low.lines().last().expect("there are lines");
        assert!(words.contains("has 25 lines, and this terminal has 20"), "{words}");
        let above = low.strip_suffix(format!("{words}\n").as_str()).expect("it is the last");
        assert_shows(above, &ticket, 4, Color::Light);
    }

    #[test]
    fn a_text_that_no_code_holds_is_refused() {
        assert!(lines(&ticket(4000), None).is_err_and(|why| why.contains("too long")));
    }
}
