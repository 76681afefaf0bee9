//! The bytes that put the block on a terminal, renew it in place, and take it away.
//!
//! The cursor rests at the start of the line below the block. Nothing else of the terminal is changed: a process that
//! is killed leaves a terminal in order behind.

use unicode_width::UnicodeWidthStr;

/// Erases the rest of the line, and everything below the cursor.
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";

/// The block as it stands on the terminal.
#[derive(Debug, Default)]
pub struct Canvas {
    drawn: Vec<String>,
}

impl Canvas {
    pub const fn new() -> Self {
        Self { drawn: Vec::new() }
    }

    pub fn is_drawn(&self) -> bool {
        !self.drawn.is_empty()
    }

    /// Puts `above` in place of the block, and a new block below; none if nothing changes.
    pub fn renew(&mut self, above: &[String], block: Vec<String>, columns: usize) -> Option<String> {
        if above.is_empty() && block == self.drawn {
            return None;
        }
        let mut bytes = self.up(columns);
        for line in above.iter().chain(&block) {
            bytes.push_str(line);
            bytes.push_str(ERASE_LINE);
            bytes.push('\n');
        }
        bytes.push_str(ERASE_BELOW);
        self.drawn = block;
        Some(bytes)
    }

    /// Takes the block away.
    pub fn erase(&mut self, columns: usize) -> String {
        let bytes = self.covered(columns);
        self.drawn.clear();
        bytes
    }

    /// The bytes that take the block away.
    fn covered(&self, columns: usize) -> String {
        if self.is_drawn() { self.up(columns) + ERASE_BELOW } else { String::new() }
    }

    /// Moves the cursor to the first row of the block. A terminal that became narrower has wrapped its lines.
    fn up(&self, columns: usize) -> String {
        let rows: usize = self.drawn.iter().map(|line| line.width().div_ceil(columns.max(1)).max(1)).sum();
        if rows == 0 { String::new() } else { format!("\r\x1b[{rows}A") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal that is wide enough, as far as the canvas needs one.
    #[derive(Default)]
    struct Terminal {
        rows: Vec<String>,
        row: usize,
        column: usize,
    }

    impl Terminal {
        fn write(&mut self, bytes: &str) {
            let mut rest = bytes;
            while let Some(c) = rest.chars().next() {
                rest = &rest[c.len_utf8()..];
                match c {
                    '\r' => self.column = 0,
                    '\n' => (self.row, self.column) = (self.row + 1, 0),
                    '\x1b' => {
                        let end = rest.find(char::is_alphabetic).expect("a whole sequence");
                        self.order(&rest[1..end], &rest[end..=end]);
                        rest = &rest[end + 1..];
                    }
                    c => self.put(c),
                }
            }
        }

        fn order(&mut self, count: &str, order: &str) {
            let column = self.column;
            match order {
                "A" => self.row -= count.parse::<usize>().expect("a number"),
                "K" => self.line().truncate(column),
                "J" => {
                    self.line().truncate(column);
                    self.rows.truncate(self.row + 1);
                }
                other => panic!("{other}"),
            }
        }

        fn put(&mut self, c: char) {
            let column = self.column;
            let line = self.line();
            if column < line.len() {
                line.replace_range(column..=column, &c.to_string());
            } else {
                line.push(c);
            }
            self.column += 1;
        }

        fn line(&mut self) -> &mut String {
            if self.rows.len() <= self.row {
                self.rows.resize(self.row + 1, String::new());
            }
            &mut self.rows[self.row]
        }

        fn shown(&self) -> Vec<&str> {
            self.rows.iter().map(String::as_str).filter(|line| !line.is_empty()).collect()
        }
    }

    fn texts(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn lines_scroll_above_a_block_that_stays() {
        let (mut canvas, mut terminal) = (Canvas::new(), Terminal::default());
        let mut draw = |above: &[&str], block: &[&str]| {
            if let Some(bytes) = canvas.renew(&texts(above), texts(block), 80) {
                terminal.write(&bytes);
            }
            terminal.shown().iter().map(|line| (*line).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(draw(&["started"], &["round 1", "training", "x"]), ["started", "round 1", "training", "x"]);
        assert_eq!(draw(&[], &["round 2", "waits"]), ["started", "round 2", "waits"], "the rest is erased");
        assert_eq!(draw(&["peer", "a long line"], &["round 3"]), ["started", "peer", "a long line", "round 3"]);
        assert_eq!(draw(&[], &[]), ["started", "peer", "a long line"]);
    }

    #[test]
    fn what_has_not_changed_is_not_drawn_again() {
        let mut canvas = Canvas::new();
        assert!(canvas.renew(&[], texts(&["a"]), 80).is_some());
        assert!(canvas.renew(&[], texts(&["a"]), 80).is_none());
        assert!(canvas.renew(&texts(&["b"]), texts(&["a"]), 80).is_some());
    }

    #[test]
    fn a_log_line_stands_above_the_block() {
        let (mut canvas, mut terminal) = (Canvas::new(), Terminal::default());
        assert_eq!(canvas.covered(80), "", "nothing is there yet");
        terminal.write(&canvas.renew(&[], texts(&["round 1", "training"]), 80).expect("it is new"));
        let erased = canvas.erase(80);
        terminal.write(&format!("{erased}WARN a disk is slow\n"));
        let same = texts(&["round 1", "training"]);
        terminal.write(&canvas.renew(&[], same, 80).expect("it is not there any more"));
        assert_eq!(terminal.shown(), ["WARN a disk is slow", "round 1", "training"]);
        terminal.write(&canvas.erase(80));
        assert_eq!(terminal.shown(), ["WARN a disk is slow"]);
        assert_eq!((canvas.erase(80), canvas.is_drawn()), (String::new(), false));
    }

    #[test]
    fn a_terminal_that_became_narrow_has_more_rows() {
        let mut canvas = Canvas::new();
        canvas.renew(&[], texts(&["12345678", "", "1234"]), 80);
        assert_eq!(canvas.covered(80), "\r\x1b[3A\x1b[J");
        assert_eq!(canvas.covered(4), "\r\x1b[4A\x1b[J");
    }
}
