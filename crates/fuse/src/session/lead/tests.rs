use super::*;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::channel;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

fn none() -> io::Result<()> {
    Err(io::Error::other("no threads"))
}

fn lead() -> (Lead, Turn) {
    let lead = Lead::new();
    let mut first = None;
    lead.start_first(|turn| {
        first = turn;
        Ok(())
    })
    .unwrap();
    (lead, first.unwrap())
}

fn wait_until(done: impl Fn() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < LONG);
        thread::sleep(Duration::from_millis(1));
    }
}

/// A thread that follows, and tells the turn that it is given.
fn follow<'a>(scope: &'a thread::Scope<'a, '_>, lead: &'a Lead) -> std::sync::mpsc::Receiver<Turn> {
    let (tell, told) = channel();
    scope.spawn(move || {
        if let Some(turn) = lead.follow(&Seat::new(), LEAST, &mut |_| {}) {
            tell.send(turn).unwrap();
        }
    });
    wait_until(|| lead.deputy.load(SeqCst) != ABSENT);
    told
}

#[test]
fn without_others_the_leader_goes_on() {
    let (lead, mut turn) = lead();
    for _ in 0..10 {
        assert!(lead.begin(&turn, none).is_err());
        let kept = lead.hand_on(turn, none).unwrap();
        turn = lead.ended(kept).unwrap();
    }
    assert_eq!((turn.0, lead.threads()), (11, 1));
}

/// After a panic in either state of a turn the same thread leads, unless another one does.
#[test]
fn who_panicked_goes_on() {
    let (lead, turn) = lead();
    let turn = lead.go_on(turn).unwrap();
    assert!(lead.begin(&turn, none).is_err());
    let turn = lead.go_on(turn).unwrap();
    assert_eq!(turn.0, 2);
    assert!(lead.begin(&turn, none).is_err());
    let next = lead.change(Turn(2)).unwrap();
    assert!(lead.go_on(turn).is_none());
    // A turn of another thread stays as it is.
    let why = cenote_format::invariant::caught(|| lead.begin(&Turn(7), none)).unwrap_err();
    assert!(why.ends_with("the leader waits for turn 14, and it is 6"), "{why}");
    assert!(lead.go_on(Turn(7)).is_none());
    assert_eq!(lead.word.load(SeqCst), next.waiting());
}

#[test]
fn what_may_block_is_handed_on_at_once() {
    let (lead, turn) = lead();
    thread::scope(|scope| {
        let told = follow(scope, &lead);
        lead.begin(&turn, none).unwrap();
        assert!(lead.hand_on(turn, none).is_none());
        let next = told.recv_timeout(LONG).unwrap();
        assert_eq!(lead.word.load(SeqCst), next.waiting());
        // What was handed on is over, whenever it ends.
        assert!(lead.ended(Turn(next.0 - 1)).is_none());
    });
}

#[test]
fn what_takes_long_is_overtaken_also_when_the_deputy_slept() {
    let (lead, mut turn) = lead();
    thread::scope(|scope| {
        let told = follow(scope, &lead);
        // Turns that are short do not change who leads.
        for _ in 0..1000 {
            lead.begin(&turn, none).unwrap();
            turn = lead.ended(turn).unwrap();
        }
        wait_until(|| lead.deputy.load(SeqCst) == SLEEPS);
        lead.begin(&turn, none).unwrap();
        let next = told.recv_timeout(LONG).unwrap();
        assert_eq!(next.0, turn.0 + 1);
        assert!(lead.ended(turn).is_none() && lead.deputy.load(SeqCst) == ABSENT);
    });
}

#[test]
fn who_is_done_leads_in_place_of_one_that_serves() {
    let (lead, turn) = lead();
    assert!(lead.begin(&turn, none).is_err());
    let next = lead.follow(&Seat::new(), LEAST, &mut |_| {}).unwrap();
    assert_eq!(next.0, turn.0 + 1);
    assert!(lead.ended(turn).is_none());
}

/// A thread that could not be started when the turn began is when that may block, once, and with no lock held.
#[test]
fn without_a_deputy_what_may_block_has_a_thread_started() {
    let (lead, turn) = lead();
    assert!(lead.begin(&turn, none).is_err());
    assert_eq!(lead.threads(), 1);
    let turn = lead
        .hand_on(turn, || {
            assert_eq!(lead.threads(), 2);
            Ok(())
        })
        .unwrap();
    let turn = lead.hand_on(turn, || panic!("one is coming")).unwrap();
    // It leads as soon as it comes.
    let next = lead.arrive(&Seat::new(), LEAST, &mut |_| {}).unwrap();
    assert_eq!(next.0, turn.0 + 1);
    assert!(lead.ended(turn).is_none());
}

#[test]
fn a_first_thread_that_cannot_be_started_is_started_later() {
    let lead = Lead::new();
    assert!(lead.start_first(|_| none()).is_err());
    assert_eq!(lead.threads(), 0);
    let mut turns = Vec::new();
    for _ in 0..2 {
        lead.start_first(|turn| {
            turns.extend(turn.map(|turn| turn.0));
            Ok(())
        })
        .unwrap();
    }
    assert_eq!((turns, lead.threads()), (vec![1], 1));
}

/// Threads lead by turns, hand on, are overtaken and come back: there is one leader at any time, and always one that comes.
#[test]
fn one_thread_leads_at_any_time() {
    const TURNS: usize = 3000;
    static LEAD: std::sync::LazyLock<Lead> = std::sync::LazyLock::new(Lead::new);
    static LEADING: AtomicBool = AtomicBool::new(false);
    static DONE: AtomicUsize = AtomicUsize::new(0);

    fn start() -> io::Result<()> {
        thread::Builder::new().spawn(move || run(None)).map(drop)
    }

    fn run(mut turn: Option<Turn>) {
        let seat = Seat::new();
        let mut arrives = turn.is_none();
        while DONE.load(SeqCst) < TURNS {
            if let Some(own) = turn.take() {
                assert!(!LEADING.swap(true, SeqCst));
                let n = DONE.fetch_add(1, SeqCst);
                LEADING.store(false, SeqCst);
                LEAD.begin(&own, start).unwrap();
                turn = match n % 21 {
                    0 | 7 | 14 => LEAD.hand_on(own, start).and_then(|own| LEAD.ended(own)),
                    8 => {
                        thread::sleep(Duration::from_millis(3));
                        LEAD.ended(own)
                    }
                    _ => LEAD.ended(own),
                };
                continue;
            }
            turn = match std::mem::take(&mut arrives) {
                true => LEAD.arrive(&seat, LEAST, &mut |_| {}),
                false => LEAD.follow(&seat, LEAST, &mut |_| {}),
            };
        }
    }

    LEAD.start_first(|turn| thread::Builder::new().spawn(move || run(turn)).map(drop)).unwrap();
    wait_until(|| DONE.load(SeqCst) >= TURNS);
}
