//! Answers to what a run file needs to know: from a flag, from a person at a terminal, or a default.

use crate::config::flock_tables::AdmissionName;
use crate::exit::{Code, Failure};
use anyhow::Context;
use std::io::{BufRead, Write};

/// The most tokens of a run: no flock has trained on as many.
const TOKENS_MAX: f64 = 1e15;

/// A question.
pub struct Asked<'a> {
    /// The flag that answers it.
    pub flag: &'static str,
    /// The words for a person.
    pub words: &'a str,
    /// The answer of somebody who gives none.
    pub default: Option<&'a str>,
}

/// Asks a person, if there is one.
pub struct Asker<'a> {
    person: Option<&'a mut dyn BufRead>,
    out: &'a mut dyn Write,
}

impl<'a> Asker<'a> {
    /// Without a person the defaults count.
    pub fn new(person: Option<&'a mut dyn BufRead>, out: &'a mut dyn Write) -> Self {
        Self { person, out }
    }

    /// Says something that helps with the next question; nothing if there is nobody to read it.
    pub fn say(&mut self, text: &str) -> Result<(), Failure> {
        if self.person.is_some() {
            write!(self.out, "{text}").context("cannot write to the terminal")?;
        }
        Ok(())
    }

    /// The answer: that of the flag, else the person's, who is asked until `read` takes it, else the default.
    ///
    /// # Errors
    /// The flag's value or the default is refused, the question has neither, or the person has gone.
    pub fn answer<T>(
        &mut self,
        asked: &Asked<'_>,
        given: Option<&str>,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let flag = asked.flag;
        let usage = |why: String| Failure::message(Code::Usage, why);
        if let Some(text) = given {
            return read(text).map_err(|why| usage(format!("{flag} {text}: {why}")));
        }
        let Some(person) = self.person.as_mut() else {
            let text = asked.default.ok_or_else(|| {
                usage(format!("{flag} is missing, and nobody can be asked: standard input is no terminal; give {flag}"))
            })?;
            return read(text).map_err(|why| usage(format!("{flag} {text} (the default): {why}")));
        };
        let shown = asked.default.map(|default| format!(" [{default}]")).unwrap_or_default();
        loop {
            write!(self.out, "{}{shown}: ", asked.words)
                .and_then(|()| self.out.flush())
                .context("cannot write to the terminal")?;
            let mut line = String::new();
            if person.read_line(&mut line).context("cannot read the answer")? == 0 {
                let why = format!("no answer, so nothing is written: answer, or give {flag}");
                return Err(Failure::message(Code::Refused, why));
            }
            let text = match (line.trim(), asked.default) {
                ("", None) => continue,
                ("", Some(default)) => default,
                (text, _) => text,
            };
            match read(text) {
                Ok(answer) => return Ok(answer),
                Err(why) => writeln!(self.out, "  {text}: {why}").context("cannot write to the terminal")?,
            }
        }
    }
}

/// A number of tokens: 300000, 20m or 1.5b.
pub fn count(text: &str) -> Result<u64, String> {
    let plain = text.trim().to_ascii_lowercase().replace('_', "");
    let units = [('k', 1e3), ('m', 1e6), ('b', 1e9)];
    let unit = units.iter().find_map(|(letter, unit)| Some((plain.strip_suffix(*letter)?, *unit)));
    let (digits, unit) = unit.unwrap_or((plain.as_str(), 1.0));
    let value = digits.parse::<f64>().map_or(f64::NAN, |value| value * unit);
    if (1.0..=TOKENS_MAX).contains(&value) {
        Ok(value.round() as u64)
    } else {
        Err("give a number of tokens of 1 or more, such as 300000, 20m or 1.5b".into())
    }
}

/// A count as a person reads it, and as [`count`] reads it.
pub fn short(count: u64) -> String {
    let units = [(1_000_000_000, "b"), (1_000_000, "m"), (1_000, "k")];
    match units.iter().find(|(unit, _)| count >= *unit) {
        Some((unit, letter)) => format!("{:.1}{letter}", count as f64 / *unit as f64),
        None => count.to_string(),
    }
}

/// A way to admit members.
pub fn admission(text: &str) -> Result<AdmissionName, String> {
    match text.trim() {
        "open" => Ok(AdmissionName::Open),
        "ticket" | "tickets" => Ok(AdmissionName::Ticket),
        "list" => Ok(AdmissionName::List),
        _ => Err("there are open, ticket and list".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Asked<'_> = Asked { flag: "--tokens", words: "How many tokens", default: Some("2k") };

    /// The answer, and the words that the person has read.
    fn asked(asked: &Asked<'_>, given: Option<&str>, typed: Option<&str>) -> (Result<u64, String>, String) {
        let (mut typed, mut read) = (typed.map(str::as_bytes), Vec::new());
        let person = typed.as_mut().map(|typed| typed as &mut dyn BufRead);
        let answer = Asker::new(person, &mut read).answer(asked, given, count);
        let answer = answer.map_err(|failure| failure.error.to_string());
        (answer, String::from_utf8(read).expect("text"))
    }

    #[test]
    fn a_flag_goes_before_a_person_and_a_person_before_the_default() {
        assert_eq!(asked(&SIZE, Some("7"), Some("8\n")), (Ok(7), String::new()));
        assert_eq!(asked(&SIZE, None, Some("8\n")), (Ok(8), "How many tokens [2k]: ".into()));
        assert_eq!(asked(&SIZE, None, Some("\n")).0, Ok(2000));
        assert_eq!(asked(&SIZE, None, None), (Ok(2000), String::new()));
    }

    #[test]
    fn a_wrong_answer_is_asked_again_and_a_wrong_flag_is_refused() {
        let (answer, read) = asked(&SIZE, None, Some("many\n0\n9\n"));
        assert_eq!(answer, Ok(9));
        assert_eq!(read.matches("How many tokens").count(), 3);
        assert!(read.contains("many: give a number of tokens"), "{read}");
        let (answer, _) = asked(&SIZE, Some("many"), None);
        assert!(answer.is_err_and(|why| why.starts_with("--tokens many: give a number")));
    }

    #[test]
    fn what_nobody_answers_is_named() {
        let without = Asked { default: None, ..SIZE };
        let (answer, _) = asked(&without, None, None);
        assert!(answer.is_err_and(|why| why.starts_with("--tokens is missing")));
        let (answer, read) = asked(&without, None, Some("\n\n5\n"));
        assert_eq!((answer, read.matches("How many tokens: ").count()), (Ok(5), 3));
        let (answer, _) = asked(&without, None, Some(""));
        assert!(answer.is_err_and(|why| why.contains("nothing is written")));
    }

    #[test]
    fn counts_are_read_as_they_are_shown() {
        for (text, tokens) in [("300000", 300_000), ("20m", 20_000_000), ("1.5B", 1_500_000_000), ("64k", 64_000)] {
            assert_eq!(count(text), Ok(tokens));
            assert_eq!(count(&short(tokens)), Ok(tokens), "{}", short(tokens));
        }
        assert_eq!((count("1_000"), short(999)), (Ok(1000), "999".into()));
        for wrong in ["", "0", "-3", "m", "nan", "inf", "1e99", "2 m"] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ways_to_admit_are_those_of_the_run_file() {
        assert_eq!(admission("tickets"), Ok(AdmissionName::Ticket));
        assert!(admission("friends").is_err_and(|why| why.contains("list")));
    }
}
