//! Names of nodes, which people see beside the ids.

use std::collections::{BTreeMap, BTreeSet};

/// Names that are kept at a time. If there are more, those of nodes that are not here go.
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

    /// Takes the names of nodes that are here. One that has none there has given it up. If no room is left, names of
    /// nodes that are not here go, but for that of this node.
    pub fn here(&mut self, own: &str, nodes: &[(String, Option<String>)]) {
        for (id, name) in nodes {
            match name {
                Some(name) => self.note(id, name),
                None => drop(self.0.remove(id)),
            }
        }
        if self.0.len() < NAMES_MAX {
            return;
        }
        let here: BTreeSet<&str> = nodes.iter().map(|(id, _)| id.as_str()).chain([own]).collect();
        self.0.retain(|id, _| here.contains(id.as_str()));
        for (id, name) in nodes {
            if let Some(name) = name {
                self.note(id, name);
            }
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

    #[test]
    fn nodes_that_are_here_take_the_place_of_those_that_have_gone() {
        let (mut names, ids) = (Names::default(), ids(NAMES_MAX + 2));
        let (own, newcomer) = (&ids[0], &ids[NAMES_MAX + 1]);
        ids.iter().for_each(|id| names.note(id, "x"));
        assert_eq!(names.label(newcomer), short(newcomer), "no room yet");
        let here = |name: Option<&str>| [(newcomer.clone(), name.map(str::to_owned))];
        names.here(own, &here(Some("attic")));
        assert_eq!(names.label(newcomer), labelled(newcomer, Some("attic")));
        assert_eq!((names.label(own), names.0.len()), (labelled(own, Some("x")), 2));
        names.here(own, &here(None));
        assert_eq!(names.label(newcomer), short(newcomer), "it has no name any more");
    }
}
