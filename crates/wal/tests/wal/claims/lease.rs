//! The claim of a host that uses the log, and the fence before its devices.

use wal::claim::LEASE;

use super::*;

/// The owner reads the claim of another host and stops before it writes the answer. The other one takes the log meanwhile,
/// and may be gone again. The answer puts a claim back that was cleared.
#[test]
fn late_answer_of_a_host_that_lost_the_log_does_not_bring_it_back() {
    for (opens, goes) in [(false, false), (true, false), (true, true)] {
        let machine = machine(64);
        let (other, calls) = (machine.clone(), Mutex::new(0));
        let taken = Arc::new(Mutex::new(None));
        let takes = Arc::clone(&taken);
        let hooked = Hooked {
            before_write: Box::new(move || {
                *calls.lock().unwrap() += 1;
                // The first write is the claim. Those of the log's opening go past this device.
                if *calls.lock().unwrap() == 2 {
                    let lease = claim_at(&other, &TestHost::new(2, Life::Runs)).unwrap();
                    if opens {
                        let recovery = open_at(&other).unwrap();
                        let session = recovery.session();
                        let log = recovery.finish(&[]).unwrap();
                        lease.has_opened(session);
                        put(&log, ONE, record(1, 1));
                    }
                    if goes {
                        lease.release().unwrap();
                    }
                    *takes.lock().unwrap() = Some(lease);
                }
            }),
            ..Hooked::new(device(&machine))
        };
        let host = TestHost::new(1, Life::Runs);
        let first = claim(Arc::new(hooked), &key(), &options(&host)).unwrap();
        let recovery = open_at(&machine).unwrap();
        let session = recovery.session();
        let log = recovery.finish(&[]).unwrap();
        first.has_opened(session);
        log.check_session().unwrap();
        // Somebody asks.
        abandoned_by_a_third(&machine);
        first.look().unwrap_err();
        assert!(first.lost().is_some());
        assert!(taken.lock().unwrap().is_some());
    }
}

#[test]
fn host_whose_last_look_is_too_long_ago_looks_before_it_writes() {
    let machine = machine(64);
    let host = TestHost::new(1, Life::Runs);
    let first = claim_at(&machine, &host).unwrap();
    claim_at(&machine, &TestHost::new(2, Life::Runs)).unwrap();
    *host.now.lock().unwrap() += LEASE - Duration::from_millis(1);
    first.check().unwrap();
    *host.now.lock().unwrap() += Duration::from_millis(1);
    first.check().unwrap_err();
}

/// A hypervisor pauses a machine, and the clock in it too. Its lease seems to last when it goes on.
#[test]
fn sync_of_a_host_whose_clock_stood_still_fails_after_another_one_took_over() {
    let machine = machine(64);
    let first = Arc::new(claim_at(&machine, &TestHost::new(1, Life::Runs)).unwrap());
    let fenced = Fenced::new(device(&machine), Arc::clone(&first));
    let page = device(&machine).contents()[..PAGE as usize].to_vec();
    fenced.write(0, &page).unwrap();
    fenced.sync().unwrap();
    fenced.write(0, &page).unwrap();
    claim_at(&machine, &TestHost::new(2, Life::Runs)).unwrap();
    first.check().unwrap();
    let why = fenced.sync().unwrap_err().to_string();
    assert!(why.contains("host-2"), "{why}");
}

#[test]
fn claim_of_an_owner_that_is_damaged_is_written_anew() {
    let machine = machine(64);
    let first = claim_at(&machine, &TestHost::new(1, Life::Runs)).unwrap();
    let recovery = open_at(&machine).unwrap();
    first.has_opened(recovery.session());
    recovery.finish(&[]).unwrap();
    let page = page_at(pages(&machine)[0]);
    device(&machine).flip((page + 70) * 8);
    first.look().unwrap();
    assert!(first.lost().is_none());
    // It is authentic again: the other host refuses what it names.
    let refused = claim_at(&machine, &TestHost::new(1, Life::Runs)).map(drop);
    assert!(
        matches!(refused, Err(LogError::Claimed { .. })),
        "{refused:?}"
    );
    // Another host has opened the log and is gone, and the page is damaged.
    open_at(&machine).unwrap().finish(&[]).unwrap();
    device(&machine).flip((page + 70) * 8);
    first.look().unwrap_err();
    assert!(first.lost().is_some());
}

#[test]
fn read_error_is_no_takeover_and_no_leave_to_write() {
    let machine = machine(64);
    let broken = Arc::new(Mutex::new(None::<[u64; 2]>));
    let breaks = Arc::clone(&broken);
    let hooked = Hooked {
        before_read: Box::new(move |offset| match *breaks.lock().unwrap() {
            // The area is read at once, and then page by page.
            Some(pages)
                if pages.contains(&offset) || pages[0] >= AREA.start && offset == AREA.start =>
            {
                Err(std::io::Error::other("broken"))
            }
            _ => Ok(()),
        }),
        ..Hooked::new(device(&machine))
    };
    let host = TestHost::new(1, Life::Runs);
    let first = claim(Arc::new(hooked), &key(), &options(&host)).unwrap();
    let recovery = open_at(&machine).unwrap();
    first.has_opened(recovery.session());
    recovery.finish(&[]).unwrap();
    let own = page_at(pages(&machine)[0]);
    // The superblocks are read because the claim was damaged.
    for pages in [[own, own], [0, 128 << 10], [64 << 10, 192 << 10]] {
        *host.now.lock().unwrap() += LEASE;
        device(&machine).flip((own + 70) * 8);
        *broken.lock().unwrap() = Some(pages);
        let refused = first.check();
        assert!(first.lost().is_none(), "{pages:?}: {refused:?}");
        refused.unwrap_err();
        *broken.lock().unwrap() = None;
        first.check().unwrap();
    }
}

/// An owner that stopped looks while the other host writes that it has taken the log, and reads half of that page.
#[test]
fn statement_that_is_half_written_is_answered() {
    let machine = machine(64);
    let first = Arc::new(claim_at(&machine, &TestHost::new(1, Life::Runs)).unwrap());
    let (looks, disk, writes) = (Arc::clone(&first), device(&machine), Mutex::new(0));
    let own = pages(&machine)[0];
    let area = machine.clone();
    let hooked = Hooked {
        before_write: Box::new(move || {
            *writes.lock().unwrap() += 1;
            if *writes.lock().unwrap() == 2 {
                let other = pages(&area).into_iter().find(|page| *page != own).unwrap();
                disk.flip((page_at(other) + 70) * 8);
                looks.look().unwrap();
            }
        }),
        ..Hooked::new(device(&machine))
    };
    let host = TestHost::new(2, Life::Runs);
    let refused = claim(Arc::new(hooked), &key(), &options(&host)).map(drop);
    assert!(
        matches!(&refused, Err(LogError::Claimed { by }) if by.host == "host-1"),
        "{refused:?}"
    );
    first.look().unwrap();
}

#[test]
fn page_that_changes_all_the_time_ends_a_look() {
    let machine = machine(64);
    let (disk, bit) = (device(&machine), Mutex::new(0));
    let own = Arc::new(Mutex::new(None));
    let changes = Arc::clone(&own);
    let hooked = Hooked {
        before_read: Box::new(move |offset| {
            if let Some(own) = *changes.lock().unwrap()
                && offset == AREA.start
            {
                *bit.lock().unwrap() += 1;
                disk.flip((page_at((own + 1) % 15) + 100) * 8 + *bit.lock().unwrap());
            }
            Ok(())
        }),
        ..Hooked::new(device(&machine))
    };
    let host = TestHost::new(1, Life::Runs);
    let first = claim(Arc::new(hooked), &key(), &options(&host)).unwrap();
    *own.lock().unwrap() = Some(pages(&machine)[0]);
    first.look().unwrap_err();
    assert!(first.lost().is_none());
}

#[test]
fn answer_is_synced() {
    let machine = machine(64);
    let syncs = Arc::new(Mutex::new(0));
    let counts = Arc::clone(&syncs);
    let hooked = Hooked {
        before_sync: Box::new(move || *counts.lock().unwrap() += 1),
        ..Hooked::new(device(&machine))
    };
    let host = TestHost::new(1, Life::Runs);
    let first = claim(Arc::new(hooked), &key(), &options(&host)).unwrap();
    abandoned_by_a_third(&machine);
    let before = *syncs.lock().unwrap();
    first.look().unwrap();
    assert_eq!(*syncs.lock().unwrap(), before + 1);
}

#[test]
fn look_that_takes_longer_than_the_lease_is_no_leave_to_write() {
    for slow in [1, u32::MAX] {
        let machine = machine(64);
        let host = TestHost::new(1, Life::Runs);
        let (clock, left) = (Arc::clone(&host), Arc::new(Mutex::new(0)));
        let slows = Arc::clone(&left);
        let hooked = Hooked {
            before_read: Box::new(move |_| {
                let mut left = slows.lock().unwrap();
                if *left > 0 {
                    *left -= 1;
                    *clock.now.lock().unwrap() += LEASE;
                }
                Ok(())
            }),
            ..Hooked::new(device(&machine))
        };
        let first = claim(Arc::new(hooked), &key(), &options(&host)).unwrap();
        *host.now.lock().unwrap() += LEASE;
        *left.lock().unwrap() = slow;
        match slow {
            1 => first.check().unwrap(),
            _ => assert_eq!(
                first.check().unwrap_err().kind(),
                std::io::ErrorKind::TimedOut
            ),
        }
    }
}

/// A sync during a write may not have it. The clock stands still, as that of a paused machine does.
#[test]
fn write_that_a_sync_met_half_way_is_confirmed_by_the_next_one() {
    let machine = machine(64);
    let first = Arc::new(claim_at(&machine, &TestHost::new(1, Life::Runs)).unwrap());
    let fenced: Arc<Mutex<Option<Arc<Fenced>>>> = Arc::default();
    let meanwhile = Arc::clone(&fenced);
    let hooked = Hooked {
        before_write: Box::new(move || {
            let fenced = meanwhile.lock().unwrap().take();
            if let Some(fenced) = fenced {
                fenced.sync().unwrap();
            }
        }),
        ..Hooked::new(device(&machine))
    };
    let outer = Arc::new(Fenced::new(Arc::new(hooked), Arc::clone(&first)));
    *fenced.lock().unwrap() = Some(Arc::clone(&outer));
    let page = device(&machine).contents()[..PAGE as usize].to_vec();
    outer.write(0, &page).unwrap();
    claim_at(&machine, &TestHost::new(2, Life::Runs)).unwrap();
    first.check().unwrap();
    let why = outer.sync().unwrap_err().to_string();
    assert!(why.contains("host-2"), "{why}");
}
