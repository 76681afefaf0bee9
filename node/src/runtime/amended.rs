//! The amendments that are in force in the run of a node's folder.

use crate::watch::status::{AmendedStatus, Answer, Question, ask, is_running};
use starling_protocol::amendment::{Changes, Settings};
use starling_protocol::run::RunSpec;
use starling_protocol::wire;
use starling_store::{Run, Store, StoreOptions};
use std::collections::BTreeMap;
use std::path::Path;

/// The amendments of a record, if there are any.
pub fn of(settings: &Settings) -> Option<AmendedStatus> {
    (settings.amendments > 0).then(|| AmendedStatus {
        number: settings.amendments,
        id: settings.newest.to_string(),
        changes: texts(&settings.changes),
    })
}

/// Changed values by their keys.
pub fn texts(changes: &Changes) -> BTreeMap<String, String> {
    changes.entries().into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A comment to stand below the settings of a run: the values that are in force by its amendments, as far as the folder
/// of its node knows. It is empty for a folder of another run or of none.
pub fn comment(home: &Path, spec: &RunSpec) -> String {
    let here = Run::of_folder(home).and_then(|run| wire::decode_spec(&run.spec).ok());
    // A run file alone does not say the digest of its text.
    let is_this = |here: &RunSpec| *here == RunSpec { data: here.data.clone(), ..spec.clone() };
    if !here.as_ref().is_some_and(is_this) {
        return String::new();
    }
    match in_force(home) {
        Ok(amended) => amended.as_ref().map(below).unwrap_or_default(),
        Err(error) => {
            let why = starling_words::of_chain(error.chain()).replace('\n', " ");
            format!("\n# amendments of the run are not shown: {why}\n")
        }
    }
}

/// The amendments in force, from the running node or from the store of one at rest.
fn in_force(home: &Path) -> anyhow::Result<Option<AmendedStatus>> {
    if is_running(home) {
        return match ask(home, Question::Status)? {
            Answer::Status(status) => Ok(status.amended),
            _ => anyhow::bail!("the node answered another question: update it"),
        };
    }
    let opened = Store::open(home, StoreOptions::default())?;
    if let Some(damage) = opened.damage {
        anyhow::bail!("{damage}");
    }
    Ok(opened.store.head().and_then(|head| of(&head.next.settings)))
}

fn below(amended: &AmendedStatus) -> String {
    let AmendedStatus { number, id, changes } = amended;
    let count = starling_words::count(number, "amendment");
    let rows: String = changes.iter().map(|(key, value)| format!("# {key} = {value}\n")).collect();
    format!("\n# in force in place of what stands above, after {count} of the run (the newest is {id}):\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::Digest;
    use starling_protocol::amendment::Amendment;

    #[test]
    fn what_is_in_force_stands_below_the_settings_and_leaves_them_a_run_file() {
        assert!(of(&Settings::default()).is_none());
        let changes = Changes { rounds: Some(4_000), lr: Some(1e-3), ..Changes::default() };
        let first = Amendment::next(&Settings::default(), 0, changes);
        let settings = Settings::default().after(&first, &Digest([7; 32]));
        let text = below(&of(&settings).expect("one"));
        let name = first.name(&Digest([7; 32]));
        assert!(text.contains(&format!("after 1 amendment of the run (the newest is {name})")), "{text}");
        assert!(text.contains("# budget.rounds = 4000\n# inner.lr = 0.001\n"), "{text}");
        let all: toml::Table = toml::from_str(&format!("name = \"a\"\n{text}")).expect("comments alone");
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn a_folder_of_no_run_has_no_amendments() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(comment(folder.path(), &starling_protocol::sample::spec()), "");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing is made");
    }
}
