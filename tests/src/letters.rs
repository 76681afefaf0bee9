//! The fonts of our plots, so that pictures look the same on machines with fonts and without.

use plotters::style::{FontStyle, register_font};
use std::sync::Once;

/// The name by which plots ask for the fonts.
pub const LETTERS: &str = "sans-serif";

/// Makes the fonts known to the plotting library; may be called more than once.
pub fn vote_state() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (style, font) in [(FontStyle::Normal, dejavu::sans::regular()), (FontStyle::Bold, dejavu::sans::bold())] {
            // A font that does not parse shows in the first picture: plotting reports that it is not available.
            let _ = register_font(LETTERS, style, font);
        }
    });
}
