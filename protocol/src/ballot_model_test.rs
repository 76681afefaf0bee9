//! The voting core under a model checker: every interleaving of three voters with crashes, restarts from the vote
//! state, losses and reorderings, up to a stated depth.

use super::tests::{Value, vote_state};
use super::{Ballot, Said};
use crate::NodeId;
use crate::mutation::{self, Mutation};
use crate::quorum::Quorum;
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::BTreeSet;

const VOTERS: usize = 3;
/// No voter goes beyond this ballot: two are enough for a decision to be overturned.
const BALLOTS: u32 = 2;

/// The estimate and the vote that a vote state holds.
type Written = (Said<Value>, Option<Said<Value>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    voters: Vec<Option<Ballot<Value>>>,
    vote_states: Vec<Option<Written>>,
    /// All statements ever made: a message may arrive late, twice, in any order, or never.
    said: BTreeSet<(usize, Said<Value>)>,
    decided: BTreeSet<Value>,
    crashes: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Propose(usize),
    Hear(usize, usize, Said<Value>),
    /// Concludes from what was heard, writes and sends.
    Say(usize),
    Crash(usize),
    Restart(usize),
}

struct Voting {
    inputs: [Value; VOTERS],
    crashes: u8,
    mutation: Option<Mutation>,
    /// Concludes as soon as it hears something, which reaches further in the same number of steps. Otherwise it may
    /// hear more before it does.
    eager: bool,
    quorum: Quorum,
}

fn id(index: usize) -> NodeId {
    NodeId([index as u8 + 1; 32])
}

impl Voting {
    fn new(inputs: [Value; VOTERS], crashes: u8, eager: bool) -> Self {
        let quorum = Quorum::new((0..VOTERS).map(|i| (id(i), 0)).collect());
        Self { inputs, crashes, mutation: None, eager, quorum }
    }

    fn conclude(&self, state: &mut State, at: usize) -> Option<()> {
        let voter = state.voters[at].as_mut()?;
        // The checker's threads are its own, so that the bug is chosen here.
        mutation::with(self.mutation, || voter.advance(&self.quorum, |_| true, &Value::Skip, false));
        state.decided.extend(voter.decided().map(|(_, value)| *value));
        if voter.pending()?.0.ballot > BALLOTS {
            return None;
        }
        let said = voter.say()?;
        state.vote_states[at] = vote_state(voter);
        state.said.insert((at, said));
        Some(())
    }
}

impl Model for Voting {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let voters = (0..VOTERS).map(|at| Some(Ballot::new(id(at)))).collect();
        let (said, decided) = (BTreeSet::new(), BTreeSet::new());
        vec![State { voters, vote_states: vec![None; VOTERS], said, decided, crashes: 0 }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, voter) in state.voters.iter().enumerate() {
            let Some(voter) = voter else {
                actions.push(Action::Restart(at));
                continue;
            };
            if voter.said().is_none() {
                actions.push(Action::Propose(at));
            }
            let others = state.said.iter().filter(|(from, _)| *from != at);
            actions.extend(others.map(|(from, said)| Action::Hear(at, *from, said.clone())));
            if !self.eager {
                actions.push(Action::Say(at));
            }
            if state.crashes < self.crashes {
                actions.push(Action::Crash(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Propose(at) => {
                state.voters[at].as_mut()?.propose(self.inputs[at]);
                self.conclude(&mut state, at)?;
            }
            Action::Hear(at, from, said) => {
                state.voters[at].as_mut()?.hear(id(from), said);
                if self.eager {
                    self.conclude(&mut state, at);
                }
            }
            Action::Say(at) => self.conclude(&mut state, at).or((state.decided != last.decided).then_some(()))?,
            Action::Crash(at) => {
                state.voters[at] = None;
                state.crashes += 1;
            }
            Action::Restart(at) => {
                let ballot = match state.vote_states[at].clone() {
                    Some((estimate, vote)) => Ballot::resume(id(at), estimate, vote),
                    None => Ballot::new(id(at)),
                };
                state.voters[at] = Some(ballot);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one value is decided", |_, state: &State| state.decided.len() <= 1),
            Property::sometimes("a commit is decided", |_, state: &State| state.decided.contains(&Value::Commit(1))),
            Property::sometimes("the skip is decided", |_, state: &State| state.decided.contains(&Value::Skip)),
        ]
    }
}

/// Checks every state within `depth` steps: whether two values can be decided, and how many states there are.
fn explore(model: Voting, depth: usize) -> (bool, usize) {
    let complete = model.mutation.is_none() && model.crashes == 0;
    let checker = model.checker().target_max_depth(depth).threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let decides = checker.discovery("a commit is decided").is_some();
    assert!(!complete || decides, "depth {depth} is deep enough for a decision");
    (checker.discovery("one value is decided").is_some(), checker.unique_state_count())
}

const C: Value = Value::Commit(1);
const S: Value = Value::Skip;

#[test]
fn no_interleaving_decides_two_values() {
    let lazy = [([C, C, S], 0, 16), ([C, S, S], 0, 16), ([C, C, S], 1, 14), ([C, C, C], 2, 13)];
    let eager = [([C, C, S], 0, 12), ([C, S, S], 0, 12), ([C, S, S], 1, 11), ([C, C, S], 2, 10)];
    for (inputs, crashes, depth, eager) in
        lazy.map(|(i, c, d)| (i, c, d, false)).into_iter().chain(eager.map(|(i, c, d)| (i, c, d, true)))
    {
        let (broken, states) = explore(Voting::new(inputs, crashes, eager), depth);
        println!("{inputs:?}, {crashes} crashes, eager: {eager}, depth {depth}: {states} states");
        assert!(!broken);
    }
}

/// The checker would find what the rule prevents.
#[test]
fn a_broken_rule_decides_two_values() {
    for (mutation, eager, depth) in [(Mutation::CountTwice, false, 12), (Mutation::IgnoreSeenVote, true, 14)] {
        let model = Voting { mutation: Some(mutation), ..Voting::new([C, S, S], 0, eager) };
        let (broken, states) = explore(model, depth);
        println!("{}: found among {states} states", mutation.name());
        assert!(broken, "{mutation:?}");
    }
}
