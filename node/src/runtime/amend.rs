//! Amendments that the operator hands in (`starling change`, `starling agree`), and the terms in force.

use super::amended::{self, texts};
use super::driver::Driver;
use super::waiting::{self, Fate, Stage};
use crate::exit::{Code, Failure};
use crate::watch::status::{AmendedStatus, Answer, Change, ProposalStatus};
use starling_protocol::Digest;
use starling_protocol::amendment::{Amendment, NotAmended};
use starling_protocol::engine::io::Input;

impl Driver {
    /// Makes the next amendment of the run, and hands it in.
    pub(super) fn change(&mut self, change: &Change) -> Answer {
        let Some(head) = self.engine.head() else { return self.not_amended(&NotAmended::NoRecord) };
        let settings = head.next.settings;
        // One that was left while the node did not run, and that could not be handed in after the end of the run.
        let left = waiting::read(&self.settings.home, Stage::Left).ok().flatten();
        let left = left.filter(|left| left.follows(&settings));
        let changes = left.map_or(change.changes, |left| left.changes.then(&change.changes));
        if let Some(why) = waiting::never(&self.spec, head, change.from, &changes) {
            return Answer::failed(Code::Usage, why);
        }
        if waiting::is_idle(&self.spec, head, &changes) {
            let why = "the run is over, so that this would never be in force: add to its budget, too (rounds=...)";
            return Answer::failed(Code::Usage, why);
        }
        let amendment = self.settings.ticket.amend(&self.spec, &settings, change.from, changes);
        self.hand_in(amendment)
    }

    /// Hands in an amendment that this node has heard of, by the beginning of its name.
    pub(super) fn agree(&mut self, name: &str) -> Answer {
        let known = self.engine.proposals().into_iter();
        let named = known.filter(|(known, ..)| known.to_string().starts_with(name)).map(|(_, known, _)| known);
        let named: Vec<Amendment> = named.collect();
        match <[Amendment; 1]>::try_from(named) {
            Ok([amendment]) => self.hand_in(amendment),
            Err(named) if named.is_empty() => Answer::refused(format!(
                "no amendment {name} waits here: `starling status` lists those that do, and one that is in force waits \
                 no more"
            )),
            Err(_) => Answer::refused(format!("several amendments begin with {name}: give more digits")),
        }
    }

    fn hand_in(&mut self, amendment: Amendment) -> Answer {
        if let Err(why) = self.engine.check_amendment(&amendment) {
            return self.not_amended(&why);
        }
        // A node that ends before a record holds it hands it in again.
        if let Err(error) = waiting::hand_in(&self.settings.home, &amendment) {
            let failure = Failure::from(error);
            let why = starling_words::of_chain(failure.error.chain());
            return Answer::failed(failure.code, format!("the amendment was not handed in: {why}"));
        }
        let (name, proposals) = (amendment.name(&self.run), self.engine.proposals());
        let answer = Answer::Amendment {
            id: name.to_string(),
            number: amendment.number,
            agreed_by_all: self.spec.creator.is_some(),
            instead_of: waiting::agreed_before(&proposals, &name).map(|before| before.to_string()),
        };
        self.later(Input::Amend { amendment });
        answer
    }

    /// The refusal of an amendment, in the words of this node.
    fn not_amended(&self, why: &NotAmended) -> Answer {
        let other = if *why == NotAmended::OneAtATime { self.one_waits() } else { None };
        Answer::failed(waiting::code(why), other.unwrap_or_else(|| why.to_string()))
    }

    /// The words for an amendment while another one waits.
    fn one_waits(&self) -> Option<String> {
        let proposals = self.engine.proposals();
        let head = self.engine.head()?;
        let (_, other, _) = proposals.iter().find(|(_, other, _)| waiting::is_due(other, head))?;
        Some(waiting::in_the_way((&self.spec, head), other, &self.settings.home, true))
    }

    /// Hands in the amendment that the folder holds: one that was left there while the node did not run, or one that no
    /// record held yet when the node ended. A run that is over goes on by it. A file of no use goes; one that cannot be
    /// read is told of at the start.
    pub(super) fn hand_in_kept(&mut self, starts: bool) {
        for stage in [Stage::Left, Stage::HandedIn] {
            match waiting::read(&self.settings.home, stage) {
                Ok(None) => {}
                Ok(Some(kept)) => {
                    if self.hand_in_of(stage, kept) {
                        return;
                    }
                }
                Err(error) if starts => tracing::warn!("{}", starling_words::of_chain(error.chain())),
                Err(_) => {}
            }
        }
    }

    /// Hands in an amendment of the folder if it is time to; returns whether it was handed in.
    fn hand_in_of(&mut self, stage: Stage, kept: Amendment) -> bool {
        let (home, name) = (&self.settings.home, kept.name(&self.run));
        let known = self.engine.proposals().iter().any(|(known, ..)| *known == name);
        let idle = self.engine.head().is_some_and(|head| waiting::is_idle(&self.spec, head, &kept.changes));
        match waiting::fate(self.engine.check_amendment(&kept), known, idle) {
            Fate::Stays => return false,
            Fate::Goes(why) => {
                match stage {
                    Stage::Left => {
                        tracing::warn!("the amendment {} that was left here cannot count: {why}", name.short());
                    }
                    Stage::HandedIn => tracing::debug!("the amendment {} waits no more: {why}", name.short()),
                }
                waiting::forget(home, stage);
                return false;
            }
            Fate::HandIn => {}
        }
        if stage == Stage::Left
            && let Err(error) = waiting::hand_in(home, &kept)
        {
            let why = starling_words::of_chain(error.chain());
            tracing::warn!("the amendment {} was not handed in: {why}", name.short());
            return false;
        }
        self.later(Input::Amend { amendment: kept });
        true
    }

    /// Has the screen count with the budget that is in force.
    pub(super) fn show_budget(&mut self) {
        let budget = self.engine.in_force().budget.clone();
        self.screen.fly(&self.spec.name, (budget.rounds, budget.tokens), self.spec.task.is_none());
    }

    /// The amendments that are in force, if there are any.
    pub(super) fn amended_status(&self) -> Option<AmendedStatus> {
        amended::of(&self.engine.head()?.next.settings)
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
