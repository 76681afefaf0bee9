//! Checks of a message by itself: counts, order and ranges. The engine checks whether it fits the flock's state.

use super::{
    Alive, Estimate, Evidence, Fork, Head, Hello, Message, Question, Ready, Start, StatementKind, Value, ValueKind,
    Vote, Want, Witness,
};
use crate::amendment::Amendment;
use crate::difference::MERGED_TOKENS_MAX;
use crate::limits::{INNER_STEPS_MAX, MEMBERS_MAX, PROTOCOL_VERSION, RUN_SPEC_BYTES_MAX, SAMPLES_MAX, STATEMENTS_MAX};
use crate::limits::{RTTS_MAX, SET_BYTES_MAX, STATEMENT_BYTES_MAX, WANTED_MAX};
use crate::mutation::{Mutation, mutated};
use crate::wire::ShapeError;
use crate::{Digest, NodeId};

impl Message {
    /// Checks counts, order and ranges.
    ///
    /// # Errors
    /// The first rule that the message breaks.
    pub fn validate_shape(&self) -> Result<(), ShapeError> {
        match self {
            Self::Hello(m) => hello(m),
            Self::Ready(m) => ready(m),
            Self::Estimate(Estimate { question, value, .. }) | Self::Vote(Vote { question, value, .. }) => {
                above_zero("seq", question.seq)?;
                for_instance(value, question.instance)
            }
            Self::Start(Start { question, value }) => {
                above_zero("seq", question.seq)?;
                rule(question.instance != Question::RECORD, "instance", "be an attempt's")?;
                for_instance(value, question.instance)
            }
            Self::Fork(Fork { seq, members, .. }) => {
                above_zero("seq", *seq)?;
                set(members)
            }
            Self::Witness(Witness { stamp, .. }) => rule(stamp.phase <= 2, "phase", "be that of an estimate or a vote"),
            Self::Evidence(Evidence { first, second }) => {
                for statement in [first, second] {
                    statement_bytes(statement)?;
                }
                rule(first != second, "statements", "differ")
            }
            Self::Amend(amendment) => amendment.validate_shape(),
            Self::Alive(Alive { boot, newer }) => rule(boot < newer, "newer", "be a later start"),
            Self::Head(Head { pulse, .. }) => {
                rule(pulse.incarnation <= pulse.boot, "incarnation", "be no later than boot")?;
                if pulse.down.is_empty() { Ok(()) } else { set(&pulse.down) }
            }
            Self::Want(Want { round, members, .. }) => {
                above_zero("round", *round)?;
                set(members)?;
                let count = members.iter().map(|byte| byte.count_ones() as usize).sum();
                let limit = WANTED_MAX;
                if count > limit { Err(ShapeError::TooMany { what: "members", count, limit }) } else { Ok(()) }
            }
            Self::Join(_) | Self::Leave(_) | Self::Certificate(_) => Ok(()),
        }
    }
}

fn statement_bytes(bytes: &[u8]) -> Result<(), ShapeError> {
    if bytes.len() > STATEMENT_BYTES_MAX {
        return Err(ShapeError::TooMany { what: "statement", count: bytes.len(), limit: STATEMENT_BYTES_MAX });
    }
    if bytes.is_empty() { Err(ShapeError::Empty { what: "statement" }) } else { Ok(()) }
}

fn above_zero(what: &'static str, value: u64) -> Result<(), ShapeError> {
    if value == 0 { Err(ShapeError::OutOfRange { what, value, must: "at least 1" }) } else { Ok(()) }
}

fn rule(holds: bool, what: &'static str, must: &'static str) -> Result<(), ShapeError> {
    if holds { Ok(()) } else { Err(ShapeError::Rule { what, must }) }
}

fn hello(hello: &Hello) -> Result<(), ShapeError> {
    if hello.version != PROTOCOL_VERSION {
        let must = "the version of the envelope around it";
        return Err(ShapeError::OutOfRange { what: "version", value: hello.version.into(), must });
    }
    if hello.spec.is_empty() {
        return Err(ShapeError::Empty { what: "spec" });
    }
    if hello.spec.len() > RUN_SPEC_BYTES_MAX {
        return Err(ShapeError::TooMany { what: "spec", count: hello.spec.len(), limit: RUN_SPEC_BYTES_MAX });
    }
    rule(hello.incarnation <= hello.boot, "incarnation", "be no later than boot")
}

fn ready(ready: &Ready) -> Result<(), ShapeError> {
    let bounded = |what, value: u64, most: u64, must| {
        if value == 0 || value > most { Err(ShapeError::OutOfRange { what, value, must }) } else { Ok(()) }
    };
    bounded("round", ready.round, u64::MAX, "at least 1")?;
    bounded("samples", ready.samples, SAMPLES_MAX, "between 1 and SAMPLES_MAX")?;
    bounded("tokens", ready.tokens, u64::MAX >> 8, "between 1 and 2^56")?;
    bounded("steps", ready.steps.into(), INNER_STEPS_MAX.into(), "between 1 and INNER_STEPS_MAX")?;
    let merged = ready.merged_tokens <= MERGED_TOKENS_MAX && (ready.merged_tokens > 0) == ready.merges.is_some();
    rule(merged, "merged_tokens", "be between 1 and 2^56 where a lineage is merged, and 0 where none is")?;
    rule(ready.start.checked_add(ready.samples).is_some(), "start", "leave room for the samples below 2^64")?;
    ready.amends.as_deref().map_or(Ok(()), Amendment::validate_shape)?;
    let norm = f32::from_bits(ready.measured.norm_bits);
    let good = norm.is_finite() && !norm.is_sign_negative();
    rule(good || mutated!(Mutation::AcceptAnyNorm), "norm", "be finite and not negative")?;
    if ready.statements.len() > STATEMENTS_MAX {
        let count = ready.statements.len();
        return Err(ShapeError::TooMany { what: "statements", count, limit: STATEMENTS_MAX });
    }
    rule(ready.statements.windows(2).all(|pair| pair[0] < pair[1]), "statements", "ascend without repeats")?;
    for statement in &ready.statements {
        let plain = statement.kind == StatementKind::Joins || statement.incarnation == 0;
        rule(plain, "statements", "name an incarnation in joins only")?;
        let free = statement.kind != StatementKind::Suspect || statement.grant == Digest::default();
        rule(free, "statements", "name no ticket in a suspicion")?;
        let one = statement.kind != StatementKind::Revoked
            || (statement.id == NodeId([0; 32])) != (statement.grant == Digest::default());
        rule(one, "statements", "revoke either an identity or a ticket")?;
    }
    if ready.rtts.len() > RTTS_MAX {
        return Err(ShapeError::TooMany { what: "rtts", count: ready.rtts.len(), limit: RTTS_MAX });
    }
    let ascend = ready.rtts.windows(2).all(|pair| pair[0].peer < pair[1].peer);
    let known = ready.rtts.iter().all(|rtt| usize::from(rtt.peer) < MEMBERS_MAX);
    rule(ascend && known, "rtts", "ascend by member without repeats")
}

fn set(members: &[u8]) -> Result<(), ShapeError> {
    if members.len() > SET_BYTES_MAX {
        return Err(ShapeError::TooMany { what: "members", count: members.len(), limit: SET_BYTES_MAX });
    }
    let last = members.last().ok_or(ShapeError::Empty { what: "members" })?;
    rule(*last != 0, "members", "not end in a zero byte")
}

fn for_instance(value: &Value, instance: u32) -> Result<(), ShapeError> {
    let none = Digest::default();
    if instance != Question::RECORD {
        above_zero("instance", instance.into())?;
        rule(value.kind == ValueKind::Set, "value", "be a set in a vote on a set")?;
        rule(value.attempt == instance, "attempt", "be the one that is voted on")?;
        rule(value.set == value.digest, "set", "be the value itself")?;
        set(&value.members)?;
        let count = value.members.iter().map(|byte| byte.count_ones()).sum::<u32>();
        return rule(count == value.contributors, "contributors", "be as many as the set has");
    }
    rule(value.kind != ValueKind::Set, "value", "be a record in a vote on a record")?;
    rule(value.members.is_empty(), "members", "be empty in a record")?;
    if value.kind == ValueKind::Skip {
        let bare = (value.tokens, value.contributors, value.attempt, value.set) == (0, 0, 0, none);
        return rule(bare, "value", "have no parameters in a SKIP");
    }
    let full = value.tokens > 0 && value.contributors > 0 && value.set != none;
    rule(full, "value", "name tokens, contributors and a set in a COMMIT")
}
