//! One attempt of a flock of several rows, frame by frame: what each member has received at any moment. Each stream
//! carries the frames of the members' plan in its order, and streams are between members of a row or a column only.

use super::circuit::{Course, Got, What, encoded};
use super::trainer;
use crate::NodeId;
use crate::codec;
use crate::mutation::{Mutation, mutated};
use crate::run::Codec;
use crate::update::lattice::{Cargo, Lattice, total};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// The parts and sums that a member has kept of former attempts.
#[derive(Clone, Debug, Default)]
pub struct Store {
    /// By chunk, each with the member that has made it.
    pub sums: Vec<Option<(NodeId, Rc<Vec<u8>>)>>,
    /// By chunk and member.
    pub parts: BTreeMap<(usize, NodeId), Rc<Vec<u8>>>,
}

/// Sums of rows, by adder, chunk and row.
pub type RowSums = BTreeMap<(NodeId, usize, usize), Vec<f32>>;

/// The contributors of an attempt, by ascending id.
pub struct Party<'a> {
    pub lattice: &'a Lattice,
    pub codec: Codec,
    pub ids: &'a [NodeId],
    pub vectors: &'a [Rc<Vec<f32>>],
    pub weights: &'a [f32],
    /// The sums of rows of an attempt before: nothing but a bug uses them.
    pub former: RowSums,
}

/// All that comes to the members, and the sums of rows that they have made.
pub struct Run {
    pub courses: Vec<Course>,
    pub row_sums: RowSums,
}

/// A frame.
#[derive(Clone, Copy, Debug)]
enum Frame {
    Part(usize),
    RowSum(usize, usize),
    Sum(usize),
}

struct Stream {
    from: usize,
    to: usize,
    frames: VecDeque<Frame>,
}

/// A member in the attempt.
struct Hand {
    store: Store,
    course: Course,
    /// Parts, its own too, by chunk and place.
    parts: BTreeMap<(usize, usize), Rc<Vec<u8>>>,
    /// Sums of rows, made here or sent, by chunk and row.
    row_sums: BTreeMap<(usize, usize), Vec<f32>>,
}

/// Lets all frames of an attempt travel. None if a part or a sum cannot be encoded.
///
/// # Errors
/// If a frame does not fit, or a member waits for ever.
pub fn run(party: &Party<'_>, stores: Vec<Store>) -> Result<Option<Run>, String> {
    let chunks = trainer::chunks(party.vectors.first().map_or(0, |vector| vector.len()));
    let begins = |store: Store| Hand {
        store,
        course: Course { got: Vec::new(), held: vec![None; chunks] },
        parts: BTreeMap::new(),
        row_sums: BTreeMap::new(),
    };
    let mut hands: Vec<Hand> = stores.into_iter().map(begins).collect();
    if !party.encode(&mut hands, chunks) {
        return Ok(None);
    }
    for (to, hand) in hands.iter_mut().enumerate() {
        for ((chunk, member), payload) in &hand.store.parts {
            if let Ok(from) = party.ids.binary_search(member) {
                hand.parts.insert((*chunk, from), Rc::clone(payload));
            }
        }
        for chunk in 0..chunks {
            if party.keeps(to, hand, chunk) {
                let kept = hand.store.sums.get(chunk).cloned().flatten();
                hand.course.held[chunk] = kept.map(|(_, payload)| payload);
            }
        }
    }
    let mut streams = party.streams(&hands);
    let mut row_sums = RowSums::new();
    loop {
        let mut moved = false;
        for stream in &mut streams {
            while let Some(frame) = stream.frames.front().copied() {
                if !party.send(&mut hands, &mut row_sums, (stream.from, stream.to), frame)? {
                    break;
                }
                stream.frames.pop_front();
                moved = true;
            }
        }
        for chunk in 0..chunks {
            let Some(owner) = party.lattice.owner(chunk) else { continue };
            moved |= party.finish(&mut hands[owner], &mut row_sums, owner, chunk);
        }
        if !moved {
            break;
        }
    }
    if hands.iter().flat_map(|hand| &hand.course.held).flatten().any(|payload| payload.is_empty()) {
        return Ok(None);
    }
    for (place, hand) in hands.iter().enumerate() {
        if let Some(chunk) = hand.course.held.iter().position(Option::is_none) {
            return Err(format!("the member at {place} waits for ever for chunk {chunk}"));
        }
    }
    if let Some(stream) = streams.iter().find(|stream| !stream.frames.is_empty()) {
        return Err(format!("the member at {} waits for ever for the one at {}", stream.to, stream.from));
    }
    Ok(Some(Run { courses: hands.into_iter().map(|hand| hand.course).collect(), row_sums }))
}

impl Party<'_> {
    /// Encodes all parts. False if one cannot be.
    fn encode(&self, hands: &mut [Hand], chunks: usize) -> bool {
        let mut all = true;
        for (place, (hand, vector)) in hands.iter_mut().zip(self.vectors).enumerate() {
            for chunk in 0..chunks {
                let payload = encoded(self.codec, &vector[trainer::elements_of(chunk, vector.len())]);
                all &= payload.is_some();
                hand.parts.insert((chunk, place), payload.unwrap_or_default());
            }
        }
        all
    }

    /// Whether a member keeps the sum of a chunk: it owns the chunk, and has made the sum.
    fn keeps(&self, place: usize, hand: &Hand, chunk: usize) -> bool {
        let sum = hand.store.sums.get(chunk).and_then(Option::as_ref);
        self.lattice.owner(chunk) == Some(place) && sum.is_some_and(|(from, _)| Some(from) == self.ids.get(place))
    }

    /// All streams, without the parts and sums of rows that their receivers have no use for.
    fn streams(&self, hands: &[Hand]) -> Vec<Stream> {
        let mut streams = Vec::new();
        for (to, hand) in hands.iter().enumerate() {
            for from in (0..hands.len()).filter(|from| *from != to) {
                let Cargo { parts, row_sums, sums } = self.lattice.cargo(from, to);
                let lacks = |chunk: &usize| !hand.parts.contains_key(&(*chunk, from)) && !self.keeps(to, hand, *chunk);
                let parts = parts.into_iter().filter(lacks).map(Frame::Part);
                let row_sums = row_sums.into_iter().filter(|(chunk, _)| !self.keeps(to, hand, *chunk));
                let row_sums = row_sums.map(|(chunk, row)| Frame::RowSum(chunk, row));
                let frames = parts.chain(row_sums).chain(sums.into_iter().map(Frame::Sum)).collect();
                streams.push(Stream { from, to, frames });
            }
        }
        streams
    }

    /// Sends a frame if it is there. False if it is not.
    fn send(
        &self,
        hands: &mut [Hand],
        made: &mut RowSums,
        (from, to): (usize, usize),
        frame: Frame,
    ) -> Result<bool, String> {
        match frame {
            Frame::Part(chunk) => {
                let Some(payload) = hands[from].parts.get(&(chunk, from)).cloned() else { return Ok(false) };
                hands[to].parts.insert((chunk, from), Rc::clone(&payload));
                hands[to].course.got.push(Got { chunk, what: What::Part(self.ids[from]), payload });
            }
            Frame::RowSum(chunk, row) => {
                let Some(sum) = self.row_sum(&mut hands[from], made, from, (chunk, row)) else { return Ok(false) };
                hands[to].row_sums.insert((chunk, row), sum);
                hands[to].course.got.push(Got { chunk, what: What::RowSum, payload: Rc::default() });
            }
            Frame::Sum(chunk) => {
                let Some(payload) = hands[from].course.held.get(chunk).cloned().flatten() else { return Ok(false) };
                let owner = self.lattice.owner(chunk).and_then(|owner| self.ids.get(owner)).copied();
                let hand = &mut hands[to];
                let known = hand.store.sums.get(chunk).and_then(Option::as_ref);
                let known = known.is_some_and(|(_, kept)| *kept == payload);
                if hand.course.held[chunk].replace(Rc::clone(&payload)).is_some() {
                    return Err(format!("the sum of chunk {chunk} comes to the member at {to} twice"));
                }
                if !known {
                    hand.course.got.push(Got { chunk, what: What::Sum(owner), payload });
                }
            }
        }
        Ok(true)
    }

    /// The sum of a row over a chunk, as this member has it: it was sent, or all parts of the row are here.
    fn row_sum(
        &self,
        hand: &mut Hand,
        made: &mut RowSums,
        place: usize,
        (chunk, row): (usize, usize),
    ) -> Option<Vec<f32>> {
        if let Some(sum) = hand.row_sums.get(&(chunk, row)) {
            return Some(sum.clone());
        }
        if self.lattice.adder(chunk, row) != Some(place) {
            return None;
        }
        let mut sum = vec![0.0f32; trainer::elements_of(chunk, self.vectors[place].len()).len()];
        for member in self.lattice.row(row) {
            let mut part = vec![0.0; sum.len()];
            codec::decode(self.codec, hand.parts.get(&(chunk, member))?, &mut part).ok()?;
            sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x * self.weights[member]);
        }
        let of = (self.ids[place], chunk, row);
        if mutated!(Mutation::RowSumKept) {
            sum = self.former.get(&of).cloned().unwrap_or(sum);
        }
        made.insert(of, sum.clone());
        hand.row_sums.insert((chunk, row), sum.clone());
        Some(sum)
    }

    /// Makes the sum of a chunk, if it is this member's and the sums of all rows are here.
    fn finish(&self, hand: &mut Hand, made: &mut RowSums, place: usize, chunk: usize) -> bool {
        if hand.course.held[chunk].is_some() {
            return false;
        }
        let rows: Vec<usize> = self.lattice.rows(chunk).collect();
        let sums: Option<Vec<Vec<f32>>> =
            rows.into_iter().map(|row| self.row_sum(hand, made, place, (chunk, row))).collect();
        let Some(sums) = sums else { return false };
        let elements = trainer::elements_of(chunk, self.vectors[place].len()).len();
        let sums: Vec<&[f32]> = sums.iter().map(Vec::as_slice).collect();
        // One that cannot be encoded is empty, and the attempt has no result.
        let payload: Rc<Vec<u8>> = encoded(self.codec, &total(elements, &sums)).unwrap_or_default();
        hand.course.held[chunk] = Some(Rc::clone(&payload));
        hand.course.got.push(Got { chunk, what: What::Sum(Some(self.ids[place])), payload });
        true
    }
}

/// The number of frames that come to a member if nothing is kept, and of the sums that it makes.
pub fn usual(lattice: &Lattice, members: usize, chunks: usize, place: usize) -> usize {
    let from = |from: usize| {
        let Cargo { parts, row_sums, sums } = lattice.cargo(from, place);
        parts.len() + row_sums.len() + sums.len()
    };
    let made = (0..chunks).filter(|chunk| lattice.owner(*chunk) == Some(place)).count();
    (0..members).map(from).sum::<usize>() + made
}

#[cfg(test)]
#[path = "lattice_test.rs"]
mod tests;
