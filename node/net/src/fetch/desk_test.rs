use super::*;

const ASK_EVERY: Duration = Duration::from_secs(1);

fn id(number: usize) -> NodeId {
    NodeId([number as u8 + 1; 32])
}

fn desk(items: usize, donors: usize) -> Desk {
    let items = (0..items).map(|index| Item { index, parts: Vec::new() });
    let sources: Vec<_> = (0..donors).map(id).collect();
    Desk::new(items.collect(), &sources, &(Arc::new(|_: &NodeId| true) as IsStranger), ASK_EVERY)
}

fn fetches(desk: &mut Desk, number: usize) -> Option<usize> {
    match desk.next(number) {
        Next::Fetch(at, _) => Some(at),
        _ => None,
    }
}

#[test]
fn an_item_long_under_way_may_be_fetched_by_more() {
    let mut desk = desk(1, 9);
    let take = |desk: &mut Desk| (0..9).filter(|n| fetches(desk, *n).is_some()).count();
    assert_eq!(take(&mut desk), 2);
    desk.entries[0].since -= LONG;
    assert_eq!(take(&mut desk), 1);
    desk.entries[0].since -= 3 * LONG;
    assert_eq!(take(&mut desk), 2);
}

/// A stream whose place another download waits for copies nothing that is on its way and not late.
#[test]
fn copies_wait_for_the_next_download() {
    let mut desk = desk(2, 2);
    assert_eq!([fetches(&mut desk, 0), fetches(&mut desk, 0)], [Some(0), Some(1)]);
    desk.want(1, true);
    assert!(!desk.has_need(1) && matches!(desk.next(1), Next::Wait));
    desk.entries[1].since -= COPIED_FIRST;
    assert!(desk.has_need(1));
    assert_eq!([fetches(&mut desk, 1), fetches(&mut desk, 1)], [Some(1), None], "that one is late");
    desk.want(1, false);
    assert_eq!(fetches(&mut desk, 1), Some(0));
    assert!(desk.finish(0, 0, 1) && desk.finish(1, 0, 1) && desk.has_need(1), "its stream may end");
}

#[test]
fn a_fellow_is_asked_what_it_has_now_and_then_and_for_nothing_else() {
    let mut desk = desk(10, 1);
    assert_eq!(desk.take_in(&[id(0), id(5), id(5)]), [(1, id(5))], "the first is a donor");
    assert!(matches!(desk.next(1), Next::Ask));
    assert!(matches!(desk.next(1), Next::Pause(pause) if pause <= ASK_EVERY));
    desk.heard(1, vec![0b1000_0000, 0b1111_1110]);
    assert_eq!([fetches(&mut desk, 1), fetches(&mut desk, 1)], [Some(7), Some(9)]);
    assert!(matches!(desk.next(1), Next::Pause(_)));
    desk.seats[1].asked_at = desk.seats[1].asked_at.map(|at| at - ASK_EVERY);
    assert!(matches!(desk.next(1), Next::Ask));
}

#[test]
fn a_fellow_that_fails_rests_and_comes_back() {
    let mut desk = desk(2, 1);
    desk.take_in(&[id(5)]);
    desk.heard(1, vec![0b11]);
    let at = fetches(&mut desk, 1).unwrap();
    desk.put_back(at, 1, true);
    for _ in 0..2 * BREAKS_MAX {
        desk.broke(1, &FetchError::NoStream("gone".into()));
        assert!(matches!(desk.next(1), Next::Pause(rest) if rest <= REST));
        assert!(desk.verdict().is_none());
        desk.seats[1].rests_until = Some(Instant::now());
        assert!(matches!(desk.next(1), Next::Ask), "what it had may be gone");
    }
}

#[test]
fn a_fellow_that_takes_no_part_yet_is_asked_again_sooner_than_one_that_has_failed() {
    let mut desk = desk(2, 1);
    desk.ask_every = ASK_EVERY / 4;
    desk.take_in(&[id(5)]);
    assert!(matches!(desk.next(1), Next::Ask));
    desk.absent(1);
    assert!(matches!(desk.next(1), Next::Pause(rest) if rest <= ASK_EVERY / 2));
    desk.seats[1].rests_until = Some(Instant::now());
    assert!(matches!(desk.next(1), Next::Ask));
    assert!(matches!(desk.next(1), Next::Pause(pause) if pause <= ASK_EVERY / 4));
    assert!(desk.verdict().is_none());
}

#[test]
fn a_donor_is_asked_for_what_no_fellow_has_first() {
    let mut desk = desk(4, 1);
    desk.take_in(&[id(5)]);
    desk.heard(1, vec![0b0101]);
    let all: Vec<_> = (0..4).map_while(|_| fetches(&mut desk, 0)).collect();
    assert_eq!(all, [1, 3, 0, 2]);
    assert_eq!(fetches(&mut desk, 1), Some(0), "a second copy, since nothing is left to begin");
}

#[test]
fn a_fellow_makes_no_second_copies_while_anything_is_left_to_begin() {
    let mut desk = desk(3, 1);
    desk.take_in(&[id(5)]);
    desk.heard(1, vec![0b01]);
    assert_eq!([fetches(&mut desk, 1), fetches(&mut desk, 0)], [Some(0), Some(1)]);
    desk.heard(1, vec![0b11]);
    assert_eq!(fetches(&mut desk, 1), None);
    assert_eq!(fetches(&mut desk, 0), Some(2));
    assert_eq!(fetches(&mut desk, 1), Some(1));
}

/// Fellows cost nothing to make.
#[test]
fn items_that_fellows_hold_are_fetched_from_donors_at_once() {
    let mut desk = desk(2, 1);
    desk.take_in(&[id(5), id(6)]);
    for fellow in [1, 2] {
        desk.heard(fellow, vec![0b11]);
        assert!(fetches(&mut desk, fellow).is_some() && fetches(&mut desk, fellow).is_some());
    }
    assert!(fetches(&mut desk, 0).is_some() && fetches(&mut desk, 0).is_some());
}

#[test]
fn fellows_neither_fail_nor_save_a_download() {
    let mut desk = desk(1, 1);
    desk.take_in(&[id(5)]);
    desk.heard(1, vec![1]);
    let at = fetches(&mut desk, 1).unwrap();
    desk.put_back(at, 1, false);
    desk.lied(1, "another length".into());
    assert!(desk.verdict().is_none());
    assert_eq!(desk.report.liars, [id(5)]);
    let at = fetches(&mut desk, 0).unwrap();
    desk.put_back(at, 0, false);
    assert!(matches!(desk.verdict(), Some(Err(DownloadError::Missing { index: 0, sources: 1 }))));
    let gone = FetchError::NoStream("gone".into());
    assert!((0..BREAKS_MAX).any(|_| desk.broke(0, &gone)), "it is given up");
    assert!(matches!(desk.verdict(), Some(Err(DownloadError::NoSources { sources: 1, left: 1, .. }))));
}

#[test]
fn so_many_fellows_work_at_once_and_those_at_rest_make_room() {
    let (mut desk, many) = (desk(1, SOURCES_MAX + 1), (100..200).map(id).collect::<Vec<_>>());
    assert_eq!(desk.seats.len(), SOURCES_MAX);
    assert_eq!(desk.take_in(&many).len(), FELLOWS_AT_ONCE);
    assert!(desk.take_in(&many).is_empty());
    let mut fellows = FELLOWS_AT_ONCE;
    while fellows < FELLOWS_MAX {
        (SOURCES_MAX..desk.seats.len()).for_each(|number| desk.rest(number));
        fellows += desk.take_in(&many).len();
    }
    (SOURCES_MAX..desk.seats.len()).for_each(|number| desk.rest(number));
    assert!(desk.take_in(&many).is_empty(), "there are {FELLOWS_MAX}");
}
