//! One attempt of a ring, frame by frame, as the members' plans say: what each of them has received at any moment.

use super::trainer;
use crate::NodeId;
use crate::codec;
use crate::frame::FrameKind;
use crate::ring::plan::Plan;
use crate::run::Codec;
use std::rc::Rc;

/// The payload that a member has of a chunk, if it has any.
pub type Held = Option<Rc<Vec<u8>>>;

/// The sums that members have kept, in ring order and by chunk, and what they have said of these.
#[derive(Debug)]
pub struct Stock {
    pub sums: Vec<Vec<Held>>,
    pub finished: Vec<Vec<bool>>,
}

impl Stock {
    /// So many members that have nothing.
    pub fn empty(members: usize) -> Self {
        Self { sums: vec![Vec::new(); members], finished: vec![Vec::new(); members] }
    }
}

/// The kind of bytes that a member has of a chunk after one more frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A partial sum.
    Partial,
    /// The finished sum. In a flock of several rows with the member that has made it.
    Sum(Option<NodeId>),
    /// The part of another member.
    Part(NodeId),
    /// The sum of a row. Nobody keeps it.
    RowSum,
}

/// A chunk that a member has after one more frame.
#[derive(Clone, Debug)]
pub struct Got {
    pub chunk: usize,
    pub what: What,
    pub payload: Rc<Vec<u8>>,
}

/// All that comes to one member.
#[derive(Clone, Debug, Default)]
pub struct Course {
    pub got: Vec<Got>,
    /// The payloads at the end, by chunk.
    pub held: Vec<Held>,
}

/// Lets all frames of an attempt travel. `weighted` are the members' contributions in ring order. None if a sum cannot
/// be encoded.
///
/// # Errors
/// If frames do not fit the plan of their receiver, or a member waits for ever.
pub fn run(codec: Codec, weighted: &[Vec<f32>], stock: Stock) -> Result<Option<Vec<Course>>, String> {
    let chunks = trainer::chunks(weighted.first().map_or(0, Vec::len));
    let begins = |mut held: Vec<Held>| {
        held.resize(chunks, None);
        Course { got: Vec::new(), held }
    };
    let mut courses: Vec<Course> = stock.sums.into_iter().map(begins).collect();
    if let [own] = weighted {
        let made = courses.iter_mut().try_for_each(|course| alone(codec, own, course));
        return Ok(made.map(|()| courses));
    }
    let plan = |position: usize| Plan::new(position, chunks, &stock.finished);
    let plans: Vec<Plan> = (0..weighted.len()).map(plan).collect();
    let mut sent = vec![0usize; weighted.len()];
    loop {
        let mut moved = false;
        for from in 0..weighted.len() {
            let to = (from + 1) % weighted.len();
            let Some(frame) = plans[from].leaving.get(sent[from]) else { continue };
            if frame.after > courses[from].got.len() {
                continue;
            }
            let payload = if frame.begins {
                encoded(codec, part(weighted, from, frame.chunk))
            } else {
                courses[from].held.get(frame.chunk).cloned().flatten()
            };
            let Some(payload) = payload else { return Ok(None) };
            (sent[from], moved) = (sent[from] + 1, true);
            let due = plans[to].arriving.get(courses[to].got.len());
            let Some(due) = due.filter(|due| (due.kind, due.chunk) == (frame.kind, frame.chunk)) else {
                return Err(format!("position {to} waits for {due:?}, and {frame:?} comes"));
            };
            let payload = match due.kind {
                FrameKind::Contrib => added(codec, &payload, part(weighted, to, due.chunk)),
                _ => Some(payload),
            };
            let Some(payload) = payload else { return Ok(None) };
            let what = if due.finishes { What::Sum(None) } else { What::Partial };
            courses[to].take(Got { chunk: due.chunk, what, payload });
        }
        if !moved {
            break;
        }
    }
    for (position, (course, plan)) in courses.iter().zip(&plans).enumerate() {
        if course.got.len() < plan.arriving.len() || course.held.iter().any(Option::is_none) {
            return Err(format!("position {position} waits for ever: it has {} frames", course.got.len()));
        }
    }
    Ok(Some(courses))
}

impl Course {
    fn take(&mut self, got: Got) {
        if let Some(held) = self.held.get_mut(got.chunk) {
            *held = Some(Rc::clone(&got.payload));
        }
        self.got.push(got);
    }
}

/// The sums of a member alone, but for those that it has.
fn alone(codec: Codec, own: &[f32], course: &mut Course) -> Option<()> {
    for chunk in 0..course.held.len() {
        if course.held.get(chunk).is_none_or(Option::is_none) {
            let payload = encoded(codec, own.get(trainer::elements_of(chunk, own.len()))?)?;
            course.take(Got { chunk, what: What::Sum(None), payload });
        }
    }
    Some(())
}

/// A member's part of a chunk.
fn part(weighted: &[Vec<f32>], position: usize, chunk: usize) -> &[f32] {
    let own = weighted.get(position).map_or(&[][..], Vec::as_slice);
    own.get(trainer::elements_of(chunk, own.len())).unwrap_or_default()
}

pub(super) fn encoded(codec: Codec, values: &[f32]) -> Held {
    let mut payload = Vec::new();
    codec::encode(codec, values, &mut payload).ok()?;
    Some(Rc::new(payload))
}

/// A partial sum with a member's own part added to it.
fn added(codec: Codec, partial: &[u8], own: &[f32]) -> Held {
    let mut sum = own.to_vec();
    codec::decode_add(codec, partial, &mut sum).ok()?;
    encoded(codec, &sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::io::Contribution;
    use crate::mutation::{self, Mutation};
    use crate::sim::trainer::ELEMENTS;
    use crate::update::Stated;
    use crate::{Digest, NodeId};

    const CODEC: Codec = Codec::Int8;

    fn flock(members: usize) -> (Vec<Contribution>, Vec<Rc<Vec<f32>>>) {
        let stated = Stated { tokens: 5, steps: 1, norm: 1.0 };
        let member = |n: usize| NodeId([n as u8; 32]);
        let contribution = |n: usize| Contribution { member: member(n), stated, payload: Digest::default() };
        let vector = |n: usize| Rc::new((0..ELEMENTS).map(|i| ((i * 7 + n * 13) % 101) as f32 / 50.0 - 1.0).collect());
        ((0..members).map(contribution).collect(), (0..members).map(vector).collect())
    }

    fn update_of(course: &Course) -> Vec<u8> {
        course.held.iter().flatten().flat_map(|payload| payload.iter().copied()).collect()
    }

    #[test]
    fn frames_that_travel_make_the_reference_reduction() {
        for members in 1..=6 {
            let (contributions, vectors) = flock(members);
            let weighted = trainer::weighted(&contributions, &vectors);
            let courses = run(CODEC, &weighted, Stock::empty(members)).unwrap().unwrap();
            let reference = trainer::reduce(CODEC, &contributions, &vectors).unwrap();
            assert!(courses.iter().all(|course| update_of(course) == reference), "{members} members");
        }
    }

    /// An attempt of the first three of four, of whom one has all sums of the attempt before; and the update of that.
    fn after_a_death() -> (Result<Option<Vec<Course>>, String>, Vec<u8>) {
        let (contributions, vectors) = flock(4);
        let weighted = trainer::weighted(&contributions, &vectors);
        let first = run(CODEC, &weighted, Stock::empty(4)).unwrap().unwrap();
        let (left, mut stock) = (trainer::weighted(&contributions[..3], &vectors[..3]), Stock::empty(3));
        stock.sums[1] = first[1].held.clone();
        stock.finished[1] = vec![true; trainer::chunks(ELEMENTS)];
        (run(CODEC, &left, stock), update_of(&first[0]))
    }

    /// What one member has finished comes to the others, and is not made again.
    #[test]
    fn a_kept_sum_is_sent_and_not_made_anew() {
        let (second, of_all_four) = after_a_death();
        let second = second.unwrap().unwrap();
        assert!(second.iter().all(|course| update_of(course) == of_all_four));
        let frames: Vec<usize> = second.iter().map(|course| course.got.len()).collect();
        assert_eq!(frames, [trainer::chunks(ELEMENTS), 0, trainer::chunks(ELEMENTS)]);
    }

    #[test]
    fn a_member_that_waits_for_ever_is_noticed() {
        let stuck = mutation::with(Some(Mutation::PassNoSumsOn), || after_a_death().0);
        assert!(stuck.is_err_and(|why| why.contains("waits for ever")));
    }
}
