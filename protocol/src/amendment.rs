//! Amendments: what may change in a run, and who may say so (`docs/protocol/5-membership.md` §5.8).
//!
//! A record holds at most one amendment. Its `next.settings` has the newest one's name and the sum of all changes so
//! far. So the terms in force follow from the run's specification and any one record, and a newcomer needs no other.

use crate::Digest;
use crate::identity::{Signature, Signer, Verifier};
use crate::limits::AMENDMENT_BYTES_MAX;
use crate::mutation::{Mutation, mutated};
use crate::run::{Minority, RunSpec};
use crate::wire::{ShapeError, WireError, binary};
use serde::{Deserialize, Serialize};

/// It also keeps the bytes signed under it from meaning anything as a control message.
const AMENDMENT_DOMAIN: &str = "starling amendment v1";

/// New values of a run's terms. All that is not here never changes in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Changes {
    pub rounds: Option<u64>,
    pub tokens: Option<u64>,
    pub lr: Option<f64>,
    pub lr_final: Option<f64>,
    pub warmup_steps: Option<u32>,
    pub weight_decay: Option<f64>,
    pub clip: Option<f64>,
    pub minority: Option<Minority>,
    pub grace_ms: Option<u32>,
    pub patience_ms: Option<u32>,
    pub share: Option<u32>,
}

/// The amendments of a lineage so far, as its records carry them along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The number of amendments, and the name of the newest; zero without one.
    pub amendments: u32,
    pub newest: Digest,
    /// All changes; of two changes of one value the later one counts.
    pub changes: Changes,
}

/// "From this round on the run's terms are these": the word of the run's creator, or, in a run without one, of each
/// voter that states it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Amendment {
    /// Its place among the amendments of a lineage, from 1.
    pub number: u32,
    /// The name of the amendment before; zero in the first.
    pub before: Digest,
    /// The first round that it may be in force in; 0 = the next.
    pub from: u64,
    pub changes: Changes,
    /// The creator's signature over its name; none in a run without a creator.
    pub signature: Option<[[u8; 32]; 2]>,
}

/// Why an amendment does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAmended {
    #[error("it changes nothing: name at least one key with its new value")]
    Empty,
    #[error(
        "it is made for amendment {number} of the run, and the next one is {next}, after what the run's records hold: \
         make it anew"
    )]
    NotNext { number: u32, next: u32 },
    #[error("another amendment of the run is on its way: wait until `starling status` shows it as in force")]
    OneAtATime,
    #[error("only the run's creator (`creator` in the run file) may amend this run: do it on its node")]
    NotCreators,
    #[error("this run has no creator whose signature could count: its voters' operators agree (`starling agree`)")]
    NoCreator,
    #[error("the run cannot have these terms: {0}")]
    Values(String),
    #[error("this node has no record of the run yet, after which an amendment could stand: wait until it has")]
    NoRecord,
    #[error("this node has no seat in the run from which others would hear it: wait until `starling status` shows one")]
    NoSeat,
    #[error("this node has stopped, since two records of the run contradict each other: see `starling status`")]
    Frozen,
}

/// The one byte string of an amendment.
pub fn encode_amendment(amendment: &Amendment) -> Vec<u8> {
    binary::encode(amendment)
}

/// Decodes an amendment from outside bytes. [`Amendment::check`] and [`Amendment::is_authorised`] decide whether it
/// counts.
pub fn decode_amendment(bytes: &[u8]) -> Result<Amendment, WireError> {
    let amendment: Amendment = binary::decode::<_, AMENDMENT_BYTES_MAX>("amendment", bytes)?;
    let shape = amendment.validate_shape();
    shape.map_err(|error| WireError::Invalid { what: "amendment", detail: error.to_string() })?;
    Ok(amendment)
}

impl Changes {
    /// The specification with these values in place of its own.
    pub fn apply(&self, spec: &RunSpec) -> RunSpec {
        let Self { rounds, tokens, lr, lr_final, warmup_steps, weight_decay, clip, .. } = *self;
        let mut changed = spec.clone();
        replace(&mut changed.budget.rounds, rounds);
        replace(&mut changed.budget.tokens, tokens);
        replace(&mut changed.inner.lr, lr);
        replace(&mut changed.inner.lr_final, lr_final);
        replace(&mut changed.inner.warmup_steps, warmup_steps);
        replace(&mut changed.inner.weight_decay, weight_decay);
        replace(&mut changed.inner.clip, clip);
        replace(&mut changed.partition.minority, self.minority);
        replace(&mut changed.partition.grace_ms, self.grace_ms);
        replace(&mut changed.join.patience_ms, self.patience_ms);
        replace(&mut changed.join.share, self.share);
        changed
    }

    /// These changes, and then later ones.
    pub fn then(&self, later: &Self) -> Self {
        Self {
            rounds: later.rounds.or(self.rounds),
            tokens: later.tokens.or(self.tokens),
            lr: later.lr.or(self.lr),
            lr_final: later.lr_final.or(self.lr_final),
            warmup_steps: later.warmup_steps.or(self.warmup_steps),
            weight_decay: later.weight_decay.or(self.weight_decay),
            clip: later.clip.or(self.clip),
            minority: later.minority.or(self.minority),
            grace_ms: later.grace_ms.or(self.grace_ms),
            patience_ms: later.patience_ms.or(self.patience_ms),
            share: later.share.or(self.share),
        }
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The changed values as text, each under its key of the run file.
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        fn number<T: ToString>(value: Option<T>) -> Option<String> {
            value.map(|value| value.to_string())
        }
        // Debug prints the shortest text that reads back as the same float.
        let float = |value: Option<f64>| value.map(|value| format!("{value:?}"));
        let seconds = |millis: Option<u32>| millis.map(|millis| (f64::from(millis) / 1_000.0).to_string());
        let all = [
            ("budget.rounds", number(self.rounds)),
            ("budget.tokens", number(self.tokens)),
            ("inner.lr", float(self.lr)),
            ("inner.lr_final", float(self.lr_final)),
            ("inner.warmup_steps", number(self.warmup_steps)),
            ("inner.weight_decay", float(self.weight_decay)),
            ("inner.clip", float(self.clip)),
            ("partition.minority", number(self.minority)),
            ("partition.grace_s", seconds(self.grace_ms)),
            ("join.patience_s", seconds(self.patience_ms)),
            ("join.share", number(self.share)),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }
}

fn replace<T>(target: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *target = value;
    }
}

impl Settings {
    /// The run's terms after these amendments: they are in force in the round after the record that has them.
    pub fn in_force(&self, spec: &RunSpec) -> RunSpec {
        self.changes.apply(spec)
    }

    /// The settings after one more amendment.
    pub fn after(&self, amendment: &Amendment, run: &Digest) -> Self {
        Self {
            amendments: self.amendments.saturating_add(1),
            newest: amendment.name(run),
            changes: self.changes.then(&amendment.changes),
        }
    }
}

impl Amendment {
    /// The next amendment of a lineage with these settings, without a signature.
    pub fn next(settings: &Settings, from: u64, changes: Changes) -> Self {
        let (number, before) = (settings.amendments.saturating_add(1), settings.newest);
        Self { number, before, from, changes, signature: None }
    }

    /// Its name in records and for people: of its terms, so that an amendment signed twice is one amendment.
    pub fn name(&self, run: &Digest) -> Digest {
        let Self { number, before, from, changes, signature: _ } = self;
        let changes = binary::encode(changes);
        Digest::of(AMENDMENT_DOMAIN, &[&run.0, &number.to_le_bytes(), &before.0, &from.to_le_bytes(), &changes])
    }

    /// The same with the signature of the run's creator.
    pub fn sign(self, signer: &dyn Signer, run: &Digest) -> Self {
        let signature = signer.sign(&self.name(run).0).halves();
        Self { signature: Some(signature), ..self }
    }

    /// Whether the run's creator signed it; in a run without one, whether it is unsigned, as it has to be.
    pub fn is_authorised(&self, verifier: &dyn Verifier, spec: &RunSpec, run: &Digest) -> bool {
        match (&spec.creator, &self.signature) {
            (Some(creator), Some(halves)) => {
                let signature = Signature::whole(halves);
                verifier.verify(creator, &self.name(run).0, &signature) || mutated!(Mutation::AnybodyAmends)
            }
            (None, None) => true,
            _ => mutated!(Mutation::AnybodyAmends),
        }
    }

    /// Whether it is the next one of a lineage with these settings.
    pub fn follows(&self, settings: &Settings) -> bool {
        let next = settings.amendments.checked_add(1) == Some(self.number) && self.before == settings.newest;
        let again = self.number == settings.amendments && mutated!(Mutation::AmendTwice);
        next || again
    }

    /// Whether the record of this round may hold it, so that it is in force in the round after.
    pub fn is_due(&self, round: u64) -> bool {
        self.from <= round.saturating_add(1)
    }

    /// Checks that it can stand after these settings, whoever says so.
    ///
    /// # Errors
    /// The first reason why it does not.
    pub fn check(&self, spec: &RunSpec, settings: &Settings) -> Result<(), NotAmended> {
        if self.changes.is_empty() {
            return Err(NotAmended::Empty);
        }
        if !self.follows(settings) {
            let next = settings.amendments.saturating_add(1);
            return Err(NotAmended::NotNext { number: self.number, next });
        }
        let valid = self.changes.apply(&settings.in_force(spec)).validate();
        match valid {
            Err(error) if !mutated!(Mutation::AmendAnyValue) => Err(NotAmended::Values(error.to_string())),
            _ => Ok(()),
        }
    }

    /// Checks what shows without the run: it changes something, and its numbers are numbers.
    pub(crate) fn validate_shape(&self) -> Result<(), ShapeError> {
        let rule = |holds: bool, must| if holds { Ok(()) } else { Err(ShapeError::Rule { what: "amendment", must }) };
        rule(self.number > 0, "have a number from 1 on")?;
        rule(!self.changes.is_empty(), "change something")?;
        let Changes { lr, lr_final, weight_decay, clip, .. } = self.changes;
        let good = |value: f64| value.is_finite() && !value.is_sign_negative();
        let floats = [lr, lr_final, weight_decay, clip].into_iter().flatten().all(good);
        rule(floats, "have finite numbers that are not negative")
    }
}

#[cfg(test)]
#[path = "amendment_test.rs"]
mod tests;
