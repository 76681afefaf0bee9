use super::*;
use crate::Digest;
use crate::limits::CHUNK_ELEMENTS;
use crate::mutation;
use crate::update;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn id(n: usize) -> NodeId {
    NodeId(Digest::of("a member", &[&n.to_le_bytes()]).0)
}

/// A grid of `members` in `rows` rows, in an order that has nothing to do with their ids.
fn grid(rows: usize, members: usize) -> Grid {
    Grid::of((0..members).map(|n| (id(n), Cell::at(n % rows, n / rows))))
}

/// The members in these cells, by ascending id.
fn seated(rows: usize, members: usize, here: impl Fn(Cell) -> bool) -> Vec<NodeId> {
    let in_cell = (0..members).filter(|n| here(Cell::at(n % rows, n / rows)));
    in_cell.map(id).collect::<BTreeSet<_>>().into_iter().collect()
}

fn lattice(rows: usize, members: usize, chunks: usize, here: impl Fn(Cell) -> bool) -> Option<Lattice> {
    Lattice::new(&grid(rows, members), &seated(rows, members, here), chunks)
}

/// Lets everything travel, chunk by chunk and over streams of the plan only. Returns the members without a sum.
fn travel(lattice: &Lattice, chunks: usize) -> Vec<(usize, usize)> {
    let members = lattice.cells.len();
    let mut parts: BTreeSet<(usize, usize, usize)> =
        (0..members).flat_map(|place| (0..chunks).map(move |chunk| (place, chunk, place))).collect();
    let (mut row_sums, mut sums) = (BTreeSet::new(), BTreeSet::new());
    let cargos: Vec<(usize, usize, Cargo)> = (0..members)
        .flat_map(|from| (0..members).map(move |to| (from, to)))
        .map(|(from, to)| (from, to, lattice.cargo(from, to)))
        .collect();
    loop {
        let before = (parts.len(), row_sums.len(), sums.len());
        for (from, to, cargo) in &cargos {
            parts.extend(cargo.parts.iter().map(|chunk| (*to, *chunk, *from)));
            let here = cargo.row_sums.iter().filter(|(chunk, row)| row_sums.contains(&(*from, *chunk, *row)));
            let here: Vec<_> = here.map(|(chunk, row)| (*to, *chunk, *row)).collect();
            row_sums.extend(here);
            let here = cargo.sums.iter().filter(|chunk| sums.contains(&(*from, **chunk)));
            let here: Vec<_> = here.map(|chunk| (*to, *chunk)).collect();
            sums.extend(here);
        }
        for chunk in 0..chunks {
            let owner = lattice.owner(chunk).unwrap();
            for row in lattice.rows(chunk) {
                let adder = lattice.adder(chunk, row).unwrap();
                if lattice.row(row).all(|member| parts.contains(&(adder, chunk, member))) {
                    row_sums.insert((adder, chunk, row));
                }
            }
            if lattice.rows(chunk).all(|row| row_sums.contains(&(owner, chunk, row))) {
                sums.insert((owner, chunk));
            }
        }
        if before == (parts.len(), row_sums.len(), sums.len()) {
            break;
        }
    }
    let all = (0..members).flat_map(|place| (0..chunks).map(move |chunk| (place, chunk)));
    all.filter(|one| !sums.contains(one)).collect()
}

proptest! {
    #[test]
    fn every_member_gets_every_sum_over_connections_of_the_grid(
        rows in 2usize..6,
        columns in 3usize..7,
        more in 0usize..3,
        gone in prop::collection::vec(0u8..10, 45),
        chunks in 0usize..40,
        much in any::<bool>(),
    ) {
        let members = rows * columns + more.min(rows - 1);
        let here = |cell: Cell| gone[(cell.row() * 8 + cell.column()) % 45] >= if much { 6 } else { 1 };
        let set = seated(rows, members, here);
        let grid = grid(rows, members);
        let is_here = |row, column: &usize| set_has(&grid, &set, Cell::at(row, *column));
        let columns_of = |row| (0..8).filter(|column| is_here(row, column)).collect::<BTreeSet<usize>>();
        let full: Vec<BTreeSet<usize>> = (0..rows).map(columns_of).collect();
        let meets = |a: &BTreeSet<usize>, b: &BTreeSet<usize>| b.is_empty() || a.intersection(b).next().is_some();
        let central = full.iter().filter(|row| !row.is_empty()).any(|row| full.iter().all(|other| meets(row, other)));
        prop_assert_eq!(makes_a_result(&grid, &set), central);
        let lattice = Lattice::new(&grid, &set, chunks);
        prop_assert_eq!(lattice.is_some() || chunks == 0, central || chunks == 0);
        let Some(lattice) = lattice else { return Ok(()) };
        prop_assert_eq!(travel(&lattice, chunks), vec![]);
        for (from, one) in set.iter().enumerate() {
            for (to, other) in set.iter().enumerate() {
                let cargo = lattice.cargo(from, to);
                prop_assert!(cargo.is_empty() || grid.are_neighbours(one, other));
                prop_assert!(cargo.parts.is_sorted() && cargo.row_sums.is_sorted() && cargo.sums.is_sorted());
            }
            let near: Vec<usize> = lattice.links(from).collect();
            prop_assert!(near.iter().all(|to| grid.are_neighbours(one, &set[*to])));
        }
        // Each member gets each sum once, and sends each of its parts once, but for what it adds up itself.
        for place in 0..set.len() {
            let got: Vec<usize> = (0..set.len()).flat_map(|from| lattice.cargo(from, place).sums).collect();
            let own = (0..chunks).filter(|chunk| lattice.owner(*chunk) == Some(place)).count();
            prop_assert_eq!(got.len() + own, chunks);
            let row = lattice.row_of(place).unwrap();
            let sent: usize = (0..set.len()).map(|to| lattice.cargo(place, to).parts.len()).sum();
            let adds = (0..chunks).filter(|chunk| lattice.adder(*chunk, row) == Some(place)).count();
            prop_assert_eq!(sent + adds, chunks);
        }
    }

    #[test]
    fn only_chunks_of_those_who_are_gone_move(gone in prop::collection::btree_set(0usize..24, 0..4)) {
        let (rows, members, chunks) = (3, 24, 50);
        let whole = lattice(rows, members, chunks, |_| true).unwrap();
        let left = |cell: Cell| !gone.contains(&(cell.column() * rows + cell.row()));
        let Some(rest) = lattice(rows, members, chunks, left) else { return Ok(()) };
        for chunk in 0..chunks {
            let (before, after) = (whole.cells[whole.owner(chunk).unwrap()], rest.cells[rest.owner(chunk).unwrap()]);
            prop_assert!(before == after || !left(before), "an owner that is there stays");
            for row in rest.rows(chunk) {
                let cell = Cell::at(row, before.column());
                let adder = rest.cells[rest.adder(chunk, row).unwrap()];
                prop_assert!(adder == cell || !left(cell) || after.column() != before.column());
            }
        }
    }
}

fn set_has(grid: &Grid, set: &[NodeId], cell: Cell) -> bool {
    set.iter().any(|id| grid.cell_of(id) == Some(cell))
}

/// Columns own equal segments, and inside one the rows take turns.
#[test]
fn chunks_belong_to_full_columns_and_rows_take_turns() {
    let (rows, members, chunks) = (3, 14, 26);
    let lattice = lattice(rows, members, chunks, |_| true).unwrap();
    let cells: Vec<(usize, usize)> = (0..chunks)
        .map(|chunk| lattice.cells[lattice.owner(chunk).unwrap()])
        .map(|cell| (cell.row(), cell.column()))
        .collect();
    let of = |column: usize, count: usize| (0..count).map(move |number| (number % rows, column));
    assert_eq!(cells, of(0, 7).chain(of(1, 7)).chain(of(2, 6)).chain(of(3, 6)).collect::<Vec<_>>());
    assert!(!lattice.passes_on());
    for (chunk, (_, column)) in cells.into_iter().enumerate() {
        let adders = (0..rows).map(|row| lattice.cells[lattice.adder(chunk, row).unwrap()]);
        assert_eq!(adders.collect::<Vec<_>>(), (0..rows).map(|row| Cell::at(row, column)).collect::<Vec<_>>());
    }
}

#[test]
fn an_heir_has_a_way_to_the_owner() {
    let missing = Cell::at(1, 0);
    let no_relay = Cell::at(0, 2);
    let hangs = |bug| {
        mutation::with(bug, || {
            let lattice = lattice(2, 12, 300, |cell| cell != missing && cell != no_relay).unwrap();
            let way = |chunk: &usize| {
                let owner = lattice.cells[lattice.owner(*chunk).unwrap()];
                owner.column() == 0 && owner.row() == 0
            };
            let heirs = (0..300).filter(way).filter_map(|chunk| lattice.adder(chunk, 1));
            let heirs: BTreeSet<usize> = heirs.map(|place| lattice.cells[place].column()).collect();
            assert!(heirs.len() > 1 && lattice.passes_on(), "they are spread");
            (heirs.contains(&2), travel(&lattice, 300).len())
        })
    };
    assert_eq!(hangs(None), (false, 0));
    let (without_way, waiting) = hangs(Some(Mutation::HeirWithoutWay));
    assert!(without_way && waiting > 0);
}

#[test]
fn chunks_of_an_empty_column_go_to_others() {
    let lattice = lattice(2, 12, 30, |cell| cell.column() != 1).unwrap();
    let owners: BTreeSet<usize> = (5..10).map(|chunk| lattice.owner(chunk).unwrap()).collect();
    assert!(owners.len() > 1 && travel(&lattice, 30).is_empty());
}

#[test]
fn a_row_without_a_common_column_makes_no_result_and_voters_do_without_it() {
    let (rows, members) = (3, 12);
    let apart = |cell: Cell| match cell.row() {
        0 => cell.column() < 2,
        1 => cell.column() >= 2,
        _ => true,
    };
    let (grid, set) = (grid(rows, members), seated(rows, members, apart));
    assert!(makes_a_result(&grid, &set), "the third row has columns in common with both");
    let lattice = Lattice::new(&grid, &set, 20).unwrap();
    assert!((0..20).all(|chunk| lattice.cells[lattice.owner(chunk).unwrap()].row() == 2));
    assert!(travel(&lattice, 20).is_empty());
    let two = seated(rows, members, |cell| cell.row() < 2 && apart(cell));
    assert!(!makes_a_result(&grid, &two) && Lattice::new(&grid, &two, 20).is_none());
    let second = seated(rows, members, |cell| cell.row() == 1 && apart(cell));
    assert_eq!(without_way(&grid, two.iter()), second);
    assert_eq!(without_way(&grid, set.iter()), second, "each other row is to meet the first");
    assert_eq!(without_way(&grid, [id(99)].iter()), [id(99)], "no member");
}

fn ramp(elements: usize, seed: usize) -> Vec<f32> {
    (0..elements).map(|i| ((i * 7919 + seed * 104_729) % 2_003) as f32 * 1e-5 - 1e-2).collect()
}

#[test]
fn one_row_gives_what_owners_give_to_the_bit() {
    let (elements, weights) = (CHUNK_ELEMENTS + 700, [0.25f32, 0.5, 0.2, 0.05]);
    let vectors: Vec<Vec<f32>> = (0..4).map(|n| ramp(elements, n)).collect();
    let views: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
    for codec in [Codec::Bf16, Codec::Int8, Codec::Int4, Codec::TopK { k: 256 }] {
        let row = weights.iter().copied().zip(views.iter().copied()).collect();
        assert_eq!(reduce(codec, &[row]), owners::reduce(codec, &weights, &views), "{codec}");
    }
    let short = vec![(1.0, &views[0][1..])];
    assert!(reduce(Codec::Int8, &[vec![(1.0, views[0])], short]).is_err());
}

#[test]
fn rows_are_added_in_their_order() {
    let rows: [&[f32]; 3] = [&[1.0, 3.0], &[2e-8, -1.0], &[5e-8, 0.5]];
    let expect = [(1.0f32 + 2e-8) + 5e-8, 2.5];
    assert_eq!(total(2, &rows), expect);
    assert_ne!(mutation::with(Some(Mutation::RowsByArrival), || total(2, &rows)), expect);
    assert_eq!(total(1, &[&[-0.0]]), [0.0]);
}

#[test]
fn sums_of_rows_travel_as_they_are_and_are_finite() {
    let (sum, mut payload, mut back) = (ramp(300, 1), vec![7], vec![0.0; 300]);
    encode_row_sum(&sum, &mut payload);
    assert_eq!((payload.len(), &payload[..4]), (update::row_sum_bytes(300), &sum[0].to_le_bytes()[..]));
    decode_row_sum(&payload, &mut back).unwrap();
    assert_eq!(back, sum);
    assert_eq!(decode_row_sum(&payload[1..], &mut back).unwrap_err().reason(), "length");
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        payload[400..404].copy_from_slice(&bad.to_le_bytes());
        assert_eq!(decode_row_sum(&payload, &mut back), Err(CodecError::NotFinite { index: 100 }));
    }
}

/// Another program can check its own ways against these.
#[test]
fn golden_ways() {
    let lattice = lattice(3, 13, 12, |cell| ![Cell::at(1, 0), Cell::at(0, 3), Cell::at(2, 3)].contains(&cell)).unwrap();
    let cell = |place: Option<usize>| place.map(|place| lattice.cells[place].number());
    let ways: Vec<_> = (0..12)
        .map(|chunk| (cell(lattice.owner(chunk)), [0, 1, 2].map(|row| cell(lattice.adder(chunk, row)))))
        .collect();
    assert_eq!(format!("{ways:?}").replace("Some", ""), GOLDEN);
}

const GOLDEN: &str = concat!(
    "[((0), [(0), (66), (128)]), ((128), [(0), (65), (128)]), ((128), [(0), (66), (128)]), ((1), [(1), (6",
    "5), (129)]), ((65), [(1), (65), (129)]), ((129), [(1), (65), (129)]), ((2), [(2), (66), (130)]), ((6",
    "6), [(2), (66), (130)]), ((130), [(2), (66), (130)]), ((67), [(1), (67), (129)]), ((67), [(2), (67),",
    " (130)]), ((67), [(1), (67), (129)])]",
);
