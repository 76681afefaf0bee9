//! Amendments that the operator hands in (`starling change`, `starling agree`), and the terms in force.

use super::driver::Driver;
use crate::exit::Failure;
use crate::watch::status::{AmendedStatus, Answer, Change, ProposalStatus};
use starling_protocol::amendment::{Amendment, Changes, NotAmended};
use starling_protocol::engine::io::Input;
use starling_protocol::{Digest, wire};
use std::collections::BTreeMap;

/// The file in a node's folder with an amendment that its operator has handed in, until a record holds it or another
/// one of its number.
pub const AMENDMENT_FILE: &str = "amendment";

impl Driver {
    /// Makes the next amendment of the run, and hands it in.
    pub(super) fn change(&mut self, change: &Change) -> Answer {
        let Some(head) = self.engine.head() else { return refused(&NotAmended::NoRecord) };
        if change.from > 0 && change.from <= head.round {
            let round = head.round;
            let message = format!(
                "--from-round {}: that round is over, {round} rounds are committed; give `--from-round next`",
                change.from
            );
            return Answer::Error { message };
        }
        let settings = head.next.settings;
        let amendment = self.settings.ticket.amend(&self.spec, &settings, change.from, change.changes);
        self.hand_in(amendment)
    }

    /// Hands in an amendment that this node has heard of, by the beginning of its name.
    pub(super) fn agree(&mut self, name: &str) -> Answer {
        let known = self.engine.proposals().into_iter();
        let named = known.filter(|(known, ..)| known.to_string().starts_with(name)).map(|(_, known, _)| known);
        let named: Vec<Amendment> = named.collect();
        match <[Amendment; 1]>::try_from(named) {
            Ok([amendment]) => self.hand_in(amendment),
            Err(named) if named.is_empty() => Answer::Error {
                message: format!(
                    "no amendment {name} waits here: `starling status` lists those that do, and one that is in force waits \
                     no more"
                ),
            },
            Err(_) => Answer::Error { message: format!("several amendments begin with {name}: give more digits") },
        }
    }

    fn hand_in(&mut self, amendment: Amendment) -> Answer {
        if let Err(why) = self.engine.check_amendment(&amendment) {
            return refused(&why);
        }
        let answer = Answer::Amendment {
            id: amendment.name(&self.run).to_string(),
            number: amendment.number,
            bytes: data_encoding::HEXLOWER.encode(&wire::encode_amendment(&amendment)),
            agreed_by_all: self.spec.creator.is_some(),
        };
        self.later(Input::Amend { amendment });
        answer
    }

    /// Hands in the amendment that the folder holds: the node may have ended before a record held it, and a run that is
    /// over goes on by it. The file goes when it is of no use any more.
    pub(super) async fn hand_in_kept(&mut self) -> Result<(), Failure> {
        let path = self.settings.home.join(AMENDMENT_FILE);
        let Ok(bytes) = std::fs::read(&path) else { return Ok(()) };
        let checked = wire::decode_amendment(&bytes).map(|kept| (self.engine.check_amendment(&kept), kept));
        match checked {
            Ok((Ok(()), amendment)) => self.feed(Input::Amend { amendment }).await,
            Ok((Err(NotAmended::NoRecord), _)) => Ok(()),
            Ok((Err(why), _)) => {
                tracing::debug!("the amendment in {} is of no use any more: {why}", path.display());
                let _ = std::fs::remove_file(&path);
                Ok(())
            }
            Err(error) => {
                tracing::warn!("the amendment in {} does not decode: {error}", path.display());
                Ok(())
            }
        }
    }

    /// Has the screen count with the budget that is in force.
    pub(super) fn show_budget(&mut self) {
        let budget = self.engine.in_force().budget.clone();
        self.screen.fly(&self.spec.name, budget.rounds, budget.tokens);
    }

    /// The amendments that are in force, if there are any.
    pub(super) fn amended_status(&self) -> Option<AmendedStatus> {
        let settings = self.engine.head()?.next.settings;
        (settings.amendments > 0).then(|| AmendedStatus {
            number: settings.amendments,
            id: settings.newest.to_string(),
            changes: texts(&settings.changes),
        })
    }

    /// Amendments that no record holds yet.
    pub(super) fn proposal_status(&self) -> Vec<ProposalStatus> {
        let row = |(name, amendment, agreed): (Digest, Amendment, bool)| ProposalStatus {
            id: name.to_string(),
            number: amendment.number,
            from_round: amendment.from,
            changes: texts(&amendment.changes),
            agreed,
            by_creator: amendment.signature.is_some(),
        };
        self.engine.proposals().into_iter().map(row).collect()
    }
}

/// Changed values by their keys.
fn texts(changes: &Changes) -> BTreeMap<String, String> {
    changes.entries().into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn refused(why: &NotAmended) -> Answer {
    Answer::Error { message: why.to_string() }
}
