//! A device for tests: any adapter that wgpu finds, which may be software.

use cubecl::Runtime;
use cubecl::prelude::ComputeClient;
use cubecl::server::Handle;
use cubecl::wgpu::{WgpuDevice, WgpuRuntime};

pub struct Trial {
    pub client: ComputeClient<WgpuRuntime>,
    pub tally: Handle,
}

impl Trial {
    pub fn new() -> Self {
        let client = WgpuRuntime::client(&WgpuDevice::DefaultDevice);
        let tally = client.create_from_slice(&[0; 4]);
        Self { client, tally }
    }

    pub fn floats(&self, values: &[f32]) -> Handle {
        self.client.create_from_slice(bytemuck::cast_slice(values))
    }

    pub fn words(&self, values: &[u32]) -> Handle {
        self.client.create_from_slice(bytemuck::cast_slice(values))
    }

    /// A buffer of `len` elements that no test may take for a result.
    pub fn empty(&self, len: usize) -> Handle {
        self.floats(&vec![f32::NAN; len])
    }

    pub fn read(&self, handle: &Handle) -> Vec<f32> {
        let bytes = self.client.read_one(handle.clone()).expect("the device reads");
        bytes.as_chunks::<4>().0.iter().map(|word| f32::from_ne_bytes(*word)).collect()
    }

    /// Launches that ran.
    pub fn ran(&self) -> u32 {
        let bytes = self.client.read_one(self.tally.clone()).expect("the device reads");
        u32::from_ne_bytes(*bytes.first_chunk().expect("a word"))
    }
}

/// `len` values between -1 and 1 that depend on `seed` alone.
pub fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32) / ((1u64 << 23) as f32) - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Fails unless each value is within `tolerance` of what is wanted, relative to the largest wanted value or 1.
pub fn close(name: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{name}: length");
    let scale = want.iter().fold(1.0f64, |top, w| top.max(w.abs()));
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(g) - w).abs() <= tolerance * scale, "{name}[{i}] is {g}, not {w}");
    }
}
