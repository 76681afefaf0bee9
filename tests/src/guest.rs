//! A small trainer on the other side of the bridge (`docs/bridge.md`), for tests with real nodes: it fits a line.

use anyhow::{Context, bail};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Weights of the line.
pub const WEIGHTS: usize = 64;
/// Training samples.
pub const SAMPLES: u64 = 4096;
/// The longest frame.
const FRAME_BYTES_MAX: usize = 1 << 20;

/// Weights, and the mean of what was seen.
#[derive(Clone, Debug)]
pub struct Line {
    weights: Vec<f32>,
    mean: f32,
    /// Time that a step takes besides.
    pub pause: Duration,
}

/// The end of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The node has nothing more to ask, for good.
    Over,
    /// It may be tried again.
    Lost,
    /// The node does not want this trainer.
    Refused(String),
}

impl Line {
    /// A line of so many weights, which are another process's own before anything was learned.
    pub fn new(weights: usize) -> Self {
        let first = f32::from(u8::try_from(std::process::id() % 97).unwrap_or_default()) / 97.0;
        Self { weights: vec![first; weights], mean: 0.0, pause: Duration::from_millis(20) }
    }

    /// Follows a node as long as it asks.
    pub fn follow(&mut self, socket: &Path) -> anyhow::Result<End> {
        let stream = match UnixStream::connect(socket) {
            Ok(stream) => stream,
            Err(_) => return Ok(End::Lost),
        };
        let tensors = json!({"tensors": [
            {"name": "line.weight", "shape": [self.weights.len()], "kind": "learned", "dtype": "f32"},
            {"name": "line.mean", "shape": [1], "kind": "mean", "dtype": "f32"},
        ]});
        let hello = json!({"hello": 1, "program": "line 1", "tensors": 2, "samples": SAMPLES, "evaluates": true,
                           "saves": true});
        if say(&stream, &hello).is_err() || say(&stream, &tensors).is_err() {
            return Ok(End::Lost);
        }
        let (memory, welcome) = match welcomed(&stream) {
            Ok((Some(memory), welcome)) => (memory, welcome),
            Ok((None, refused)) => return Ok(refused_by(&refused)),
            Err(_) => return Ok(End::Lost),
        };
        let mut lease = Vec::new().into_iter();
        while let Some(ask) = hear(&stream) {
            if !ask["refused"].is_null() {
                return Ok(refused_by(&ask));
            }
            let mut answer = json!({"answer": ask["id"]});
            match ask["ask"].as_str() {
                Some("load") => self.load(&memory)?,
                Some("lease") => lease = samples(&memory, &welcome, &ask)?.into_iter(),
                Some("step") => {
                    let unit = usize::try_from(welcome["unit"].as_u64().unwrap_or_default())?;
                    let batch: Vec<u64> = lease.by_ref().take(unit).collect();
                    let loss = self.step(&batch, ask["lr"].as_f64().unwrap_or_default() as f32);
                    answer = json!({"answer": ask["id"], "loss": loss, "samples": batch.len(), "weight": batch.len()});
                }
                Some("read") => self.read(&memory)?,
                Some("evaluate") => {
                    let held_out: Vec<f64> = (SAMPLES..SAMPLES + 64).map(|sample| self.error(sample).1).collect();
                    let loss = held_out.iter().sum::<f64>() / held_out.len() as f64;
                    answer = json!({"answer": ask["id"], "loss": loss, "weight": held_out.len()});
                }
                Some("save") => {
                    let folder = ask["folder"].as_str().context("a folder")?;
                    std::fs::write(Path::new(folder).join("seen"), self.mean.to_le_bytes())?;
                }
                Some("end") => {
                    let _ = say(&stream, &answer);
                    return Ok(if ask["why"] == "left" { End::Lost } else { End::Over });
                }
                other => bail!("an unknown ask: {other:?}"),
            }
            if say(&stream, &answer).is_err() {
                break;
            }
        }
        Ok(End::Lost)
    }

    /// The features of a sample, and what the true line says of it.
    fn point(&self, sample: u64) -> (Vec<f32>, f32) {
        let feature = |n: usize| {
            let mixed = sample.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n as u64 * 0x94d0_49bb_1331_11eb);
            ((mixed ^ (mixed >> 31)) % 2001) as f32 / 1000.0 - 1.0
        };
        let features: Vec<f32> = (0..self.weights.len()).map(feature).collect();
        let truth = features.iter().enumerate().map(|(n, x)| x * (n % 7) as f32 / 7.0).sum();
        (features, truth)
    }

    /// The distance of the line from a sample, and its square.
    fn error(&self, sample: u64) -> (f32, f64) {
        let (features, truth) = self.point(sample);
        let error = features.iter().zip(&self.weights).map(|(x, w)| x * w).sum::<f32>() - truth;
        (error, f64::from(error) * f64::from(error))
    }

    fn step(&mut self, batch: &[u64], lr: f32) -> f64 {
        std::thread::sleep(self.pause);
        let mut loss = 0.0;
        for sample in batch {
            let ((features, truth), (error, square)) = (self.point(*sample), self.error(*sample));
            loss += square / batch.len().max(1) as f64;
            let rate = lr * error / batch.len().max(1) as f32;
            self.weights.iter_mut().zip(&features).for_each(|(w, x)| *w -= rate * x);
            self.mean += 0.01 * (truth - self.mean);
        }
        loss
    }

    fn load(&mut self, memory: &File) -> anyhow::Result<()> {
        let mut bytes = vec![0; 4 * self.weights.len() + 4];
        memory.read_exact_at(&mut bytes, 0)?;
        let mut numbers = bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number));
        self.weights.iter_mut().zip(numbers.by_ref()).for_each(|(weight, number)| *weight = number);
        let last = bytes.last_chunk::<4>().context("a mean")?;
        self.mean = f32::from_le_bytes(*last);
        Ok(())
    }

    fn read(&self, memory: &File) -> anyhow::Result<()> {
        let bytes: Vec<u8> = self.weights.iter().chain([&self.mean]).flat_map(|number| number.to_le_bytes()).collect();
        Ok(memory.write_all_at(&bytes, 0)?)
    }
}

fn refused_by(said: &Value) -> End {
    let why = format!("refused ({}): {}", said["refused"].as_str().unwrap_or("?"), said["why"].as_str().unwrap_or("?"));
    if said["passing"] == true { End::Lost } else { End::Refused(why) }
}

/// The numbers of a lease.
fn samples(memory: &File, welcome: &Value, ask: &Value) -> anyhow::Result<Vec<u64>> {
    let area = usize::try_from(ask["area"].as_u64().context("an area")?)?;
    let at = welcome["memory"]["areas"][area].as_u64().context("an offset")?;
    let mut bytes = vec![0; 8 * usize::try_from(ask["samples"].as_u64().context("a count")?)?];
    memory.read_exact_at(&mut bytes, at)?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect())
}

fn say(mut stream: &UnixStream, said: &Value) -> std::io::Result<()> {
    let json = said.to_string();
    stream.write_all(&[&(json.len() as u32).to_le_bytes()[..], json.as_bytes()].concat())
}

fn hear(mut stream: &UnixStream) -> Option<Value> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    rest_of(stream, length)
}

fn rest_of(mut stream: &UnixStream, length: [u8; 4]) -> Option<Value> {
    let length = u32::from_le_bytes(length) as usize;
    let mut json = vec![0; Some(length).filter(|length| *length <= FRAME_BYTES_MAX)?];
    stream.read_exact(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}

/// The welcome and the memory, or a refusal.
fn welcomed(stream: &UnixStream) -> anyhow::Result<(Option<File>, Value)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 4];
    let (first, others) = length.split_at_mut(1);
    let got = recvmsg(stream, &mut [IoSliceMut::new(first)], &mut control, RecvFlags::empty())?;
    anyhow::ensure!(got.bytes == 1, "the node has closed");
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let mut reader = stream;
    reader.read_exact(others)?;
    Ok((file.map(File::from), rest_of(stream, length).context("an answer")?))
}
