//! Mirrors that say nothing, beside a good one.

use super::*;

/// What a read may take longer because others are mute.
const COST: Duration = Duration::from_millis(500);
const ANSWER: Duration = Duration::from_millis(40);
const PATIENCE: Duration = Duration::from_millis(250);

/// A good mirror at place `at` among others that do the same.
fn among(mute: usize, at: usize, does: Does) -> (Mirrors, Vec<Arc<Fake>>) {
    let fakes: Vec<Arc<Fake>> = (0..=mute)
        .map(|n| {
            Fake::new(
                &format!("{n}"),
                if n == at { Does::Answer(ANSWER) } else { does },
            )
        })
        .collect();
    let mirrors = mirrors(&fakes.iter().collect::<Vec<_>>());
    (mirrors, fakes)
}

#[tokio::test(start_paused = true)]
async fn mute_mirrors_cost_less_than_half_a_second_at_the_opening_and_then_nothing() {
    for mute in [1, 8, 25, 31] {
        for at in [0, mute / 2, mute] {
            let (all, fakes) = among(mute, at, Does::Stall);
            let began = Instant::now();
            let heads = heads(&all, PATIENCE).await;
            assert_eq!(heads.len(), 1, "{mute} mute, good at {at}");
            let first = get(&all).await.unwrap();
            let took = began.elapsed();
            assert!(
                took <= ANSWER * 2 + COST,
                "{mute} mute, good at {at}: {took:?}"
            );
            assert_eq!(first, ANSWER, "{mute} mute, good at {at}");
            for n in 0..40 {
                let took = get(&all).await.unwrap();
                assert_eq!(took, ANSWER, "{mute} mute, good at {at}, read {n}");
                tokio::time::sleep(100 * MS).await;
            }
            // Each is tried again at times, beside the good one.
            let most = fakes.iter().enumerate().filter(|(n, _)| *n != at);
            let most = most.map(|(_, fake)| fake.asked()).max();
            assert!(most <= Some(40), "{mute} mute, good at {at}: {most:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn mirrors_that_become_mute_cost_less_than_half_a_second() {
    for mute in [1, 8, 25, 31] {
        for at in [0, mute / 2, mute] {
            // Small requests, and a large one of a walk.
            for blocks in [1, 64] {
                let nearer = Does::Answer(ANSWER / 4);
                let (all, fakes) = among(mute, at, nearer);
                heads(&all, PATIENCE).await;
                for _ in 0..50 {
                    get(&all).await.unwrap();
                }
                for (n, fake) in fakes.iter().enumerate() {
                    if n != at {
                        fake.now_does(Does::Stall);
                    }
                }
                for n in 0..40 {
                    let began = Instant::now();
                    let wanted = wanting(0..blocks);
                    all.fetch(0, wanted, after(DEADLINE)).await.unwrap();
                    let (took, case) = (began.elapsed(), (mute, at, blocks, n));
                    assert!(took <= ANSWER + COST, "{case:?}: {took:?}");
                    tokio::time::sleep(100 * MS).await;
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn mirror_that_sends_a_long_answer_is_not_mute() {
    let narrow = Fake::new("narrow", Does::Line(MS, 30 * MS));
    let other = Fake::new("other", Does::Answer(MS));
    let both = mirrors(&[&narrow, &other]);
    let wanted = wanting(LONGER..LONGER + EACH as u32);
    let began = Instant::now();
    both.fetch(0, wanted, after(DEADLINE)).await.unwrap();
    assert!(began.elapsed() > 1900 * MS, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn heads_do_not_wait_for_a_mirror_again_that_failed() {
    let refuses = Fake::new("refuses", Does::Fail);
    let good = Fake::new("good", Does::Answer(10 * MS));
    let both = mirrors(&[&refuses, &good]);
    let began = Instant::now();
    assert_eq!(heads(&both, 10_000 * MS).await.len(), 1);
    assert_eq!(began.elapsed(), 10 * MS);
}

#[tokio::test(start_paused = true)]
async fn head_that_cannot_be_used_does_not_end_the_wait_for_others() {
    let forged = Fake::new("forged", Does::Answer(MS));
    let far = Fake::new("far", Does::Answer(3000 * MS));
    let mute = Fake::new("mute", Does::Stall);
    let all = mirrors(&[&forged, &far, &mute]);
    let mut round = all.heads(Asking {
        toward: None,
        patience: PATIENCE,
        through_outages: true,
    });
    let began = Instant::now();
    let names = |answers: Option<Vec<HeadAnswer>>| {
        let numbers = answers.into_iter().flatten();
        let numbers: Vec<(usize, bool)> = numbers.map(|(n, head)| (n, head.is_ok())).collect();
        numbers
    };
    let until = after(DEADLINE);
    assert_eq!(names(round.next(until).await), [(0, true)]);
    assert_eq!(began.elapsed(), MS + PATIENCE);
    assert_eq!(names(round.next(until).await), [(1, true)]);
    assert_eq!(began.elapsed(), 3000 * MS + PATIENCE);
    assert_eq!(names(round.next(until).await), [(2, false)]);
    assert_eq!(began.elapsed(), DEADLINE);
    assert_eq!(names(round.next(until).await), []);
}

#[tokio::test(start_paused = true)]
async fn late_head_makes_a_mirror_one_of_the_others_again() {
    let near = Fake::new("near", Does::Answer(MS));
    let late = Fake::new("late", Does::Answer(2000 * MS));
    let both = mirrors(&[&near, &late]);
    heads(&both, PATIENCE).await;
    assert!(both.status()[1].set_aside.is_some());
    tokio::time::sleep(3000 * MS).await;
    let status = &both.status()[1];
    assert_eq!(status.set_aside, None);
    assert_eq!(status.latency, Some(2000 * MS));
}
