//! Clients whose home asks for a beacon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trust::device::DeviceKey;

use super::hosted::{Hosted, Wire};
use super::lies::forger;
use super::{Lab, create, done, key, soon};
use crate::client::beacons::Beacons;
use crate::client::driver::Driver;
use crate::client::start::{Parts, seen};
use crate::client::{Client, ClientError, Options};
use crate::files::{Answer, Call};

/// A client of machine 1 that asks for the device of machine 2 as a beacon.
fn watching(lab: &Lab, wire: &Arc<Wire>, within: Duration) -> Client {
    let (home, options) = (lab.home(1), Options::default());
    let two = DeviceKey::from(&key(2).public());
    home.set_beacon(two, Some(within)).unwrap();
    let parts = Parts::of(&home, &options).unwrap();
    let (policies, shelf) = (parts.policies.clone(), Arc::clone(&parts.shelf));
    let core = parts.open(&home, soon()).unwrap();
    let dial = Arc::new(Hosted {
        door: Arc::clone(&lab.door),
        device: DeviceKey::from(&key(1).public()),
        wire: Arc::clone(wire),
    });
    let (client, plug) = Client::new(
        policies,
        ("lab", None),
        &options,
        seen(&core),
        Default::default(),
    );
    let driver = Driver::new(
        core,
        plug.commands,
        dial,
        plug.shown,
        shelf,
        (plug.hasher, plug.near),
    );
    tokio::spawn(driver.with_beacons(Beacons::of(&home)).run());
    client
}

/// How long the beacon has been silent, as the client knows.
async fn age(client: &Client) -> Duration {
    client.status(soon()).await.unwrap().beacons[0].age
}

#[tokio::test(flavor = "multi_thread")]
async fn entry_that_the_beacon_did_not_sign_is_nothing_new() {
    let lab = Lab::new();
    let (wire, ready) = (Arc::<Wire>::default(), Arc::<AtomicBool>::default());
    *wire.lie.lock().unwrap() = Some(forger(lab.volume, Arc::clone(&ready)));
    let one = watching(&lab, &wire, Duration::from_secs(3600));
    one.running(soon()).await.unwrap();
    lab.admit(&one, 2).await;
    let two = lab.client(2);
    two.running(soon()).await.unwrap();
    done(two.call(create(&two, "first", "x"), soon()).await);
    done(one.call(Call::Members, soon()).await);
    let (signed, since) = (age(&one).await, Instant::now());
    let before = one.view().size;
    tokio::time::sleep(Duration::from_millis(50)).await;
    ready.store(true, Ordering::SeqCst);
    done(two.call(create(&two, "next", "y"), soon()).await);
    one.wait(soon(), |view| view.size > before).await.unwrap();
    let elapsed = since.elapsed();
    assert!(age(&one).await >= signed + elapsed);
}

#[tokio::test(flavor = "multi_thread")]
async fn entry_of_the_beacon_begins_its_time_again() {
    let lab = Lab::new();
    let one = watching(&lab, &Arc::default(), Duration::from_secs(3600));
    one.running(soon()).await.unwrap();
    lab.admit(&one, 2).await;
    let two = lab.client(2);
    two.running(soon()).await.unwrap();
    done(two.call(create(&two, "first", "x"), soon()).await);
    done(one.call(Call::Members, soon()).await);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let began = Instant::now();
    done(two.call(create(&two, "next", "y"), soon()).await);
    done(one.call(Call::Members, soon()).await);
    assert!(age(&one).await <= began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_that_was_under_way_when_the_time_passed_is_not_given() {
    let lab = Lab::new();
    let within = Duration::from_secs(2);
    let one = watching(&lab, &Arc::default(), within);
    let began = Instant::now();
    one.running(soon()).await.unwrap();
    lab.door.close();
    let reading = tokio::spawn({
        let one = one.clone();
        async move { one.call(Call::Members, soon()).await }
    });
    let writing = tokio::spawn({
        let (one, call) = (one.clone(), create(&one, "plan", ""));
        async move { one.call(call, soon()).await }
    });
    tokio::time::sleep(within.saturating_sub(began.elapsed()) + Duration::from_millis(500)).await;
    lab.serve();
    let told = reading.await.unwrap();
    assert!(matches!(told, Err(ClientError::Overdue { .. })), "{told:?}");
    // A change that was taken before the time passed has had effect, and says so.
    assert!(matches!(done(writing.await.unwrap()), Answer::Done(_)));
    let late = one.call(Call::Members, soon()).await;
    assert!(matches!(late, Err(ClientError::Overdue { .. })), "{late:?}");
    // What was verified is still there to look at.
    done(one.look(Call::Members, soon()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_start_of_the_beacon_is_no_sign_of_it() {
    let lab = Lab::new();
    let one = watching(&lab, &Arc::default(), Duration::from_secs(3600));
    one.running(soon()).await.unwrap();
    lab.admit(&one, 2).await;
    let two = lab.client(2);
    two.running(soon()).await.unwrap();
    for name in ["first", "second"] {
        done(two.call(create(&two, name, "x"), soon()).await);
        done(one.call(Call::Members, soon()).await);
    }
    let (signed, since) = (age(&one).await, Instant::now());
    two.close(soon()).await.unwrap();
    let before = one.view().size;
    let two = lab.client(2);
    two.running(soon()).await.unwrap();
    done(one.call(Call::Members, soon()).await);
    // An answer may come before the view that shows its leaf.
    one.wait(soon(), |view| view.size > before + 1)
        .await
        .unwrap();
    let elapsed = since.elapsed();
    assert!(age(&one).await >= signed + elapsed);
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_list_of_beacons_is_an_error_and_not_an_empty_list() {
    let lab = Lab::new();
    let home = lab.home(1);
    let options = Options::default();
    assert!(Parts::of(&home, &options).is_ok());
    std::fs::write(home.directory().join("beacons"), "key1 soon\n").unwrap();
    let Err(ClientError::Home(why)) = Parts::of(&home, &options) else {
        panic!("it begins without its beacons");
    };
    assert!(why.contains("beacons"), "{why}");
}

#[test]
fn programs_that_change_the_list_of_beacons_keep_what_others_wrote() {
    let lab = Lab::new();
    let home = lab.home(1);
    std::thread::scope(|scope| {
        for program in 0..4 {
            let home = &home;
            scope.spawn(move || {
                for number in 0..16 {
                    let device = DeviceKey::from(&key(program * 16 + number).public());
                    home.set_beacon(device, Some(Duration::from_secs(7)))
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(home.beacons().unwrap().len(), 64);
}
