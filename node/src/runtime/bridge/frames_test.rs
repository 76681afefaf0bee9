//! Frames that are sound, cut, too long, late, or no frames at all.

use super::super::said::Said;
use super::*;

/// No wait takes longer, on any machine.
const LONG: Duration = Duration::from_secs(20);

/// A pair of frames' ends, the second of which says what it likes.
fn pair() -> (Frames, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    (Frames::new(ours).expect("timeouts"), theirs)
}

#[test]
fn frames_are_bounded_before_anything_is_read() {
    let refused = |bytes: &[u8], reason: Reason| {
        let (mut ours, mut theirs) = pair();
        theirs.write_all(bytes).expect("there is room");
        drop(theirs);
        match ours.receive::<Said>(Instant::now() + LONG, "load") {
            Err(Broken::Refused(refusal)) => assert_eq!(refusal.reason, reason, "{bytes:?}"),
            other => panic!("{bytes:?}: {other:?}"),
        }
    };
    for length in [0, 1, FRAME_BYTES_MAX as u32 + 1, u32::MAX] {
        refused(&length.to_le_bytes(), Reason::TooLong);
    }
    refused(&[9], Reason::Cut);
    refused(&[9, 0, 0, 0], Reason::Cut);
    refused(&[9, 0, 0, 0, b'{'], Reason::Cut);
    refused(&[2, 0, 0, 0, b'[', b']'], Reason::NotJson);
    refused(&[2, 0, 0, 0, 0xff, 0xfe], Reason::NotJson);
    let (mut ours, theirs) = pair();
    drop(theirs);
    let ended = ours.receive::<Said>(Instant::now() + LONG, "load");
    assert!(matches!(ended, Err(Broken::Ended(_))), "an end between two frames is no fault");
}

#[test]
fn silence_and_single_bytes_end_at_the_deadline() {
    let (mut ours, mut theirs) = pair();
    let began = Instant::now();
    let silent = ours.receive::<Said>(began + Duration::from_millis(150), "step 3").expect_err("nothing comes");
    assert!(matches!(&silent, Broken::Refused(refusal) if refusal.reason == Reason::Silent), "{silent}");
    assert!(silent.to_string().contains("step 3"), "{silent}");
    theirs.write_all(&[9, 0, 0, 0, b'{']).expect("there is room");
    let slow = ours.receive::<Said>(Instant::now() + Duration::from_millis(150), "step 3");
    assert!(matches!(slow, Err(Broken::Refused(refusal)) if refusal.reason == Reason::Silent));
    assert!(began.elapsed() < LONG);
}

#[test]
fn bytes_at_random_are_refused_and_nothing_else() {
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    for _ in 0..500 {
        let (mut ours, mut theirs) = pair();
        let length = usize::from(random()) + 2;
        let mut bytes = (length as u32).to_le_bytes().to_vec();
        bytes.extend((0..length).map(|_| random()));
        // Half of them begin as JSON does.
        if random().is_multiple_of(2) {
            bytes[4] = b'{';
        }
        theirs.write_all(&bytes).expect("there is room");
        drop(theirs);
        assert!(ours.receive::<Said>(Instant::now() + LONG, "load").is_err());
    }
}

#[test]
fn a_frame_comes_as_it_was_sent() {
    let (mut ours, mut theirs) = pair();
    ours.send(&serde_json::json!({"ask": "read", "id": 1})).expect("there is room");
    let mut sent = [0; 25];
    theirs.read_exact(&mut sent).expect("it was sent");
    assert_eq!(sent[..4], 21_u32.to_le_bytes());
    assert_eq!(&sent[4..], br#"{"ask":"read","id":1}"#.as_slice());
    assert!(!ours.has_come(Instant::now()), "nothing was answered");
    theirs.write_all(&[&[13u8, 0, 0, 0][..], br#"{"answer": 1}"#].concat()).expect("there is room");
    assert!(ours.has_come(Instant::now() + LONG) && is_alive(&ours.handle().expect("a handle")));
    let said = ours.receive::<Said>(Instant::now() + LONG, "read").expect("an answer");
    assert_eq!(said.answer, Some(1));
    theirs.write_all(&[2, 0]).expect("there is room");
    drop(theirs);
    assert!(ours.has_come(Instant::now() + LONG) && !is_alive(&ours.handle().expect("a handle")), "an end is seen");
}
