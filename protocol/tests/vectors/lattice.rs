//! Owners and adders of chunks in flocks of several rows (`docs/protocol/3-reduction.md` §3.10).

use crate::json::{Json, floats, hex, object};
use crate::made::id;
use starling_protocol::NodeId;
use starling_protocol::grid::{Cell, Grid};
use starling_protocol::run::Codec;
use starling_protocol::update::lattice::{self, Lattice};

const WAYS: &str = "docs/protocol/3-reduction.md §3.10.1, §3.10.2";
const SUMS: &str = "docs/protocol/3-reduction.md §3.10.3";

/// The cells of owners and adders, if only members in cells that are not `gone` contribute. The member in the cell of
/// row r and column c has the id whose bytes are all `16 r + c + 1`.
fn ways(name: &'static str, rows: usize, members: usize, gone: &[(usize, usize)], chunks: usize) -> Json {
    let cells: Vec<(usize, usize)> = (0..members).map(|n| (n % rows, n / rows)).collect();
    let member = |(row, column): &(usize, usize)| (id((16 * row + column + 1) as u8), Cell::at(*row, *column));
    let grid = Grid::of(cells.iter().map(member));
    let mut here: Vec<(NodeId, Cell)> = cells.iter().filter(|cell| !gone.contains(cell)).map(member).collect();
    here.sort_unstable();
    let ids: Vec<NodeId> = here.iter().map(|(id, _)| *id).collect();
    let number = |cell: Cell| Json::Number(cell.number().into());
    let cell = |place: Option<usize>| place.and_then(|place| here.get(place)).map_or(Json::Null, |(_, at)| number(*at));
    let ways = Lattice::new(&grid, &ids, chunks).map_or(Json::Null, |lattice| {
        let adders = |chunk: usize| (0..rows).map(|row| cell(lattice.adder(chunk, row))).collect::<Vec<_>>();
        let way = |chunk: usize| Json::from(vec![cell(lattice.owner(chunk)), Json::from(adders(chunk))]);
        Json::from((0..chunks).map(way).collect::<Vec<_>>())
    });
    object! {
        "case": name, "section": WAYS, "rows": rows, "members": members, "chunks": chunks,
        "gone": gone.iter().map(|(row, column)| number(Cell::at(*row, *column))).collect::<Vec<_>>(), "ways": ways,
    }
}

/// Two rows of two members: numbers whose sum depends on the order.
fn sums() -> Json {
    let vectors: [[f32; 3]; 4] = [[1.0, -3.5, 0.25], [1e-7, 2.0, -0.125], [3e-7, 1.5, 8.0], [-1.0, 0.5, 1e-3]];
    let weights = [0.3f32, 0.2, 0.1, 0.4];
    let row = |places: [usize; 2]| places.map(|place| (weights[place], &vectors[place][..])).to_vec();
    let update = |codec| lattice::reduce(codec, &[row([0, 1]), row([2, 3])]).expect("all are finite and small");
    object! {
        "section": SUMS, "weights": floats(&weights),
        "contributions": vectors.iter().map(|vector| floats(vector)).collect::<Vec<_>>(),
        "rows": vec![Json::from(vec![0u64, 1]), Json::from(vec![2u64, 3])],
        "bf16": hex(&update(Codec::Bf16)), "int8": hex(&update(Codec::Int8)),
    }
}

pub fn subject() -> Json {
    let about = "A flock has its members in the first columns of each row, one cell after another by column and then \
                 row. The member of row r and column c has the id whose bytes are all 16 r + c + 1. Those in the cells \
                 `gone` do not contribute. `ways` has for each chunk the owner's cell, and the adder's in each row, or \
                 null.";
    object! {
        "about": about,
        "cases": vec![
            ways("all contribute", 2, 8, &[], 11),
            ways("the last column is short and owns nothing", 3, 11, &[], 9),
            ways("heirs with a relay", 3, 12, &[(1, 0), (2, 0), (0, 3)], 16),
            ways("a column without a contributor", 2, 8, &[(0, 1), (1, 1)], 8),
            ways("a row without a contributor", 2, 8, &[(1, 0), (1, 1), (1, 2), (1, 3)], 8),
            ways("only the last row has columns in common with all", 3, 12, &[(0, 2), (0, 3), (1, 0), (1, 1)], 8),
            ways("no row has", 2, 8, &[(0, 0), (0, 1), (1, 2), (1, 3)], 4),
        ],
        "sums": sums(),
    }
}
