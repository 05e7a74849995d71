//! Mirrors that share a walk.

use super::*;

/// The time of a walk: so many requests for so many blocks each, `at_once` under way.
async fn walk(fakes: &[&Arc<Fake>], at_once: usize) -> Duration {
    let mirrors = &mirrors(fakes);
    heads(mirrors, 1000 * MS).await;
    let started = Instant::now();
    let requests = (0..WALK).map(|_| async move {
        let wanted = wanting(LONGER..LONGER + EACH as u32);
        mirrors
            .fetch(0, wanted.clone(), after(DEADLINE))
            .await
            .unwrap();
        assert!(wanted.missing().is_empty());
    });
    let mut requests = futures_util::stream::iter(requests).buffer_unordered(at_once);
    while requests.next().await.is_some() {}
    started.elapsed()
}

const LINE: Does = Does::Line(Duration::from_millis(10), Duration::from_micros(100));

#[tokio::test(start_paused = true)]
async fn mirrors_at_different_distances_share_a_walk() {
    let alone = walk(&[&Fake::new("near", LINE)], 32).await;
    assert!(alone >= WALK * EACH as u32 * MS / 10, "{alone:?}");
    let far = |each_us| Does::Line(60 * MS, Duration::from_micros(each_us));
    // With a line as wide, with one half as wide, and with one a tenth as wide.
    for (each_us, share) in [(100, 0.62), (200, 0.78), (1000, 1.0)] {
        let (a, b) = (Fake::new("near", LINE), Fake::new("far", far(each_us)));
        let both = walk(&[&a, &b], 32).await;
        let ratio = both.as_secs_f64() / alone.as_secs_f64();
        println!(
            "{each_us} us: {ratio:.2} of the time, {} from afar",
            b.asked()
        );
        assert!(ratio <= share, "{each_us} us: {ratio}");
        let both = walk(&[&b, &a], 32).await;
        let ratio = both.as_secs_f64() / alone.as_secs_f64();
        assert!(ratio <= share, "{each_us} us, the other order: {ratio}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_mirror_on_a_narrow_line_does_not_slow_a_walk_down() {
    let alone = walk(&[&Fake::new("near", LINE)], 32).await;
    let narrow = Fake::new("narrow", Does::Line(60 * MS, 100 * MS));
    let both = walk(&[&Fake::new("near", LINE), &narrow], 32).await;
    println!("{both:?}, alone {alone:?}, {} asked", narrow.asked());
    // It is tried once, and the reader asks the other one after a second.
    assert!(both <= alone + 1100 * MS, "{both:?}, alone {alone:?}");
    assert!(narrow.asked() <= 8, "{}", narrow.asked());
}

#[tokio::test(start_paused = true)]
async fn one_request_at_a_time_stays_with_the_near_mirror() {
    let (near, far) = (
        Fake::new("near", LINE),
        Fake::new("far", Does::Line(60 * MS, MS)),
    );
    walk(&[&far, &near], 1).await;
    // Once to find out, and perhaps again after some seconds.
    assert!(far.asked() <= 2, "{}", far.asked());
}

#[tokio::test(start_paused = true)]
async fn a_walk_goes_on_when_one_of_the_mirrors_that_share_it_fails() {
    for does in [Does::Fail, Does::Stall, Does::Lie, Does::Deny] {
        let near = Fake::new("near", LINE);
        let far = Fake::new("far", Does::Line(20 * MS, Duration::from_micros(100)));
        let fails = Arc::clone(&far);
        let fail = async move {
            tokio::time::sleep(200 * MS).await;
            fails.now_does(does);
        };
        let fakes = [&near, &far];
        let (took, ()) = futures_util::future::join(walk(&fakes, 32), fail).await;
        println!("{does:?}: {took:?}");
        assert!(took < 6000 * MS, "{does:?}: {took:?}");
    }
}
