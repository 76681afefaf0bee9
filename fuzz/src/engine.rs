//! Bytes as a history of one engine: messages, time, its driver's answers and lost connections. What must hold of every
//! answer is checked by the watch of the engine's own tests.

use crate::bench::{Bench, digest, id};
use crate::nonsense::{Words, nonsense, upheaval};
use starling_protocol::engine::io::{Input, Output};
use starling_protocol::message::Message;

/// Inputs of one history.
const INPUTS_MAX: usize = 400;

pub fn engine(data: &[u8]) {
    let mut words = Words::of(data);
    let mut bench = Bench::flock(2 + words.below(4) as u8);
    for _ in 0..INPUTS_MAX {
        if !words.more() {
            break;
        }
        let from = 2 + words.below(4) as u8;
        let outputs = match words.below(8) {
            0 => upheaval(&mut bench, &mut words),
            1 => truth(&mut bench, from, &mut words),
            2 => {
                let count = words.below(128) as usize;
                let bytes = words.take(count);
                bench.feed(Input::Message { from: id(from), bytes })
            }
            _ => {
                let message = nonsense(&bench, from, &mut words);
                if message.validate_shape().is_err() {
                    continue;
                }
                bench.say(from, &message)
            }
        };
        if outputs.iter().any(|output| matches!(output, Output::Refuse { .. })) {
            bench.reconnect(from);
        }
        if outputs.iter().any(|output| matches!(output, Output::Finished { .. })) {
            break;
        }
        let _ = (bench.engine.view(), bench.engine.wake_at());
    }
}

/// What brings the round on, so that nonsense meets every stage of it.
fn truth(bench: &mut Bench, from: u8, words: &mut Words<'_>) -> Vec<Output> {
    match words.below(5) {
        0 => {
            let ready = bench.ready(from);
            bench.say(from, &Message::Ready(ready))
        }
        1 => bench.trained(),
        2 => match bench.attempt() {
            Some(key) => bench.feed(Input::Reduced { key, update: digest(9) }),
            None => Vec::new(),
        },
        3 => match bench.attempt() {
            Some(key) => bench.feed(Input::Applied { key, update: digest(9), state_root: digest(10) }),
            None => Vec::new(),
        },
        _ => bench.echo(from),
    }
}
