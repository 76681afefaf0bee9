//! The findings of the doctor, each with its mend.

use serde::Serialize;

/// The verdict on one point, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Good,
    /// It may work, or could not be tried.
    Doubtful,
    /// A node does not start, or finds nobody.
    Bad,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Doubtful => "doubtful",
            Self::Bad => "bad",
        }
    }
}

/// One point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject: `device`, `memory` and so on, as `docs/events.md` lists them.
    pub check: &'static str,
    pub verdict: Verdict,
    pub finding: String,
    /// The advice; none if it is good.
    pub mend: Option<String>,
}

impl Finding {
    pub fn good(check: &'static str, finding: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Good, finding: finding.into(), mend: None }
    }

    pub fn new(check: &'static str, verdict: Verdict, finding: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { check, verdict, finding: finding.into(), mend: Some(mend.into()) }
    }

    /// From a message of the node. These say what to do after their last semicolon, or after their last colon if there
    /// is none.
    pub fn told(check: &'static str, verdict: Verdict, message: &str) -> Self {
        match message.rsplit_once("; ").or_else(|| message.rsplit_once(": ")) {
            Some((finding, mend)) => Self::new(check, verdict, finding, mend),
            None => Self::new(check, verdict, message, "see `starling train --help`"),
        }
    }
}

/// All findings.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub version: &'static str,
    /// The worst verdict.
    pub verdict: Verdict,
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn new(findings: Vec<Finding>) -> Self {
        let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Good);
        Self { version: env!("CARGO_PKG_VERSION"), verdict, findings }
    }

    /// For a person.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for Finding { check, verdict, finding, mend } in &self.findings {
            out += &format!("{:<8}  {check:<11}  {finding}\n", verdict.name());
            if let Some(mend) = mend {
                out += &format!("{:23}mend: {mend}\n", "");
            }
        }
        let count = |verdict| self.findings.iter().filter(|finding| finding.verdict == verdict).count();
        let (doubtful, bad) = (count(Verdict::Doubtful), count(Verdict::Bad));
        out += &match self.verdict {
            Verdict::Good => "\nall good\n".to_owned(),
            Verdict::Doubtful => format!("\nnothing is bad, {doubtful} doubtful\n"),
            Verdict::Bad => format!("\n{bad} bad, {doubtful} doubtful\n"),
        };
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_split_where_its_advice_begins() {
        let message = "/ip4/0.0.0.0/tcp/1 is in use: another process listens there; stop it";
        let found = Finding::told("port", Verdict::Bad, message);
        assert_eq!(found.finding, "/ip4/0.0.0.0/tcp/1 is in use: another process listens there");
        assert_eq!(found.mend.as_deref(), Some("stop it"));
        let found = Finding::told("disk", Verdict::Bad, "the disk is too small: free some space, or name another");
        assert_eq!(found.finding, "the disk is too small");
        assert_eq!(found.mend.as_deref(), Some("free some space, or name another"));
        assert_eq!(Finding::told("port", Verdict::Bad, "no").finding, "no");
    }

    #[test]
    fn the_report_is_as_bad_as_its_worst_finding_and_says_every_mend() {
        let good = Finding::good("device", "cpu");
        let doubtful = Finding::new("outside", Verdict::Doubtful, "not tried", "give --bootstrap");
        let bad = Finding::new("port", Verdict::Bad, "in use", "stop it");
        assert_eq!(Report::new(vec![good.clone()]).text(), "good      device       cpu\n\nall good\n");
        assert_eq!(Report::new(vec![good.clone(), doubtful.clone()]).verdict, Verdict::Doubtful);
        let report = Report::new(vec![good, bad, doubtful]);
        assert_eq!(report.verdict, Verdict::Bad);
        let text = report.text();
        assert!(text.contains("mend: stop it\n") && text.contains("mend: give --bootstrap\n"), "{text}");
        assert!(text.ends_with("\n1 bad, 1 doubtful\n"), "{text}");
        let json = serde_json::to_value(&report).expect("it can be written");
        assert_eq!(json["verdict"], "bad");
        assert_eq!(json["findings"][0]["mend"], serde_json::Value::Null);
        assert_eq!(json["findings"][1]["check"], "port");
        assert_eq!(json["findings"][1]["verdict"], "bad");
    }
}
