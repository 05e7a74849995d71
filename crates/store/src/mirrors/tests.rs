//! Mirrors that are fast, slow, dead, stalled, behind, or malicious, with a simulated clock.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

use trust::frame::{Frame, Packer};
use trust::{Data, Hasher, Kind};

use bytes::Bytes;
use futures_util::stream::StreamExt;

use super::*;
use crate::{BlockStore, BoxFuture, StoreError};

mod mute;
mod outages;
mod walks;

/// What a [`Fake`] does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Does {
    Answer(Duration),
    /// The time of an answer, and the time for which each block takes its line, one after the other.
    Line(Duration, Duration),
    Fail,
    NoVolume,
    Stall,
    Lie,
    Deny,
    DenyAfter(Duration),
    Newer,
}

const MS: Duration = Duration::from_millis(1);

struct Fake {
    name: String,
    does: Mutex<Does>,
    asked: AtomicUsize,
    born: Instant,
    /// Bytes come from it all the time, for others.
    is_sending: AtomicBool,
    line_until: Mutex<Option<Instant>>,
}

impl Fake {
    fn new(name: &str, does: Does) -> Arc<Fake> {
        Arc::new(Fake {
            name: name.to_owned(),
            does: Mutex::new(does),
            asked: AtomicUsize::new(0),
            born: Instant::now(),
            is_sending: AtomicBool::new(false),
            line_until: Mutex::new(None),
        })
    }

    /// When its line has sent `blocks` more.
    fn line(&self, blocks: usize, each: Duration) -> Instant {
        let mut until = self.line_until.lock().unwrap();
        let begins = until.unwrap_or_else(Instant::now).max(Instant::now());
        let ends = begins + each * blocks as u32;
        *until = Some(ends);
        ends
    }

    fn now_does(&self, does: Does) {
        *self.does.lock().unwrap() = does;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

fn hasher() -> Hasher {
    Hasher::new(&[5; 32])
}

/// Blocks from this number on are longer: a mirror does not know how long the blocks are that it is asked for.
const LONGER: u32 = 900;
const LONGER_BYTES: usize = 1 << 10;

fn record(number: u32) -> Record {
    let mut plain = number.to_le_bytes().to_vec();
    if number >= LONGER {
        let noise = (0..LONGER_BYTES as u32).map(|n| ((n * n * number) >> 7) as u8);
        plain.extend(noise);
    }
    let handle = hasher().name(Kind::Data, &plain);
    let frame = Packer::new().pack(Kind::Data, &plain).unwrap();
    Record { handle, frame }
}

/// The frame of a block that nobody has named.
fn lie() -> Frame {
    Packer::new().pack(Kind::Data, b"lie!").unwrap()
}

fn records() -> &'static HashMap<Handle, Record> {
    static ALL: OnceLock<HashMap<Handle, Record>> = OnceLock::new();
    let all = || (0..1000).map(record).map(|record| (record.handle, record));
    ALL.get_or_init(|| all().collect())
}

impl BlockStore for Fake {
    fn place(&self) -> &str {
        &self.name
    }

    fn heard(&self) -> Option<std::time::Instant> {
        let is_sending = self.is_sending.load(Ordering::Relaxed);
        let heard = match *self.does.lock().unwrap() {
            Does::Line(..) => Instant::now(),
            _ if is_sending => Instant::now(),
            _ => self.born,
        };
        Some(heard.into_std())
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        _around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let does = *self.does.lock().unwrap();
        Box::pin(async move {
            let give = |honest| {
                let one = |handle| match honest {
                    true => records()[handle].clone(),
                    false => Record {
                        handle: *handle,
                        frame: lie(),
                    },
                };
                Ok(want.iter().map(one).collect())
            };
            match does {
                Does::Answer(after) => {
                    tokio::time::sleep(after).await;
                    give(true)
                }
                Does::Line(after, each) => {
                    let sent = self.line(want.len(), each);
                    tokio::time::sleep_until(sent + after).await;
                    give(true)
                }
                Does::Lie => give(false),
                Does::Deny => Ok(Vec::new()),
                Does::DenyAfter(after) => {
                    tokio::time::sleep(after).await;
                    Ok(Vec::new())
                }
                Does::Stall => std::future::pending().await,
                Does::Newer => Err(StoreError::Unsupported {
                    place: self.name.clone(),
                    why: "protocol 7".to_owned(),
                }),
                Does::NoVolume => Err(StoreError::NoVolume {
                    place: self.name.clone(),
                }),
                Does::Fail => Err(StoreError::Unavailable {
                    place: self.name.clone(),
                    cause: "test".to_owned(),
                }),
            }
        })
    }
}

impl Replica for Fake {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        let does = *self.does.lock().unwrap();
        Box::pin(async move {
            let (place, cause) = (self.name.clone(), "test".to_owned());
            match does {
                Does::Answer(after) | Does::Line(after, _) => tokio::time::sleep(after).await,
                Does::Stall => std::future::pending().await,
                Does::Fail => return Err(StoreError::Unavailable { place, cause }),
                Does::NoVolume => return Err(StoreError::NoVolume { place }),
                _ => {}
            }
            Ok(Bytes::from(self.name.clone()))
        })
    }
}

struct Taking {
    missing: Mutex<Vec<Handle>>,
    wrong: AtomicUsize,
}

impl ResponseVerifier for Taking {
    fn verify(&self, _: &dyn BlockStore, records: Vec<Record>) -> Vec<(Handle, Reject)> {
        let mut wrong = Vec::new();
        for Record { handle, frame } in records {
            let name = Handle::<Data>::from_bytes(*handle.as_bytes());
            let checked = frame
                .plaintext::<Data>()
                .and_then(|p| hasher().check(&name, p));
            match checked {
                Ok(_) => self.missing.lock().unwrap().retain(|m| *m != handle),
                Err(why) => wrong.push((handle, why)),
            }
        }
        self.wrong.fetch_add(wrong.len(), Ordering::Relaxed);
        wrong
    }

    fn missing(&self) -> Vec<Handle> {
        self.missing.lock().unwrap().clone()
    }
}

fn wanting(numbers: std::ops::Range<u32>) -> Arc<Taking> {
    Arc::new(Taking {
        missing: Mutex::new(numbers.map(|n| record(n).handle).collect()),
        wrong: AtomicUsize::new(0),
    })
}

fn mirrors(fakes: &[&Arc<Fake>]) -> Mirrors {
    let replica = |fake: &&Arc<Fake>| -> Arc<dyn Replica> { Arc::clone(fake) as _ };
    Mirrors::new(fakes.iter().map(replica).collect())
}

const DEADLINE: Duration = Duration::from_secs(30);

fn after(time: Duration) -> std::time::Instant {
    (Instant::now() + time).into_std()
}

/// The time that one block takes.
async fn get(mirrors: &Mirrors) -> Result<Duration, Vec<Fault>> {
    let started = Instant::now();
    mirrors.fetch(0, wanting(0..1), after(DEADLINE)).await?;
    Ok(started.elapsed())
}

/// The first heads of a round, and then its end.
async fn heads(mirrors: &Mirrors, patience: Duration) -> Vec<HeadAnswer> {
    let asking = Asking {
        toward: None,
        patience,
        through_outages: true,
    };
    let answers = mirrors.heads(asking).next(after(DEADLINE)).await;
    answers.unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn fastest_mirror_is_asked_once_all_are_known() {
    let slow = Fake::new("slow", Does::Answer(80 * MS));
    let fast = Fake::new("fast", Does::Answer(8 * MS));
    let both = mirrors(&[&slow, &fast]);
    heads(&both, 1000 * MS).await;
    for _ in 0..50 {
        assert_eq!(get(&both).await.unwrap(), 8 * MS);
    }
    assert_eq!(slow.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn failure_denial_and_wrong_block_each_cost_one_more_answer() {
    for does in [Does::Fail, Does::Deny, Does::Lie] {
        let bad = Fake::new("bad", does);
        let good = Fake::new("good", Does::Answer(10 * MS));
        let both = mirrors(&[&bad, &good]);
        assert_eq!(get(&both).await.unwrap(), 10 * MS, "{does:?}");
        for _ in 0..100 {
            assert_eq!(get(&both).await.unwrap(), 10 * MS, "{does:?}");
        }
        // Set aside, or ranked behind, or tried again beside the good one.
        assert!(bad.asked() < 12, "{does:?}: asked {} times", bad.asked());
    }
}

#[tokio::test(start_paused = true)]
async fn only_missing_blocks_are_asked_elsewhere() {
    struct Half(Arc<Fake>);
    impl BlockStore for Half {
        fn place(&self) -> &str {
            "half"
        }
        fn get_many<'a>(
            &'a self,
            want: &'a [Handle],
            around: usize,
        ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
            self.0.get_many(&want[..want.len() / 2], around)
        }
    }
    impl Replica for Half {
        fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
            self.0.head()
        }
    }
    let half = Arc::new(Half(Fake::new("half", Does::Answer(MS))));
    let whole = Fake::new("whole", Does::Answer(MS));
    let both = Mirrors::new(vec![half, whole.clone()]);
    both.fetch(0, wanting(0..100), after(DEADLINE))
        .await
        .unwrap();
    let counts: Vec<_> = both.status().into_iter().map(|s| s.counts).collect();
    assert_eq!((counts[0].denials, counts[1].denials), (1, 0));
    assert_eq!(whole.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn stalled_mirror_is_noticed_and_then_costs_nothing() {
    let one = Fake::new("one", Does::Answer(5 * MS));
    let two = Fake::new("two", Does::Answer(9 * MS));
    let both = mirrors(&[&one, &two]);
    heads(&both, 1000 * MS).await;
    for _ in 0..100 {
        get(&both).await.unwrap();
    }
    one.now_does(Does::Stall);
    let first = get(&both).await.unwrap();
    assert!(first < 100 * MS, "the first took {first:?}");
    let mut worst = Duration::ZERO;
    for _ in 0..2000 {
        worst = worst.max(get(&both).await.unwrap());
    }
    assert!(worst < 50 * MS, "then {worst:?}");
    let status = &both.status()[0];
    assert!(status.counts.failures > 0, "{status:?}");
    // It is used again when it answers again.
    one.now_does(Does::Answer(5 * MS));
    tokio::time::sleep(Duration::from_secs(40)).await;
    for _ in 0..100 {
        get(&both).await.unwrap();
    }
    assert_eq!(get(&both).await.unwrap(), 5 * MS);
}

#[tokio::test(start_paused = true)]
async fn hedges_are_limited_by_their_budget() {
    let one = Fake::new("one", Does::Answer(10 * MS));
    let two = Fake::new("two", Does::Answer(10 * MS));
    let both = mirrors(&[&one, &two]);
    // Mirrors that send nothing at all are asked without a budget.
    for fake in [&one, &two] {
        fake.is_sending.store(true, Ordering::Relaxed);
    }
    for round in 0..2000 {
        // 18 requests, each slower than all recent ones at both mirrors; then 64 at the usual time, which
        // push the slow ones out of the memory.
        let step = match round % 82 {
            step @ 0..18 => step,
            _ => 0,
        };
        let does = Does::Answer((10 * MS).mul_f64(1.3_f64.powi(step)));
        one.now_does(does);
        two.now_does(does);
        get(&both).await.unwrap();
    }
    let asked = one.asked() + two.asked();
    assert!(asked > 2000 + 80, "{asked} requests for 2000");
    assert!(asked <= 2000 + 100 + 4, "{asked} requests for 2000");
}

#[tokio::test(start_paused = true)]
async fn mirror_with_wrong_answers_is_asked_when_no_other_is_left() {
    let liar = Fake::new("liar", Does::Lie);
    let alone = mirrors(&[&liar]);
    let faults = get(&alone).await.unwrap_err();
    assert!(
        matches!(faults.as_slice(), [Fault::Wrong { .. }, ..]),
        "{faults:?}"
    );
    liar.now_does(Does::Answer(MS));
    assert!(get(&alone).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn mirror_that_is_behind_is_asked_last() {
    let behind = Fake::new("behind", Does::Answer(MS));
    let newest = Fake::new("newest", Does::Answer(50 * MS));
    let both = mirrors(&[&behind, &newest]);
    heads(&both, 1000 * MS).await;
    both.set_behind(0, true);
    assert_eq!(get(&both).await.unwrap(), 50 * MS);
    newest.now_does(Does::Fail);
    assert_eq!(get(&both).await.unwrap(), MS);
}

#[test]
fn refusal_of_a_head_is_reported_when_it_begins_changes_or_ends() {
    let fake = |name| Fake::new(name, Does::Deny);
    let two = mirrors(&[&fake("one"), &fake("two")]);
    let told = |index, why: Option<&str>| two.set_head_refusal(index, why.map(str::to_owned));
    assert!(!told(0, None), "nothing has changed");
    assert!(told(0, Some("old")));
    assert!(!told(0, Some("old")));
    assert!(told(1, Some("old")), "of another mirror");
    assert!(told(0, Some("forged")));
    assert!(told(0, None));
    assert!(!told(0, None));
    assert!(told(0, Some("old")), "again");
    assert!(!told(2, Some("old")), "no such mirror");
}

#[tokio::test(start_paused = true)]
async fn wrong_block_in_a_lost_request_is_evidence() {
    struct LateLiar;
    impl BlockStore for LateLiar {
        fn place(&self) -> &str {
            "late liar"
        }
        fn get_many<'a>(
            &'a self,
            want: &'a [Handle],
            _around: usize,
        ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(3)).await;
                let one = |handle: &Handle| Record {
                    handle: *handle,
                    frame: lie(),
                };
                Ok(want.iter().map(one).collect())
            })
        }
    }
    impl Replica for LateLiar {
        fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
            Box::pin(async { Ok(Bytes::new()) })
        }
    }
    let good = Fake::new("good", Does::Answer(10 * MS));
    let both = Mirrors::new(vec![Arc::new(LateLiar), good]);
    assert!(get(&both).await.unwrap() < 400 * MS);
    assert_eq!(both.status()[0].counts.wrong, 0);
    tokio::time::sleep(Duration::from_secs(4)).await;
    let status = &both.status()[0];
    assert_eq!(status.counts.wrong, 1, "{status:?}");
    assert!(status.set_aside.is_some(), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn heads_do_not_wait_for_silent_mirrors() {
    let silent = Fake::new("silent", Does::Stall);
    let prompt = Fake::new("prompt", Does::Answer(10 * MS));
    let both = mirrors(&[&silent, &prompt]);
    let started = Instant::now();
    let heads = heads(&both, 500 * MS).await;
    assert_eq!(started.elapsed(), 510 * MS);
    assert_eq!(heads.len(), 1);
    assert_eq!(heads[0].0, 1);
}

#[tokio::test(start_paused = true)]
async fn mirror_of_a_later_protocol_is_passed_over_without_blame() {
    let newer = Fake::new("newer", Does::Newer);
    let good = Fake::new("good", Does::Answer(10 * MS));
    let both = mirrors(&[&newer, &good]);
    for _ in 0..50 {
        assert_eq!(get(&both).await.unwrap(), 10 * MS);
    }
    assert_eq!(newer.asked(), 1);
    let status = &both.status()[0];
    assert_eq!((status.counts.failures, status.counts.wrong), (0, 0));
    let (left, why) = status.set_aside.clone().unwrap();
    assert!(why.contains("needs a newer bulla: protocol 7"), "{why}");
    // Nothing doubles: it is set aside for the same time again and again.
    for _ in 0..20 {
        tokio::time::sleep(left).await;
        get(&both).await.unwrap();
        let again = both.status()[0].set_aside.as_ref().map(|(left, _)| *left);
        assert!(again.is_none_or(|again| again <= Duration::from_secs(30)));
    }
    assert!(newer.asked() > 3, "{}", newer.asked());
}

#[tokio::test(start_paused = true)]
async fn mirrors_of_a_later_protocol_alone_need_a_newer_bulla() {
    let fakes = ["a", "b"].map(|name| Fake::new(name, Does::Newer));
    let both = mirrors(&[&fakes[0], &fakes[1]]);
    for _ in 0..3 {
        let faults = get(&both).await.unwrap_err();
        let newer = |fault: &Fault| matches!(fault, Fault::Unsupported { .. });
        assert!(faults.len() == 2 && faults.iter().all(newer), "{faults:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn answer_of_one_mirror_is_not_taken_for_that_of_another() {
    // The first request to each mirror: `b` is asked because `a` is slow, and answers after `a` denied.
    let a = Fake::new("a", Does::DenyAfter(500 * MS));
    let b = Fake::new("b", Does::Answer(250 * MS));
    let c = Fake::new("c", Does::Answer(MS));
    a.is_sending.store(true, Ordering::Relaxed);
    let all = mirrors(&[&a, &b, &c]);
    assert_eq!(get(&all).await.unwrap(), 550 * MS);
    assert_eq!((a.asked(), b.asked(), c.asked()), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn wrong_answers_are_forgotten_with_time_and_not_by_good_service() {
    let pause = |breaker: &Breaker| breaker.set_aside(Instant::now()).map(|(left, _)| left);
    let seconds = Duration::from_secs;
    let mut breaker = Breaker::default();
    for _ in 0..4 {
        breaker.bad(Cause::Lie, Instant::now());
    }
    assert_eq!(pause(&breaker), Some(seconds(80)));
    tokio::time::sleep(seconds(1800)).await;
    for _ in 0..1000 {
        breaker.good(Instant::now());
    }
    breaker.bad(Cause::Lie, Instant::now());
    assert_eq!(pause(&breaker), Some(seconds(160)));
    tokio::time::sleep(seconds(2 * 3600)).await;
    breaker.bad(Cause::Lie, Instant::now());
    assert_eq!(pause(&breaker), Some(seconds(80)));
    tokio::time::sleep(seconds(1000 * 3600)).await;
    breaker.bad(Cause::Lie, Instant::now());
    assert_eq!(pause(&breaker), Some(seconds(10)));
}

const WALK: u32 = 400;
const EACH: usize = 64;
