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

/// Characters of a node's name.
pub const NAME_CHARS_MAX: usize = 32;

/// A node's name as it is shown: letters and digits of ASCII, spaces, and `-`, `_` and `.` between them, cut to
/// [`NAME_CHARS_MAX`]. Escape sequences go as a whole, other characters one by one. None if nothing is left.
pub fn name(text: &str) -> Option<String> {
    // A name has no use for more, and a peer may send a megabyte.
    let mut rest = text.chars().take(8 * NAME_CHARS_MAX);
    let mut name = String::new();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' => skip_sequence(&mut rest),
            '\u{9b}' => skip_control(&mut rest),
            c if c.is_ascii_alphanumeric() || matches!(c, ' ' | '-' | '_' | '.') => name.push(c),
            _ => {}
        }
    }
    let cut: String = name.trim().chars().take(NAME_CHARS_MAX).collect();
    Some(cut.trim_end().to_owned()).filter(|name| !name.is_empty())
}

/// Skips what follows an escape character: one character, a control sequence, or a string up to its end.
fn skip_sequence(rest: &mut impl Iterator<Item = char>) {
    match rest.next() {
        Some('[') => skip_control(rest),
        Some(']' | 'P' | 'X' | '^' | '_') => {
            // A string ends with BEL, or with an escape character and a backslash.
            while let Some(c) = rest.next() {
                if c == '\x07' || c == '\x1b' && rest.next() == Some('\\') {
                    break;
                }
            }
        }
        _ => {}
    }
}

/// Skips the rest of a control sequence, up to its final letter.
fn skip_control(rest: &mut impl Iterator<Item = char>) {
    let _ = rest.find(|c| matches!(c, '\x40'..='\x7e'));
}

/// The name in what a peer says about its program: the part after the program's own name and version.
pub fn name_of_agent(agent: &str) -> Option<String> {
    name(agent.split_once(' ')?.1)
}

/// The program's name and version, and the node's name if it has one.
pub fn agent_with(program: &str, name: Option<&str>) -> String {
    match name.and_then(self::name) {
        Some(name) => format!("{program} {name}"),
        None => program.to_owned(),
    }
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

    #[test]
    fn names_are_short_and_of_harmless_letters() {
        let named = |text: &str| name(text).unwrap_or_default();
        assert_eq!(named("gpu-box_2.lab"), "gpu-box_2.lab");
        assert_eq!(named("  two words \n"), "two words");
        assert_eq!(named("a\x1b[31;1mred\x1b[0m"), "ared", "colours go as a whole");
        assert_eq!(named("a\x1b]0;title\x07b\x1b]0;x\x1b\\c"), "abc", "and so do titles");
        assert_eq!(named("a\u{9b}2Jb\u{202e}c\u{200f}d\u{2066}e"), "abcde");
        assert_eq!(named("k\u{fc}che (me) \u{b7} 1"), "kche me  1");
        assert_eq!(named(&"x".repeat(1 << 20)).len(), NAME_CHARS_MAX);
        for nothing in ["", "   ", "\x1b[31m", "\x1b]0;title", "\u{6a21}\u{578b}", "\x1b"] {
            assert_eq!(name(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn a_name_comes_back_out_of_what_is_sent() {
        let sent = agent_with("starling/0.1.0", Some("gpu box"));
        assert_eq!(printable(&sent), sent, "it is sent whole");
        assert_eq!(name_of_agent(&sent), Some("gpu box".into()));
        let longest = agent_with("starling/0.1.0", Some(&"x".repeat(100)));
        assert_eq!(name_of_agent(&printable(&longest)), Some("x".repeat(NAME_CHARS_MAX)));
        assert_eq!(agent_with("starling/0.1.0", None), "starling/0.1.0");
        assert_eq!(name_of_agent("starling/0.1.0"), None);
    }
}
