//! The portable kernels on a graphics device (software Vulkan suffices), against plain f64 arithmetic.

use super::reference::{Reference, largest_error, noise};
use crate::attention::{Backward, Forward, Shape, Way, backward, forward, ways};
use cubecl::Runtime;
use cubecl::wgpu::{WgpuDevice, WgpuRuntime};
use proptest::prelude::*;

/// Bound on the difference from f64, relative to the largest element.
const BOUND: f64 = 1e-4;

fn agrees(shape: Shape) {
    let client = WgpuRuntime::client(&WgpuDevice::DefaultDevice);
    let [qkv, dout] = [(shape.width(), 1), (shape.heads * shape.head_dim, 2)].map(|(w, s)| noise(shape.rows() * w, s));
    let upload = |data: &[f32]| client.create_from_slice(bytemuck::cast_slice(data));
    // Garbage beforehand: every element must be written.
    let garbage = |len: usize| upload(&vec![f32::MAX; len]);
    let (q, d, tally) = (upload(&qkv), upload(&dout), client.create_from_slice(&[0; 4]));
    let (out, lse) = (garbage(dout.len()), garbage(shape.sums()));
    let (dsum, dqkv) = (garbage(shape.sums()), garbage(qkv.len()));
    assert_eq!(ways::<WgpuRuntime, f32>(&client, shape), [Way::Portable]);
    let tensors = Forward { qkv: &q, out: &out, lse: &lse };
    forward::<_, f32>(&client, Way::Portable, shape, tensors, &tally).unwrap();
    let tensors = Backward { forward: tensors, dout: &d, dsum: &dsum, dqkv: &dqkv };
    backward::<_, f32>(&client, Way::Portable, shape, tensors, &tally).unwrap();

    let read = |handle| bytemuck::cast_slice::<u8, f32>(&client.read_one(handle).unwrap()).to_vec();
    assert_eq!(read(tally)[0].to_bits(), 4, "{shape:?}: a kernel did not run");
    let right = Reference::new(shape, &qkv, &dout);
    for (name, got, want) in
        [("out", read(out), right.out), ("lse", read(lse), right.lse), ("dqkv", read(dqkv), right.dqkv)]
    {
        let error = largest_error(&got, &want);
        println!("{shape:?} {name}: {error:.2e}");
        assert!(error < BOUND, "{shape:?} {name}: {error}");
    }
}

#[test]
fn odd_shapes() {
    for tokens in [1, 17, 100] {
        for (heads, kv_heads) in [(4, 4), (12, 4), (8, 1)] {
            agrees(Shape { batch: 2, tokens, heads, kv_heads, head_dim: 64 });
        }
    }
    for head_dim in [2, 6, 8, 24, 32, 50, 96, 128, 160, 256] {
        agrees(Shape { batch: 1, tokens: 45, heads: 2, kv_heads: 1, head_dim });
    }
}

#[test]
fn impossible_shapes_are_refused() {
    let client = WgpuRuntime::client(&WgpuDevice::DefaultDevice);
    let good = Shape { batch: 1, tokens: 8, heads: 4, kv_heads: 2, head_dim: 16 };
    for bad in [
        Shape { tokens: 0, ..good },
        Shape { kv_heads: 3, ..good },
        Shape { head_dim: 15, ..good },
        Shape { tokens: 1 << 30, ..good },
    ] {
        assert!(ways::<WgpuRuntime, f32>(&client, bad).is_empty(), "{bad:?}");
    }
    let empty = client.empty(4);
    let tensors = Forward { qkv: &empty, out: &empty, lse: &empty };
    let refused = forward::<_, f32>(&client, Way::TensorCores, good, tensors, &empty);
    assert!(refused.unwrap_err().contains("bf16"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_shape(batch in 1usize..3, tokens in 1usize..80, kv_heads in 1usize..4, group in 1usize..4, half in 1usize..50) {
        agrees(Shape { batch, tokens, heads: kv_heads * group, kv_heads, head_dim: 2 * half });
    }
}
