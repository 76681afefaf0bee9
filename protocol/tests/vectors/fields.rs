//! Wire types, with the names of `docs/protocol/1-wire.md` and `docs/protocol/2-records.md`.

use crate::json::{Json, hex, object};
use starling_protocol::amendment::{Amendment, Changes, Settings};
use starling_protocol::engine::succession::SignedReady;
use starling_protocol::message::{Ready, Statement, Value};
use starling_protocol::record::{Contributor, Measured, Member, Record, Span};
use starling_protocol::run::{Codec, RunSpec};
use starling_protocol::wire;

/// The name of `protocol/vectors/codec.txt`.
pub fn codec(codec: Codec) -> Json {
    match codec {
        Codec::TopK { k } => Json::from(format!("top-{k}")),
        fixed => Json::from(fixed.name()),
    }
}

/// The bytes of a specification, and its values on which the cases depend.
pub fn run(spec: &RunSpec) -> Json {
    object! {
        "spec": hex(&wire::encode_spec(spec)),
        "digest": spec.digest(),
        "inner_steps": spec.inner.steps,
        "unit": spec.inner.samples(1),
        "codec": codec(spec.sync.codec),
        "engine": spec.sync.engine.name(),
        "probation": spec.admission.probation,
        "parameters": spec.model.parameters(),
    }
}

pub fn span(span: &Span) -> Json {
    Json::from(vec![span.start, span.count])
}

pub fn spans(spans: &[Span]) -> Json {
    Json::from(spans.iter().map(span).collect::<Vec<_>>())
}

fn measured(measured: &Measured) -> Json {
    let Measured { step_us, upload_kbps, reduce_us, overhead_us, norm_bits } = *measured;
    object! {"step_us": step_us, "upload_kbps": upload_kbps, "reduce_us": reduce_us, "overhead_us": overhead_us, "norm": norm_bits}
}

fn contributor(c: &Contributor) -> Json {
    object! {
        "member": c.member, "ready": c.ready, "start": c.start, "samples": c.samples, "tokens": c.tokens,
        "steps": c.steps, "loss_q16": c.loss_q16, "measured": measured(&c.measured),
    }
}

pub fn member(m: &Member) -> Json {
    object! {
        "id": m.id, "incarnation": m.incarnation, "role": m.role.name(), "absent": m.absent, "expected": m.expected,
        "lease": span(&m.lease), "upload_kbps": m.upload_kbps, "since": m.since, "served": m.served,
        "cell": m.cell.number(),
    }
}

/// Settings; changes are the hex of their bytes, since most of their fields are absent.
fn settings(settings: &Settings) -> Json {
    let changes = bytes_of(settings.changes);
    object! {"amendments": settings.amendments, "newest": settings.newest, "changes": changes}
}

fn amendment(amendment: &Amendment) -> Json {
    object! {
        "number": amendment.number, "before": amendment.before, "from": amendment.from,
        "changes": bytes_of(amendment.changes), "bytes": hex(&wire::encode_amendment(amendment)),
    }
}

/// The bytes of changes: those of an unsigned amendment between its first three fields and the missing signature.
fn bytes_of(changes: Changes) -> Json {
    let bytes = wire::encode_amendment(&Amendment::next(&Settings::default(), 0, changes));
    hex(&bytes[44..bytes.len() - 1])
}

pub fn record(record: &Record) -> Json {
    let next = &record.next;
    let grants: Vec<Json> =
        record.grants.iter().map(|g| Json::List(vec![Json::from(g.grant), Json::from(g.uses)])).collect();
    object! {
        "run": record.run,
        "lineage": record.lineage,
        "seq": record.seq,
        "parent": record.parent,
        "kind": record.kind.name(),
        "base": record.base,
        "round": record.round,
        "contributors": record.contributors.iter().map(contributor).collect::<Vec<_>>(),
        "update": record.update,
        "state_root": record.state_root,
        "tokens": record.tokens,
        "steps": record.steps,
        "cursor": record.cursor,
        "free": spans(&record.free),
        "merged": record.merged.clone(),
        "grants": grants,
        "revoked": record.revoked.clone(),
        "next": object! {
            "inner_steps": next.inner_steps,
            "codec": codec(next.codec),
            "overheads": next.overheads.to_vec(),
            "merge_tokens": next.merge_tokens,
            "merge_norm": next.merge_norm_bits,
            "members": next.members.iter().map(member).collect::<Vec<_>>(),
            "ring": next.ring.clone(),
            "settings": settings(&next.settings),
        },
        "amended": record.amended.as_ref().map(amendment),
    }
}

fn statement(s: &Statement) -> Json {
    object! {"kind": s.kind.name(), "id": s.id, "incarnation": s.incarnation, "grant": s.grant}
}

/// The fields of a READY on which a record depends, and the digest of its envelope.
pub fn ready(signed: &SignedReady) -> Json {
    let r: &Ready = &signed.ready;
    object! {
        "member": signed.member, "envelope": signed.digest, "start": r.start, "samples": r.samples,
        "tokens": r.tokens, "steps": r.steps, "loss_q16": r.loss_q16, "measured": measured(&r.measured),
        "statements": r.statements.iter().map(statement).collect::<Vec<_>>(), "leave": r.leave,
        "merges": r.merges, "merged_tokens": r.merged_tokens,
        "rtts": r.rtts.iter().map(|rtt| vec![rtt.peer, rtt.rtt]).collect::<Vec<_>>(),
        "amends": r.amends.as_deref().map(amendment),
    }
}

pub fn value(v: &Value) -> Json {
    object! {
        "kind": v.kind.name(), "digest": v.digest, "tokens": v.tokens, "contributors": v.contributors,
        "attempt": v.attempt, "set": v.set, "members": hex(&v.members),
    }
}
