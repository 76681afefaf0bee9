//! Injected bugs: each has a name and a row, and is there only where it is chosen.

use super::*;

#[test]
fn the_table_of_rules_names_each_bug_once() {
    let table = include_str!("../../docs/rules.md");
    let rows = table.lines().filter_map(|line| line.split('|').nth(3)?.trim().strip_prefix('`')?.strip_suffix('`'));
    let mut named: Vec<&str> = rows.collect();
    named.sort_unstable();
    let mut injected: Vec<String> = Mutation::ALL.iter().map(|mutation| mutation.name()).collect();
    injected.sort_unstable();
    assert_eq!(named, injected);
}

#[test]
fn every_bug_has_a_name_and_is_injected_only_where_it_is_chosen() {
    let names: std::collections::BTreeSet<String> = Mutation::ALL.iter().map(|mutation| mutation.name()).collect();
    assert_eq!(names.len(), Mutation::ALL.len());
    assert!(names.contains("ignore-seen-vote"));
    assert!(!mutated!(Mutation::HalfQuorum));
    with(Some(Mutation::HalfQuorum), || {
        assert!(mutated!(Mutation::HalfQuorum) && !mutated!(Mutation::CountTwice));
        with(None, || assert!(!mutated!(Mutation::HalfQuorum)));
    });
    assert!(!mutated!(Mutation::HalfQuorum));
}
