//! What each device stores: bytes that lie in the temporary log, and bytes of a day. Sessions belong to devices.
//!
//! A day is counted from the start of the server, so a restart begins a new one: the accounts are in memory only. What
//! lies in the temporary log is counted again after a restart, because its records name the devices.

use std::collections::HashMap;

use super::error::{Error, Limit};
use super::{Device, Session};

/// How much a device may store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of frames in the temporary log at one time.
    pub temporary_bytes: u64,
    /// Bytes of frames in a day.
    pub daily_bytes: u64,
}

impl Quota {
    /// No limit.
    pub const NONE: Quota = Quota {
        temporary_bytes: u64::MAX,
        daily_bytes: u64::MAX,
    };
}

/// What a device has used of its quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Bytes of frames in the temporary log.
    pub temporary_bytes: u64,
    /// Bytes of frames that it stored today.
    pub today_bytes: u64,
    /// The quota that applies to this device.
    pub quota: Quota,
}

/// The most sessions at one time.
const MAX_SESSIONS: usize = 1 << 20;

#[derive(Clone)]
struct Account {
    device: Device,
    sessions: u32,
    temporary: u64,
    today: u64,
    day: u32,
}

/// The accounts of all devices.
#[derive(Clone)]
pub(super) struct Accounts {
    quota: Quota,
    /// By number; a free place has no device.
    accounts: Vec<Option<Account>>,
    numbers: HashMap<Device, u16>,
    sessions: HashMap<u32, u16>,
    last_session: u32,
}

impl Accounts {
    pub fn new(quota: Quota) -> Accounts {
        Accounts {
            quota,
            accounts: Vec::new(),
            numbers: HashMap::new(),
            sessions: HashMap::new(),
            last_session: 0,
        }
    }

    /// Begins a session. Numbers come again after 2^32 sessions, when no block remembers them any more.
    pub fn open(&mut self, device: Device) -> Result<Session, Error> {
        if self.sessions.len() >= MAX_SESSIONS {
            return Err(Error::TooManyDevices);
        }
        let account = self.number(device)?;
        let mut number = self.last_session;
        loop {
            // 0 and the last number mean something else in the index.
            number = number.wrapping_add(1);
            if number != 0 && number != u32::MAX && !self.sessions.contains_key(&number) {
                break;
            }
        }
        self.last_session = number;
        self.sessions.insert(number, account);
        if let Some(account) = self.account(account) {
            account.sessions += 1;
        }
        Ok(Session(number))
    }

    pub fn close(&mut self, session: Session) {
        if let Some(account) = self.sessions.remove(&session.0)
            && let Some(account) = self.account(account)
        {
            account.sessions = account.sessions.saturating_sub(1);
        }
    }

    /// The account of a session.
    pub fn of(&self, session: Session) -> Result<u16, Error> {
        let account = self.sessions.get(&session.0);
        account.copied().ok_or(Error::NoSession)
    }

    /// The device of an account.
    pub fn device(&self, account: u16) -> Device {
        let account = self.accounts.get(usize::from(account));
        account
            .and_then(Option::as_ref)
            .map_or(Device([0; 32]), |a| a.device)
    }

    /// The account of a device, which is made if there is none.
    pub fn number(&mut self, device: Device) -> Result<u16, Error> {
        if let Some(number) = self.numbers.get(&device) {
            return Ok(*number);
        }
        let number = self.free_place().ok_or(Error::TooManyDevices)?;
        if let Some(place) = self.accounts.get_mut(usize::from(number)) {
            *place = Some(Account {
                device,
                sessions: 0,
                temporary: 0,
                today: 0,
                day: 0,
            });
        }
        self.numbers.insert(device, number);
        Ok(number)
    }

    /// A place without a device. When there are too many devices, those that have nothing are forgotten, and with them
    /// what they stored today.
    fn free_place(&mut self) -> Option<u16> {
        if let Ok(number) = u16::try_from(self.accounts.len()) {
            self.accounts.push(None);
            return Some(number);
        }
        let idle = |a: &Option<Account>| {
            a.as_ref()
                .is_none_or(|a| a.sessions == 0 && a.temporary == 0)
        };
        let place = self.accounts.iter().position(idle)?;
        if let Some(account) = self.accounts.get_mut(place).and_then(Option::take) {
            self.numbers.remove(&account.device);
        }
        u16::try_from(place).ok()
    }

    fn account(&mut self, number: u16) -> Option<&mut Account> {
        self.accounts.get_mut(usize::from(number))?.as_mut()
    }

    /// What the device has used, on this day.
    pub fn used(&self, number: u16, day: u32) -> Result<Used, Error> {
        let account = self.accounts.get(usize::from(number));
        let account = account.and_then(Option::as_ref).ok_or(Error::NoSession)?;
        Ok(Used {
            temporary_bytes: account.temporary,
            today_bytes: if account.day == day { account.today } else { 0 },
            quota: self.quota,
        })
    }

    /// Whether the device may store so many bytes more today, and so many in the temporary log.
    pub fn check(
        &mut self,
        number: u16,
        temporary: u64,
        bytes: u64,
        day: u32,
    ) -> Result<(), Error> {
        let quota = self.quota;
        let Some(account) = self.account(number) else {
            return Err(Error::NoSession);
        };
        if account.day != day {
            (account.day, account.today) = (day, 0);
        }
        let limits = [
            (
                Limit::Temporary,
                temporary,
                quota.temporary_bytes.saturating_sub(account.temporary),
            ),
            (
                Limit::Daily,
                bytes,
                quota.daily_bytes.saturating_sub(account.today),
            ),
        ];
        for (of, needed, left) in limits {
            if needed > left {
                return Err(Error::Quota { needed, left, of });
            }
        }
        Ok(())
    }

    /// Counts bytes that [`Accounts::check`] accepted.
    pub fn charge(&mut self, number: u16, temporary: u64, bytes: u64) {
        if let Some(account) = self.account(number) {
            account.temporary += temporary;
            account.today += bytes;
        }
    }

    /// Bytes left the temporary log. `undone`: they were never stored.
    pub fn release(&mut self, number: u16, bytes: u64, undone: bool) {
        if let Some(account) = self.account(number) {
            account.temporary = account.temporary.saturating_sub(bytes);
            if undone {
                account.today = account.today.saturating_sub(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota {
        temporary_bytes: 100,
        daily_bytes: 250,
    };

    #[test]
    fn quota_says_which_limit_is_reached_and_what_is_left() {
        let mut accounts = Accounts::new(QUOTA);
        let session = accounts.open(Device([1; 32])).unwrap();
        let account = accounts.of(session).unwrap();
        for _ in 0..2 {
            accounts.check(account, 100, 100, 0).unwrap();
            accounts.charge(account, 100, 100);
            let refused = accounts.check(account, 1, 1, 0);
            assert!(matches!(
                refused,
                Err(Error::Quota {
                    needed: 1,
                    left: 0,
                    of: Limit::Temporary
                })
            ));
            accounts.release(account, 100, false);
        }
        let refused = accounts.check(account, 60, 60, 0);
        assert!(matches!(
            refused,
            Err(Error::Quota {
                needed: 60,
                left: 50,
                of: Limit::Daily
            })
        ));
        accounts.check(account, 60, 60, 1).unwrap();
        accounts.charge(account, 60, 60);
        accounts.release(account, 60, true);
        accounts.check(account, 100, 250, 1).unwrap();
        // Another device has a quota of its own, another session of the same device has not.
        let again = accounts.open(Device([1; 32])).unwrap();
        assert_eq!(accounts.of(again).unwrap(), account);
        let other = accounts.open(Device([2; 32])).unwrap();
        assert_ne!(accounts.of(other).unwrap(), account);
        accounts.close(session);
        assert!(matches!(accounts.of(session), Err(Error::NoSession)));
    }

    #[test]
    fn idle_devices_are_forgotten_when_there_are_too_many() {
        let mut accounts = Accounts::new(QUOTA);
        let device = |number: u32| {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&number.to_le_bytes());
            Device(key)
        };
        let busy = accounts.number(device(0)).unwrap();
        accounts.charge(busy, 1, 1);
        for number in 1..70_000 {
            accounts.number(device(number)).unwrap();
        }
        assert_eq!(accounts.number(device(0)).unwrap(), busy);
        assert!(accounts.accounts.len() <= 1 << 16);
        assert!(accounts.numbers.len() <= 1 << 16);
    }
}
