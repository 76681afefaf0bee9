use super::*;
use crate::Digest;
use crate::engine::io::Contribution;
use crate::grid::{Cell, Grid};
use crate::mutation;
use crate::sim::trainer::ELEMENTS;
use crate::update::Stated;

const ROWS: usize = 3;
const MEMBERS: usize = 12;

fn id(n: usize) -> NodeId {
    NodeId([n as u8 + 1; 32])
}

fn grid() -> Grid {
    Grid::of((0..MEMBERS).map(|n| (id(n), Cell::at(n % ROWS, n / ROWS))))
}

/// The run of an attempt of these members, and the update that the reference gives.
fn attempt(
    here: &[usize],
    codec: Codec,
    stores: Vec<Store>,
    former: RowSums,
) -> (Result<Option<Run>, String>, Vec<u8>) {
    let ids: Vec<NodeId> = here.iter().map(|n| id(*n)).collect();
    let stated = |n: &usize| Stated { tokens: 5 + *n as u64, steps: 1, norm: 1.0 };
    let contribution = |n: &usize| Contribution { member: id(*n), stated: stated(n), payload: Digest::default() };
    let weights = Contribution::weights(&here.iter().map(contribution).collect::<Vec<_>>());
    let vector = |n: &usize| Rc::new((0..ELEMENTS).map(|i| ((i * 7 + n * 13) % 101) as f32 / 50.0 - 1.0).collect());
    let vectors: Vec<Rc<Vec<f32>>> = here.iter().map(vector).collect();
    let lattice = Lattice::new(&grid(), &ids, trainer::chunks(ELEMENTS)).unwrap();
    let set: Vec<_> = (0..here.len()).map(|n| (here[n] % ROWS, weights[n], Rc::clone(&vectors[n]))).collect();
    let reference = (0..trainer::chunks(ELEMENTS)).map(|chunk| trainer::crossed(codec, &set, chunk).unwrap());
    let reference = reference.collect::<Vec<_>>().concat();
    let party = Party { lattice: &lattice, codec, ids: &ids, vectors: &vectors, weights: &weights, former };
    (run(&party, stores), reference)
}

fn update_of(course: &Course) -> Vec<u8> {
    course.held.iter().flatten().flat_map(|payload| payload.iter().copied()).collect()
}

/// The things that members have kept after everything has come to them, but for the sums of chunks from `until` on.
fn kept(run: &Run, here: &[usize], until: usize) -> Vec<Store> {
    let store = |course: &Course| {
        let mut store = Store { sums: vec![None; course.held.len()], ..Store::default() };
        for got in &course.got {
            match got.what {
                What::Sum(Some(from)) if got.chunk < until => {
                    store.sums[got.chunk] = Some((from, Rc::clone(&got.payload)));
                }
                What::Part(of) => drop(store.parts.insert((got.chunk, of), Rc::clone(&got.payload))),
                _ => {}
            }
        }
        store
    };
    let left = run.courses.iter().enumerate().filter(|(place, _)| here.contains(place));
    left.map(|(_, course)| store(course)).collect()
}

const ALL: [usize; MEMBERS] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

#[test]
fn frames_that_travel_make_the_reference_reduction() {
    for here in [&ALL[..], &ALL[1..], &[0, 1, 2, 4, 6, 11], &[0, 3, 6, 9], &[5]] {
        for codec in [Codec::Int8, Codec::Bf16] {
            let (run, reference) = attempt(here, codec, vec![Store::default(); here.len()], RowSums::new());
            let run = run.unwrap().unwrap();
            assert!(run.courses.iter().all(|course| update_of(course) == reference), "{here:?} {codec}");
            let ids: Vec<NodeId> = here.iter().map(|n| id(*n)).collect();
            let lattice = Lattice::new(&grid(), &ids, trainer::chunks(ELEMENTS)).unwrap();
            for (place, course) in run.courses.iter().enumerate() {
                assert_eq!(course.got.len(), usual(&lattice, here.len(), trainer::chunks(ELEMENTS), place));
            }
        }
    }
}

/// After a death half of the sums are kept, and the others are made of the parts that are kept.
#[test]
fn what_is_kept_is_not_sent_again_and_sums_of_rows_are_made_anew() {
    let (first, of_all) = attempt(&ALL, Codec::Int8, vec![Store::default(); MEMBERS], RowSums::new());
    let first = first.unwrap().unwrap();
    let here: Vec<usize> = ALL.into_iter().filter(|n| *n != 4).collect();
    let half = trainer::chunks(ELEMENTS) / 2;
    let (second, of_the_rest) = attempt(&here, Codec::Int8, kept(&first, &here, half), first.row_sums.clone());
    let second = second.unwrap().unwrap();
    assert!(second.courses.iter().all(|course| update_of(course) == update_of(&second.courses[0])));
    let update = update_of(&second.courses[0]);
    let same = |chunk: usize, other: &[u8]| {
        let payload = |update| trainer::payload(Codec::Int8, update, chunk, ELEMENTS).map(<[u8]>::to_vec);
        payload(&update) == payload(other)
    };
    let owner_is_here = |chunk: usize| {
        let ids: Vec<NodeId> = ALL.iter().map(|n| id(*n)).collect();
        let lattice = Lattice::new(&grid(), &ids, trainer::chunks(ELEMENTS)).unwrap();
        lattice.owner(chunk) != Some(4)
    };
    for chunk in 0..trainer::chunks(ELEMENTS) {
        assert!(same(chunk, if chunk < half && owner_is_here(chunk) { &of_all } else { &of_the_rest }), "{chunk}");
    }
    let frames = |run: &Run| run.courses.iter().map(|course| course.got.len()).sum::<usize>();
    assert!(frames(&second) * 5 < frames(&first) * 3, "{} of {}", frames(&second), frames(&first));
    let bug = Some(Mutation::RowSumKept);
    let wrong = mutation::with(bug, || attempt(&here, Codec::Int8, kept(&first, &here, 0), first.row_sums.clone()).0);
    assert_ne!(update_of(&wrong.unwrap().unwrap().courses[0]), of_the_rest);
}

#[test]
fn a_member_that_waits_for_ever_is_noticed() {
    let here: Vec<usize> = ALL.into_iter().filter(|n| ![1, 6].contains(n)).collect();
    let stores = || vec![Store::default(); here.len()];
    let stuck =
        mutation::with(Some(Mutation::HeirWithoutWay), || attempt(&here, Codec::Int8, stores(), RowSums::new()).0);
    let sound = attempt(&here, Codec::Int8, stores(), RowSums::new()).0;
    assert!(sound.is_ok());
    assert!(stuck.is_err_and(|why| why.contains("waits for ever")));
}
