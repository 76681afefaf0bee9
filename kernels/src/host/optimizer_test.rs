use super::*;
use crate::config::ModelConfig;

fn model() -> ModelConfig {
    ModelConfig { vocab: 12, d_model: 8, layers: 1, heads: 2, kv_heads: 1, ffn: 12, seq_len: 4, ..preset() }
}

fn preset() -> ModelConfig {
    ModelConfig::preset("0.1m").unwrap()
}

const UPDATE: Update =
    Update { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, gradient_scale: 0.5, step: 0 };
const STEPS: usize = 6;

fn values(elements: usize, seed: usize) -> Vec<f32> {
    (0..elements).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 * 1e-3 - 1.0).collect()
}

/// The parameters after some steps of the optimizer.
fn trained(rule: Rule, threads: usize) -> Vec<f32> {
    let (schema, team) = (model().schema(), Team::new(threads).unwrap());
    let mut theta = values(schema.elements(), 0);
    let mut optimizer = Optimizer::new(rule, theta.len());
    for step in 1..=STEPS {
        let gradient = values(theta.len(), step);
        optimizer.step(&team, UPDATE, &schema, &mut theta, &gradient);
    }
    theta
}

/// The parameters after the same steps of `one`, in f64: it takes two numbers that it keeps, the scaled gradient, and
/// the number of the step.
fn by_hand(one: impl Fn(&mut [f64; 2], f64, i32) -> f64) -> Vec<f64> {
    let schema = model().schema();
    let mut theta: Vec<f64> = values(schema.elements(), 0).into_iter().map(f64::from).collect();
    let mut kept = vec![[0.0; 2]; theta.len()];
    for step in 1..=STEPS {
        let gradient = values(theta.len(), step);
        for tensor in &schema.tensors {
            let keep = if tensor.decays() { 1.0 - UPDATE.lr * UPDATE.weight_decay } else { 1.0 };
            for i in tensor.range() {
                let g = f64::from(gradient[i]) * UPDATE.gradient_scale;
                theta[i] = theta[i] * keep - one(&mut kept[i], g, step as i32);
            }
        }
    }
    theta
}

fn furthest(a: &[f32], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
}

#[test]
fn each_rule_follows_its_textbook() {
    let Update { lr, beta1, beta2, eps, .. } = UPDATE;
    let adamw = by_hand(|[m, v], g, step| {
        *m = beta1 * *m + (1.0 - beta1) * g;
        *v = beta2 * *v + (1.0 - beta2) * g * g;
        lr * (*m / (1.0 - beta1.powi(step))) / ((*v / (1.0 - beta2.powi(step))).sqrt() + eps)
    });
    let sgd = by_hand(|[m, _], g, _| {
        *m = beta1 * *m + g;
        lr * *m
    });
    let rms_prop = by_hand(|[_, v], g, _| {
        *v = beta2 * *v + (1.0 - beta2) * g * g;
        lr * g / (v.sqrt() + eps)
    });
    let lion = by_hand(|[m, _], g, _| {
        let ahead = beta1 * *m + (1.0 - beta1) * g;
        *m = beta2 * *m + (1.0 - beta2) * g;
        // Rounding decides the sign of what is almost nothing: no such value is among these.
        lr * if ahead.abs() < 1e-12 { 0.0 } else { ahead.signum() }
    });
    let start: Vec<f64> = values(adamw.len(), 0).into_iter().map(f64::from).collect();
    let rules = [(Rule::AdamW, adamw), (Rule::Sgd, sgd), (Rule::RmsProp, rms_prop), (Rule::Lion, lion)];
    for (rule, wanted) in rules {
        let got = trained(rule, 1);
        let moved = furthest(&got, &start);
        assert!(moved > 5e-3 && furthest(&got, &wanted) < 1e-5 + 1e-3 * moved, "{rule}: {}", furthest(&got, &wanted));
    }
}

#[test]
fn muon_steps_matrices_and_leaves_the_rest_to_adamw() {
    let (muon, adamw) = (trained(Rule::Muon, 1), trained(Rule::AdamW, 1));
    let schema = model().schema();
    for tensor in &schema.tensors {
        let same = muon[tensor.range()] == adamw[tensor.range()];
        assert_eq!(same, !is_inner_matrix(tensor), "{}", tensor.name);
    }
    let embedding = &schema.tensors[0];
    assert!(embedding.shape.len() == 2 && !is_inner_matrix(embedding));
}

#[test]
fn the_number_of_threads_changes_nothing() {
    for rule in Rule::ALL {
        assert_eq!(trained(rule, 1), trained(rule, 3), "{rule}");
        assert!(trained(rule, 1).iter().all(|x| x.is_finite()));
    }
}

#[test]
fn names_lead_back() {
    for rule in Rule::ALL {
        assert_eq!(rule.name().parse(), Ok(rule));
    }
    let refused = "adam".parse::<Rule>().unwrap_err();
    assert!(refused.contains("\"adam\"") && refused.contains("lion"), "{refused}");
}
