//! Planted bugs: each has a name and a row, and is there only where it is chosen.

use super::*;

#[test]
fn the_table_of_rules_names_each_bug_once() {
    let table = include_str!("../../docs/rules.md");
    let rows = table.lines().filter_map(|line| line.split('|').nth(3)?.trim().strip_prefix('`')?.strip_suffix('`'));
    let mut named: Vec<&str> = rows.collect();
    named.sort_unstable();
    let mut planted: Vec<String> = Plant::ALL.iter().map(|plant| plant.name()).collect();
    planted.sort_unstable();
    assert_eq!(named, planted);
}

#[test]
fn every_bug_has_a_name_and_is_planted_only_where_it_is_chosen() {
    let names: std::collections::BTreeSet<String> = Plant::ALL.iter().map(|plant| plant.name()).collect();
    assert_eq!(names.len(), Plant::ALL.len());
    assert!(names.contains("ignore-seen-vote"));
    assert!(!planted!(Plant::HalfQuorum));
    with(Some(Plant::HalfQuorum), || {
        assert!(planted!(Plant::HalfQuorum) && !planted!(Plant::CountTwice));
        with(None, || assert!(!planted!(Plant::HalfQuorum)));
    });
    assert!(!planted!(Plant::HalfQuorum));
}
