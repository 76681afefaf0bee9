use super::super::harness::{Flock, runtime};
use super::super::passed::Passed;
use super::*;
use crate::runtime::sample_test::genesis;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::record::{Contributor, Record, RecordKind};
use starling_protocol::run::EngineKind;
use starling_protocol::{Digest, NodeId, codec, record};

const ELEMENTS: usize = 3 * CHUNK_ELEMENTS + 77;

fn flock(codec: Codec, n: usize) -> Flock {
    let mut flock = Flock::new(EngineKind::Owners, codec, n, ELEMENTS, 1 << 16);
    flock.set = record_of(&flock, 9, n).set();
    flock
}

/// The record of the first `taken` members' contributions.
fn record_of(flock: &Flock, seq: u64, taken: usize) -> Record {
    let mut record = genesis().record;
    (record.lineage, record.seq, record.kind) = (Digest([2; 32]), seq, RecordKind::Commit);
    let contributor = |member: &starling_protocol::engine::io::Contribution| Contributor {
        member: member.member,
        ready: member.payload,
        start: 0,
        samples: 1,
        tokens: member.stated.tokens,
        steps: 1,
        loss_q16: 0,
        measured: record::Measured::default(),
    };
    record.contributors = flock.members[..taken].iter().map(contributor).collect();
    record
}

/// The specification with residuals: those of each member and of each chunk of sums.
struct Model {
    codec: Codec,
    own: Vec<Vec<f32>>,
    sums: Vec<f32>,
}

impl Model {
    fn new(codec: Codec, n: usize) -> Self {
        Self { codec, own: vec![vec![0.0; ELEMENTS]; n], sums: vec![0.0; ELEMENTS] }
    }

    fn coded(&self, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let (mut payload, mut said) = (Vec::new(), vec![0.0; values.len()]);
        codec::encode(self.codec, values, &mut payload).unwrap();
        codec::decode(self.codec, &payload, &mut said).unwrap();
        (payload, said)
    }

    /// The update of a round; with `settle` that of a committed one.
    fn round(&mut self, flock: &Flock, settle: bool) -> Vec<u8> {
        let total: u64 = flock.members.iter().map(|m| m.stated.tokens).sum();
        let decay = decay(self.codec).unwrap();
        let mut payloads = Vec::new();
        for chunk in 0..update::chunks(ELEMENTS) {
            let range = update::chunk_elements(ELEMENTS, chunk);
            let mut sum = vec![0.0f32; range.len()];
            for (i, member) in flock.members.iter().enumerate() {
                let pairs = flock.deltas[i][range.clone()].iter().zip(&self.own[i][range.clone()]);
                let offer: Vec<f32> = pairs.map(|(x, e)| decay * e + x).collect();
                let (_, said) = self.coded(&offer);
                let weight = update::weight(member.stated.tokens, total);
                sum.iter_mut().zip(&said).for_each(|(sum, x)| *sum += x * weight);
                if settle {
                    let left = offer.iter().zip(&said).map(|(a, s)| a - s);
                    self.own[i][range.clone()].iter_mut().zip(left).for_each(|(e, left)| *e = left);
                }
            }
            sum.iter_mut().zip(&self.sums[range.clone()]).for_each(|(sum, left)| *sum += left);
            let (payload, said) = self.coded(&sum);
            payloads.push(payload);
            if settle {
                let left = sum.iter().zip(&said).map(|(y, z)| y - z);
                self.sums[range].iter_mut().zip(left).for_each(|(o, left)| *o = left);
            }
        }
        update::assemble(self.codec, payloads.iter().map(Vec::as_slice))
    }
}

fn stand_on(feedback: &Feedback, record: &Record, me: &NodeId) {
    let passed = Passed::of(record, me);
    feedback.pass(passed.mark, passed.taken.is_some());
}

async fn run(flock: &Flock, attempt: u32) -> Vec<u8> {
    let mut results = flock.run(attempt, None).await.into_iter().map(Result::unwrap);
    let first = results.next().unwrap();
    assert!(results.all(|other| other == first), "all hold the same bytes");
    first
}

#[test]
fn residuals_follow_committed_records_and_nothing_else() {
    runtime().block_on(async {
        for codec in [Codec::Int4, Codec::TopK { k: 64 }] {
            let mut flock = flock(codec, 3);
            let mut model = Model::new(codec, 3);
            let mut updates = Vec::new();
            for seq in 9..13 {
                (flock.seq, flock.set) = (seq, record_of(&flock, seq, 3).set());
                let expected = model.round(&flock, seq != 10);
                // Attempts may fail; the next one offers the same values.
                assert!(run(&flock, 0).await == expected, "{codec}: seq {seq}");
                assert!(run(&flock, 1).await == expected, "{codec}: seq {seq}");
                // The record at seq 10 is a SKIP: nothing was taken in.
                let taken = if seq == 10 { 0 } else { 3 };
                for (feedback, member) in flock.feedback.iter().zip(&flock.members) {
                    stand_on(feedback, &record_of(&flock, seq, taken), &member.member);
                }
                updates.push(expected);
            }
            assert!(updates[1] == updates[2], "offered again, to the bit, after a SKIP");
            assert!(updates[0] != updates[1], "but not after a COMMIT");
        }
    });
}

#[test]
fn a_member_that_is_left_out_keeps_its_residual() {
    runtime().block_on(async {
        let flock = flock(Codec::Int4, 3);
        run(&flock, 0).await;
        // The record is that of members 0 and 1: member 2's contribution was not taken in.
        let without = record_of(&flock, 9, 2);
        stand_on(&flock.feedback[2], &without, &flock.members[2].member);
        flock.feedback[2].settle();
        assert!(flock.feedback[2].residuals().own.is_empty() && flock.feedback[2].residuals().staged.is_empty());
        // The record took in an attempt that member 1 does not know: it gives its residuals up.
        flock.feedback[1].residuals().own = vec![1.0; ELEMENTS];
        stand_on(&flock.feedback[1], &without, &flock.members[1].member);
        assert!(flock.feedback[1].residuals().own.is_empty());
    });
}

#[test]
fn the_residual_of_a_sum_moves_to_the_contribution_when_the_owner_changes() {
    let feedback = Arc::new(Feedback::default());
    feedback.residuals().sums.insert(1, vec![0.25; CHUNK_ELEMENTS]);
    let key = flock(Codec::Int4, 2).key(0);
    let delta = Arc::new(vec![1.0f32; ELEMENTS]);
    let terms = |owned, weight| Terms {
        codec: Codec::Int4,
        weight,
        norm: f32::MAX,
        scale: 1.0,
        owned,
        delta: Arc::clone(&delta),
    };
    let (mut out, mut sum) = (Vec::new(), vec![0.0; CHUNK_ELEMENTS]);
    let owner = feedback.join(key, terms(vec![1], 0.5));
    owner.offer(1, &mut out);
    owner.mend(1, &mut sum);
    assert!(out.iter().all(|x| *x == 1.0) && sum.iter().all(|x| *x == 0.25));
    let other = feedback.join(key, terms(vec![2], 0.5));
    other.offer(1, &mut out);
    assert!(out.iter().all(|x| *x == 1.5), "a quarter of the sum is half of a contribution that weighs a half");
    // An owner may have that part: another attempt of the record, in which it weighs more, offers the same values.
    let again = feedback.join(AttemptKey { attempt: 1, ..key }, terms(vec![2], 0.75));
    again.offer(1, &mut out);
    assert!(out.iter().all(|x| *x == 1.5));
    let light = feedback.join(AttemptKey { seq: key.seq + 1, ..key }, terms(vec![2], 1e-6));
    light.offer(1, &mut out);
    assert!(out.iter().all(|x| *x == 1.0));
}

/// Residuals folded in after the READY may make an offer longer than the READY states: owners would refuse that.
#[test]
fn no_more_is_said_than_was_stated_and_the_rest_waits() {
    let (feedback, flock) = (Arc::new(Feedback::default()), flock(Codec::Int4, 2));
    let delta = Arc::new(vec![1.0f32; ELEMENTS]);
    let stated =
        |feedback: &Feedback| feedback.offered_norm(Codec::Int4, &delta).expect("int4 leaves something out") as f32;
    assert_eq!(stated(&feedback), (ELEMENTS as f32).sqrt());
    assert_eq!(feedback.offered_norm(Codec::Int8, &delta), None);
    feedback.residuals().own = vec![3.0; ELEMENTS];
    let norm = stated(&feedback);
    assert_eq!(norm, 4.0 * (ELEMENTS as f32).sqrt());
    let terms = |norm| Terms {
        codec: Codec::Int4,
        weight: 0.5,
        norm,
        scale: 1.0,
        owned: Vec::new(),
        delta: Arc::clone(&delta),
    };
    let mut out = Vec::new();
    feedback.join(flock.key(0), terms(norm)).offer(0, &mut out);
    assert!(out.iter().all(|x| *x == 4.0), "exactly what it states");
    let key = AttemptKey { seq: flock.seq + 1, ..flock.key(0) };
    feedback.join(key, terms(norm / 2.0)).offer(0, &mut out);
    assert!(out.iter().all(|x| (*x - 2.0).abs() < 1e-6), "{}", out[0]);
    let record = record_of(&flock, key.seq, 2);
    feedback.residuals().staged.last_mut().expect("it was staged").key.set = record.set();
    stand_on(&feedback, &record, &flock.members[0].member);
    feedback.settle();
    let own = feedback.residuals().own.clone();
    assert!(own.len() == ELEMENTS && own.iter().all(|x| (*x - 2.0).abs() < 0.05), "{}", own[0]);
}

#[test]
fn nothing_is_lost_over_many_rounds() {
    runtime().block_on(async {
        let mut flock = flock(Codec::Int4, 3);
        let total: u64 = flock.members.iter().map(|m| m.stated.tokens).sum();
        let (mut offered, mut said) = (vec![0.0f64; ELEMENTS], vec![0.0f64; ELEMENTS]);
        for seq in 9..19 {
            (flock.seq, flock.set) = (seq, record_of(&flock, seq, 3).set());
            let update = run(&flock, 0).await;
            let mut decoded = vec![0.0; ELEMENTS];
            update::decode(Codec::Int4, &update, &mut decoded).unwrap();
            said.iter_mut().zip(&decoded).for_each(|(s, d)| *s += f64::from(*d));
            for (i, member) in flock.members.iter().enumerate() {
                let weight = f64::from(update::weight(member.stated.tokens, total));
                offered.iter_mut().zip(flock.deltas[i].iter()).for_each(|(o, x)| *o += weight * f64::from(*x));
                stand_on(&flock.feedback[i], &record_of(&flock, seq, 3), &member.member);
                flock.feedback[i].settle();
            }
        }
        // The missing values are in the residuals.
        let mut left = vec![0.0f64; ELEMENTS];
        for (i, member) in flock.members.iter().enumerate() {
            let residuals = flock.feedback[i].residuals();
            let weight = f64::from(update::weight(member.stated.tokens, total));
            left.iter_mut().zip(&residuals.own).for_each(|(l, e)| *l += weight * f64::from(*e));
            for (chunk, sums) in &residuals.sums {
                let range = update::chunk_elements(ELEMENTS, *chunk);
                left[range].iter_mut().zip(sums).for_each(|(l, o)| *l += f64::from(*o));
            }
        }
        let wrong = (0..ELEMENTS).map(|e| (offered[e] - said[e] - left[e]).abs()).fold(0.0, f64::max);
        assert!(wrong < 1e-6, "{wrong} is lost");
        assert!(left.iter().any(|l| l.abs() > 1e-5), "and there is something to lose");
    });
}
