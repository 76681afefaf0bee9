//! Text from peers, made safe to show.

/// Characters of a peer's text that are ever shown or kept.
pub const SHOWN_CHARS_MAX: usize = 64;

/// `text` cut to [`SHOWN_CHARS_MAX`] characters, with everything but printable ASCII replaced by `?`: no terminal
/// escape, line break or look-alike letter of a peer's choice reaches a log or a screen.
pub fn printable(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN_CHARS_MAX).map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_length_are_tamed() {
        assert_eq!(printable("starling/0.1.0"), "starling/0.1.0");
        assert_eq!(printable("a\x1b]0;b\n\u{202e}c"), "a?]0;b??c");
        let long = printable(&"x".repeat(1 << 20));
        assert_eq!(long.len(), SHOWN_CHARS_MAX + 3);
    }
}
