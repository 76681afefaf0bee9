//! A count of the launches that ran. Runtimes log a kernel that does not compile or start, and go on.

use crate::words;
use cubecl::prelude::*;
use cubecl::server::Handle;
use std::cell::Cell;

/// Bytes from one part of the buffer to the next: every device can bind there.
const PART: usize = 256;

/// A step's report: numbers that its kernels write, and the count of those that ran. Both cross at once.
pub struct Tally {
    /// f32, NaN until a kernel writes it.
    report: Handle,
    /// u32.
    count: Handle,
    whole: Handle,
    asked: Cell<u32>,
}

impl Tally {
    pub fn new<R: Runtime>(client: &ComputeClient<R>) -> Self {
        let mut words = [f32::NAN.to_bits(); 2 * PART / 4];
        words[PART / 4..].fill(0);
        let whole = client.create_from_slice(bytemuck::cast_slice(&words));
        let count = whole.clone().offset_start(PART as u64);
        Self { report: whole.clone(), count, whole, asked: Cell::new(0) }
    }

    /// The device's count, for that many more launches.
    pub fn of(&self, launches: u32) -> &Handle {
        self.asked.set(self.asked.get() + launches);
        &self.count
    }

    /// The report: f32, at least 4 of them.
    pub fn report(&self) -> &Handle {
        &self.report
    }

    /// Waits for all launches, and reads the report.
    ///
    /// # Errors
    /// The device's words; the two numbers, if fewer launches ran than were asked for.
    pub fn read<R: Runtime, const N: usize>(&self, client: &ComputeClient<R>) -> Result<[f32; N], String> {
        let read = words::guarded(|| client.read_one(self.whole.clone()))?;
        let bytes = read.map_err(|error| words::of(&error))?;
        if bytes.len() < 2 * PART {
            return Err(format!("it gave {} bytes of {}", bytes.len(), 2 * PART));
        }
        let ran: u32 = bytemuck::pod_read_unaligned(&bytes[PART..PART + 4]);
        let asked = self.asked.get();
        if ran != asked {
            let why = words::last().map_or(String::new(), |panic| format!(": {panic}"));
            return Err(format!("{ran} of {asked} kernels ran{why}"));
        }
        let mut report = [f32::NAN; N];
        bytemuck::cast_slice_mut(&mut report).copy_from_slice(&bytes[..4 * N]);
        Ok(report)
    }
}

/// Adds 1 to `tally[0]` for the whole launch. Each kernel calls this once, outside any condition.
#[cube]
pub fn count(tally: &mut Array<Atomic<u32>>) {
    if ABSOLUTE_POS == 0 {
        tally[0].fetch_add(1u32);
    }
}
