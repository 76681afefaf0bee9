//! Trainers that end at any moment, say nothing, or write where they have nothing to write.

use super::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// An answer to whatever was asked: a trainer need not know what a node ignores.
fn answer(ask: &Value) -> Value {
    json!({"answer": ask["id"], "loss": 0.5, "samples": 2, "weight": 6})
}

impl Node {
    /// The next trainer is welcome, and trains.
    fn goes_on(&mut self) {
        let fake = trainer(self, |_, answer| answer);
        assert_eq!(self.is_ready(), Ready::Anew);
        self.round(1).expect("it trains");
        self.external.end(false);
        fake.join().expect("it ends with the node's last ask");
    }
}

#[test]
fn a_trainer_may_end_at_any_ask() {
    let mut node = fellow();
    for moment in 0..20 {
        let path = node.door.path().to_path_buf();
        let fake = std::thread::spawn(move || {
            let fake = joins(&path);
            for _ in 0..moment / 2 {
                let ask = hear(&fake.stream).expect("an ask");
                say(&fake.stream, &answer(&ask));
            }
            // It ends before its answer, or in the middle of it.
            hear(&fake.stream).expect("an ask");
            if moment % 2 == 1 {
                (&fake.stream).write_all(&[40, 0]).expect("there is room");
            }
        });
        assert_eq!(node.is_ready(), Ready::Anew);
        let ended = (1..=2).find_map(|round| node.round(round).err());
        assert!(matches!(ended, Some(TaskError::Gone(_))), "moment {moment}: {ended:?}");
        fake.join().expect("it has ended");
        node.goes_on();
    }
}

#[test]
fn a_second_node_does_not_take_the_door_of_the_first() {
    let mut node = fellow();
    let refused = Door::open(node.folder.path(), node.door.terms()).err().expect("it is taken").to_string();
    assert!(refused.contains("another node waits for a trainer"), "{refused}");
    assert!(!node.door.was_left());
    node.goes_on();
}

#[test]
fn what_was_saved_outlives_a_node_that_is_killed_while_it_is_replaced() {
    let Node { door, external, folder } = fellow();
    let terms = door.terms();
    drop((door, external));
    std::fs::create_dir_all(terms.former()).expect("a folder");
    let door = Door::open(folder.path(), terms.clone()).expect("the other one is shut");
    let fake = joins(door.path());
    assert_eq!(fake.welcome["saved"], terms.saved().to_string_lossy().into_owned());
}

#[test]
fn a_trainer_that_says_nothing_is_let_go_and_told_why() {
    let mut node = fellow();
    let note = Arc::new(Note::default());
    node.external = External::new(node.door.clone(), task(), (2, Duration::from_millis(200)), note.clone());
    let path = node.door.path().to_path_buf();
    let fake = std::thread::spawn(move || {
        let fake = joins(&path);
        while let Some(ask) = hear(&fake.stream) {
            if !ask["refused"].is_null() {
                return ask;
            }
            if ask["ask"] != "step" {
                say(&fake.stream, &answer(&ask));
            }
        }
        Value::Null
    });
    assert_eq!(node.is_ready(), Ready::Anew);
    let ended = node.round(1).expect_err("it does no step").to_string();
    assert!(ended.contains("silent: no answer in time to step 0"), "{ended}");
    assert_eq!(note.words(), format!("none ({ended})"));
    let told = fake.join().expect("the node ends the connection");
    assert_eq!((&told["refused"], &told["passing"]), (&json!("silent"), &json!(true)));
    node.goes_on();
}

#[test]
fn a_node_that_ends_waits_for_no_long_step() {
    let mut node = fellow();
    let leaving = Arc::new(OnceLock::new());
    node.external.watch(leaving.clone());
    let path = node.door.path().to_path_buf();
    let fake = std::thread::spawn(move || {
        let fake = joins(&path);
        while let Some(ask) = hear(&fake.stream) {
            if ask["ask"] != "step" {
                say(&fake.stream, &answer(&ask));
            }
        }
    });
    assert_eq!(node.is_ready(), Ready::Anew);
    let long_ago = Instant::now().checked_sub(Duration::from_secs(30)).expect("this machine is not that new");
    leaving.set(long_ago).expect("once");
    let ended = node.round(1).expect_err("it does no step").to_string();
    assert!(ended.contains("this node ends"), "{ended}");
    fake.join().expect("the node has closed the connection");
}

#[test]
fn a_trainer_that_talks_without_an_answer_is_as_late_as_a_silent_one() {
    let mut node = fellow();
    node.external = External::new(node.door.clone(), task(), (2, Duration::from_millis(200)), Arc::default());
    let path = node.door.path().to_path_buf();
    let fake = std::thread::spawn(move || {
        let fake = joins(&path);
        while let Some(ask) = hear(&fake.stream) {
            if ask["ask"] != "step" {
                say(&fake.stream, &answer(&ask));
                continue;
            }
            let line = json!({"say": "log", "text": "still here"}).to_string();
            let frame = [&(line.len() as u32).to_le_bytes()[..], line.as_bytes()].concat();
            while (&fake.stream).write_all(&frame).is_ok() {}
        }
    });
    assert_eq!(node.is_ready(), Ready::Anew);
    let ended = node.round(1).expect_err("it does no step").to_string();
    assert!(ended.contains("silent: no answer in time to step 0"), "{ended}");
    fake.join().expect("the node ends the connection");
    node.goes_on();
}

/// The memory is written, and asked to shrink, while the node reads and writes it.
#[test]
fn a_trainer_that_writes_at_random_harms_its_own_numbers_only() {
    let mut node = fellow();
    for _ in 0..5 {
        let path = node.door.path().to_path_buf();
        let fake = std::thread::spawn(move || {
            let fake = joins(&path);
            let size = fake.welcome["memory"]["bytes"].as_u64().expect("a size");
            let (memory, over) = (fake.memory.try_clone().expect("a handle"), Arc::new(AtomicBool::new(false)));
            let is_over = over.clone();
            let scribbling = std::thread::spawn(move || {
                let mut state = 7_u64;
                while !is_over.load(Ordering::Acquire) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    // Half of it goes to the parameters. The memory ends before some of it.
                    let at = if state >> 63 == 0 { (state >> 33) % 24 } else { (state >> 33) % (size + 16) };
                    let _ = memory.write_all_at(&state.to_le_bytes(), at);
                    let _ = memory.set_len((state >> 33) % size);
                }
            });
            fake.train(|_, answer| answer);
            over.store(true, Ordering::Release);
            scribbling.join().expect("it stops");
        });
        assert_eq!(node.is_ready(), Ready::Anew);
        for round in 1..=20 {
            match node.round(round) {
                Ok((learned, read)) => assert!(learned.len() == 3 && read.iter().all(|x| x.is_finite())),
                Err(TaskError::Gone(_)) => break,
                Err(other) => panic!("{other}"),
            }
        }
        node.external.end(false);
        fake.join().expect("it has ended");
    }
    node.goes_on();
}

#[test]
fn what_a_trainer_sends_is_cut_before_it_is_kept_or_shown() {
    let node = fellow();
    let path = node.door.path().to_path_buf();
    let refused = |frames: &[Value]| come(&path, frames).err().map(|said| said["refused"].clone());
    for long in [json!({"name": "x".repeat(256)}), json!({"name": "x", "shape": [1, 1, 1, 1, 1, 1, 1, 1, 1]})] {
        let mut other = tensors();
        long.as_object().expect("fields").iter().for_each(|(key, value)| other["tensors"][1][key] = value.clone());
        assert_eq!(refused(&[hello(), other]), Some(json!("schema")));
    }
    let said = come(&path, &[json!({"hello": "y".repeat(100_000)})]).err().expect("no number");
    let why = said["why"].as_str().expect("a text");
    assert!(said["refused"] == "not-json" && why.contains("yyy") && why.len() <= 4096, "{} bytes", why.len());
}
