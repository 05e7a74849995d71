//! Outages of all mirrors that are shorter or longer than the deadline.

use super::*;

#[tokio::test(start_paused = true)]
async fn outage_that_is_shorter_than_the_deadline_is_waited_for() {
    for count in [1, 2, 5] {
        for lasts in [200 * MS, 1000 * MS, 5000 * MS, 10_000 * MS, 28_000 * MS] {
            let fakes: Vec<_> = (0..count)
                .map(|n| Fake::new(&format!("{n}"), Does::Fail))
                .collect();
            let all = mirrors(&fakes.iter().collect::<Vec<_>>());
            let returns = async {
                tokio::time::sleep(lasts).await;
                fakes[0].now_does(Does::Answer(MS));
            };
            let heads = async {
                assert_eq!(
                    heads(&all, MS)
                        .await
                        .iter()
                        .filter(|(_, it)| it.is_ok())
                        .count(),
                    1
                );
                Instant::now()
            };
            let began = Instant::now();
            let (took, came, ()) = futures_util::future::join3(get(&all), heads, returns).await;
            let case = format!("{count} mirrors, away for {lasts:?}");
            let took = took.unwrap_or_else(|faults| panic!("{case}: {faults:?}"));
            assert!(
                took >= lasts && took < lasts + 1600 * MS,
                "{case}: {took:?}"
            );
            assert!(
                came - began < lasts + 1600 * MS,
                "{case}: {:?}",
                came - began
            );
            assert!(
                fakes[0].asked() < 60,
                "{case}: asked {} times",
                fakes[0].asked()
            );
            assert_eq!(all.outage(), None, "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn outage_that_lasts_ends_at_the_deadline_with_what_the_mirrors_say() {
    let (one, two) = (Fake::new("one", Does::Fail), Fake::new("two", Does::Fail));
    let both = mirrors(&[&one, &two]);
    let began = Instant::now();
    let faults = both
        .fetch(0, wanting(0..1), after(2000 * MS))
        .await
        .unwrap_err();
    let took = began.elapsed();
    assert!(took > 1800 * MS && took <= 2000 * MS, "{took:?}");
    assert_eq!(faults.len(), 2, "{faults:?}");
    let outage = both.outage().unwrap();
    assert!(outage.lasts >= 1800 * MS, "{outage:?}");
    assert!(
        outage.cause.contains("one does not answer: test"),
        "{outage:?}"
    );
    let errors = heads(&both, MS).await;
    assert!(
        errors.len() == 2 && errors.iter().all(|(_, it)| it.is_err()),
        "{errors:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn many_requests_ask_as_often_as_one_in_an_outage() {
    let fake = Fake::new("lone", Does::Fail);
    let lone = mirrors(&[&fake]);
    let all = futures_util::future::join_all((0..10).map(|_| get(&lone)));
    assert!(all.await.iter().all(Result::is_err));
    // 30 s with a pause of a second at last, ten requests each time.
    assert!(fake.asked() < 10 * 60, "asked {} times", fake.asked());
}

#[tokio::test(start_paused = true)]
async fn mirror_that_denies_lies_or_has_another_volume_is_no_outage() {
    for does in [Does::Deny, Does::Lie, Does::NoVolume, Does::Newer] {
        let fake = Fake::new("lone", does);
        let lone = mirrors(&[&fake]);
        let began = Instant::now();
        assert!(get(&lone).await.is_err(), "{does:?}");
        assert_eq!(began.elapsed(), Duration::ZERO, "{does:?}");
    }
    let lone = mirrors(&[&Fake::new("lone", Does::NoVolume)]);
    let began = Instant::now();
    assert!(matches!(
        heads(&lone, MS).await[..],
        [(0, Err(StoreError::NoVolume { .. }))]
    ));
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn blocks_that_one_mirror_denies_are_waited_for_while_another_is_away() {
    let behind = Fake::new("behind", Does::Deny);
    let away = Fake::new("away", Does::Fail);
    let both = mirrors(&[&behind, &away]);
    let returns = async {
        tokio::time::sleep(3000 * MS).await;
        away.now_does(Does::Answer(MS));
    };
    let (took, ()) = futures_util::future::join(get(&both), returns).await;
    let took = took.unwrap();
    assert!(took < 4600 * MS, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn only_who_waits_for_outages_is_delayed_by_one() {
    let lone = mirrors(&[&Fake::new("lone", Does::Fail)]);
    let began = Instant::now();
    let asking = Asking {
        toward: None,
        patience: MS,
        through_outages: false,
    };
    let answers = lone.heads(asking).next(after(DEADLINE)).await.unwrap();
    assert!(matches!(answers[..], [(0, Err(_))]), "{answers:?}");
    assert_eq!(began.elapsed(), Duration::ZERO);
}
