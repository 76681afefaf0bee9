//! The letters of our plots, so that pictures look the same on machines with fonts and without.

use plotters::style::{FontStyle, register_font};
use std::sync::Once;

/// The name under which plots ask for them.
pub const LETTERS: &str = "sans-serif";

/// Makes them known to the plotting library; any number of times.
pub fn vote_state() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (style, font) in [(FontStyle::Normal, dejavu::sans::regular()), (FontStyle::Bold, dejavu::sans::bold())] {
            // A font that does not parse shows in the first picture: plotting says that it is not available.
            let _ = register_font(LETTERS, style, font);
        }
    });
}
