//! Names of nodes, which people see beside the ids.

use std::collections::BTreeMap;

/// Names that are kept at a time; further ones are left out until others go.
const NAMES_MAX: usize = 256;
/// Nodes of a list that are shown one by one.
const LISTED_MAX: usize = 4;

/// The first digits of an id: for people, never for comparison.
pub fn short(id: &str) -> String {
    id.chars().take(8).collect()
}

/// The id's first digits, with the name behind them. A name is its bearer's own word, so it never stands alone.
pub fn labelled(id: &str, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{} ({name})", short(id)),
        None => short(id),
    }
}

/// The names of nodes by their full ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(BTreeMap<String, String>);

impl Names {
    /// Notes a name, which is fit to be shown.
    pub fn note(&mut self, id: &str, name: &str) {
        if let Some(known) = self.0.get_mut(id) {
            if known != name {
                *known = name.to_owned();
            }
        } else if self.0.len() < NAMES_MAX {
            self.0.insert(id.to_owned(), name.to_owned());
        }
    }

    /// The id's first digits, and the name if there is one.
    pub fn label(&self, id: &str) -> String {
        labelled(id, self.0.get(id).map(String::as_str))
    }

    /// Several nodes; of many, the first ones and the number of the others.
    pub fn list(&self, ids: &[String]) -> String {
        let mut shown: Vec<String> = ids.iter().take(LISTED_MAX).map(|id| self.label(id)).collect();
        if ids.len() > LISTED_MAX {
            shown.push(format!("{} more", ids.len() - LISTED_MAX));
        }
        match shown.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, before)) => format!("{} and {last}", before.join(", ")),
            None => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("{n:08x}ffffffff")).collect()
    }

    #[test]
    fn a_name_stands_beside_the_id() {
        let mut names = Names::default();
        names.note(&ids(1)[0], "gpu-box");
        assert_eq!(names.label(&ids(1)[0]), "00000000 (gpu-box)");
        names.note(&ids(1)[0], "other-box");
        assert_eq!(names.list(&ids(2)), "00000000 (other-box) and 00000001");
    }

    #[test]
    fn long_lists_are_cut() {
        let names = Names::default();
        assert_eq!(names.list(&[]), "");
        assert_eq!(names.list(&ids(1)), "00000000");
        assert_eq!(names.list(&ids(6)), "00000000, 00000001, 00000002, 00000003 and 2 more");
    }

    #[test]
    fn no_flood_of_names_takes_memory() {
        let mut names = Names::default();
        ids(2 * NAMES_MAX).iter().for_each(|id| names.note(id, "x"));
        assert_eq!(names.0.len(), NAMES_MAX);
        names.note(&ids(1)[0], "y");
        assert_eq!(names.label(&ids(1)[0]), "00000000 (y)");
    }
}
