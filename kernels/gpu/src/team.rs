//! Sums and maxima over the units that share a row.
//!
//! A cube of [`UNITS`] units is cut into teams of neighbours, each with a row of its own. Results do not depend on
//! anything but the values: the order of the operations is fixed.

use crate::grid::UNITS;
use cubecl::Runtime;
use cubecl::features::Plane;
use cubecl::prelude::*;

/// Vectors of a row that a unit of a team handles, if the cube has enough units.
const VECTORS: usize = 8;
/// The least size of a team, and the least size of a plane that is used as such.
const LANES_MIN: usize = 4;

/// How the units of a cube are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Team {
    /// Units of a team: a power of two, at most [`UNITS`], and no less than `plane`.
    pub lanes: usize,
    /// Units of a plane, whose values are combined without shared memory; 0 if the size of a plane is not fixed.
    pub plane: usize,
}

impl Team {
    /// Teams for rows of `vectors` vectors.
    pub fn of<R: Runtime>(client: &ComputeClient<R>, vectors: usize) -> Self {
        Self::with_plane(plane(client), vectors)
    }

    /// Teams for rows of `vectors` vectors on a device whose planes have `plane` units (0: unknown).
    pub fn with_plane(plane: usize, vectors: usize) -> Self {
        let lanes = vectors.div_ceil(VECTORS).next_power_of_two();
        Self { lanes: lanes.clamp(plane.max(LANES_MIN), UNITS), plane }
    }

    /// The team of all units of a cube.
    pub fn whole<R: Runtime>(client: &ComputeClient<R>) -> Self {
        Self { lanes: UNITS, plane: plane(client) }
    }

    /// Teams of a cube.
    pub fn slots(self) -> usize {
        UNITS / self.lanes
    }

    /// Vectors that one unit handles of a row of `vectors` vectors.
    pub fn each(self, vectors: usize) -> usize {
        vectors.div_ceil(self.lanes)
    }
}

/// Units of a plane, where all planes of the device have the same size; else 0.
fn plane<R: Runtime>(client: &ComputeClient<R>) -> usize {
    let properties = client.properties();
    let (low, high) = (properties.hardware.plane_size_min as usize, properties.hardware.plane_size_max as usize);
    let fixed = low == high && low.is_power_of_two() && (LANES_MIN..=UNITS).contains(&low);
    if fixed && properties.features.plane.contains(Plane::Ops) { low } else { 0 }
}

/// The sum of the values of a team, for each of its units. All units of the cube must call this. `shared` has [`UNITS`]
/// elements and may be used again at once.
#[cube]
pub fn team_sum(value: f32, shared: &mut SharedMemory<f32>, #[comptime] team: Team) -> f32 {
    combine(value, shared, team, true)
}

/// The largest of the values of a team; see [`team_sum`].
#[cube]
pub fn team_max(value: f32, shared: &mut SharedMemory<f32>, #[comptime] team: Team) -> f32 {
    combine(value, shared, team, false)
}

#[cube]
fn combine(value: f32, shared: &mut SharedMemory<f32>, #[comptime] team: Team, #[comptime] sums: bool) -> f32 {
    if comptime!(team.plane > 0) {
        let part = if comptime!(sums) { plane_sum(value) } else { plane_max(value) };
        if comptime!(team.lanes > team.plane) { gather(part, shared, team, sums) } else { part }
    } else {
        fold(value, shared, team, sums)
    }
}

/// Combines the results of the planes of a team.
#[cube]
fn gather(value: f32, shared: &mut SharedMemory<f32>, #[comptime] team: Team, #[comptime] sums: bool) -> f32 {
    let unit = UNIT_POS as usize;
    let planes = comptime!(team.lanes / team.plane);
    // The units may still read what an earlier call left.
    sync_cube();
    if unit.is_multiple_of(team.plane) {
        shared[unit / team.plane] = value;
    }
    sync_cube();
    let first = unit / team.lanes * planes;
    let mut result = shared[first];
    #[unroll]
    for i in 1..planes {
        result = merge(result, shared[first + i], sums);
    }
    result
}

/// Combines the values of a team in shared memory, pair by pair.
#[cube]
fn fold(value: f32, shared: &mut SharedMemory<f32>, #[comptime] team: Team, #[comptime] sums: bool) -> f32 {
    let unit = UNIT_POS as usize;
    let lane = unit % team.lanes;
    let steps = comptime!(team.lanes.trailing_zeros());
    sync_cube();
    shared[unit] = value;
    sync_cube();
    #[unroll]
    for step in 0..steps {
        let stride = comptime!(team.lanes >> (step + 1));
        if lane < stride {
            shared[unit] = merge(shared[unit], shared[unit + stride], sums);
        }
        sync_cube();
    }
    shared[unit - lane]
}

#[cube]
fn merge(a: f32, b: f32, #[comptime] sums: bool) -> f32 {
    if comptime!(sums) { a + b } else { max(a, b) }
}

/// The sum of the elements of a vector.
#[cube]
pub fn across<N: Size>(vector: Vector<f32, N>) -> f32 {
    let mut sum = vector[0];
    #[unroll]
    for i in 1..N::value() {
        sum += vector[i];
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::{array, cubes, dim};
    use crate::launches::count;
    use crate::trial::{Trial, noise};
    use cubecl::wgpu::WgpuRuntime;

    #[cube(launch_unchecked)]
    fn both(values: &Array<f32>, out: &mut Array<f32>, tally: &mut Array<Atomic<u32>>, #[comptime] team: Team) {
        count(tally);
        let mut shared = SharedMemory::<f32>::new(UNITS);
        let value = values[UNIT_POS as usize];
        let high = team_max(value, &mut shared, team);
        let sum = team_sum(value, &mut shared, team);
        out[2 * UNIT_POS as usize] = sum;
        out[2 * UNIT_POS as usize + 1] = high;
    }

    #[test]
    fn teams_agree_on_sums_and_maxima() {
        let trial = Trial::new();
        let values = noise(UNITS, 1);
        // cubecl uses no planes on software, where they work all the same.
        let hardware = &trial.client.properties().hardware;
        let fixed = hardware.plane_size_min == hardware.plane_size_max;
        let planes = if fixed { vec![0, hardware.plane_size_min as usize] } else { vec![0] };
        let mut launches = 0;
        for (plane, vectors) in planes.iter().flat_map(|&p| [1, 64, 100, 200, 500, 5000].map(|v| (p, v))) {
            let team = Team::with_plane(plane, vectors);
            assert!(team.lanes <= UNITS && team.each(vectors) * team.lanes >= vectors);
            let (input, out) = (trial.floats(&values), trial.empty(2 * UNITS));
            // SAFETY: the lengths are those of the buffers.
            unsafe {
                both::launch_unchecked::<WgpuRuntime>(
                    &trial.client,
                    cubes(&trial.client, 1),
                    dim(),
                    array(&input, UNITS),
                    array(&out, 2 * UNITS),
                    array(&trial.tally, 1),
                    team,
                );
            }
            launches += 1;
            let out = trial.read(&out);
            for (unit, pair) in out.chunks(2).enumerate() {
                let first = unit / team.lanes * team.lanes;
                let own = &values[first..first + team.lanes];
                let want: f64 = own.iter().map(|&v| f64::from(v)).sum();
                assert!((f64::from(pair[0]) - want).abs() < 1e-4, "{team:?} unit {unit}: {} not {want}", pair[0]);
                assert_eq!(pair[1], own.iter().copied().fold(f32::MIN, f32::max), "{team:?} unit {unit}");
            }
        }
        assert_eq!(trial.ran(), launches);
    }
}
