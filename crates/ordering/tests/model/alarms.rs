//! When the timers of an engine ring: the alarm of the product beside two engines, and a clock by hand.

use ordering::engine::{Alarm, Delays, Durable, Effect, Engine, Reply, Request, Setup, Timer};
use ordering::ledger::Ledger;
use ordering::read_rule::Silence;

use crate::chain::Chain;
use crate::protocol::{ADMIN, Call, CallId, Device, Key, Leaf};
use crate::rules::Rules;
use crate::state::{Asked, State};
use crate::symbolic::Symbolic;

type Client = Engine<Symbolic, State, CallId>;
type Effects = Vec<Effect<Symbolic, State, CallId>>;

const SETUP: Setup = Setup {
    silence: Silence::Strict,
    calls: 4,
};

fn client(device: Device) -> Client {
    let rules = Rules::default();
    let ledger = Ledger::new(Chain::default(), State::genesis(rules, 0b11, ADMIN));
    Engine::start(Symbolic::new(device, rules), SETUP, Durable::new(ledger))
}

/// Orders the entries at once, and those that follow from them. The number of entries.
fn order(clients: &mut [Client; 2], effects: Effects) -> usize {
    let mut entries = 0;
    for effect in effects {
        let Effect::Send(Request::Entry(entry)) = effect else {
            continue;
        };
        entries += 1;
        let log = clients[0].ledger().log().clone();
        let leaf = Leaf::Entry(entry);
        let reply = Reply {
            from: log.size(),
            note: log.push(leaf.clone()).point(),
            leaves: vec![leaf],
            more: false,
            attests: Vec::new(),
            asked: false,
            refused: None,
            unstored: None,
        };
        let all: Vec<_> = clients
            .iter_mut()
            .flat_map(|client| client.deliver(&reply))
            .collect();
        entries += order(clients, all);
    }
    entries
}

/// A program of a device makes a call.
fn call(clients: &mut [Client; 2], device: Device, number: u8, what: Call) -> usize {
    let call = CallId::new(device, number);
    let effects = clients[usize::from(device)].issue([(call, Asked { call, what })]);
    order(clients, effects)
}

/// Both devices run, and A has the lock of file 0.
fn locked() -> [Client; 2] {
    let mut clients = [client(0), client(1)];
    for device in 0..2 {
        let resume = clients[device].ring(Timer::Resume);
        order(&mut clients, resume);
    }
    assert_eq!(call(&mut clients, 0, 0, Call::Lock(0)), 1);
    clients
}

fn holder(clients: &[Client; 2]) -> u128 {
    clients[1].ledger().volume().value(Key::Lock(0)).is
}

/// Takes over by B at this time, if the alarm says so.
fn ring(clients: &mut [Client; 2], alarm: &mut Alarm<CallId>, now_ms: u64) -> usize {
    let effects = alarm.ring(now_ms, &mut clients[1]);
    let entries = order(clients, effects);
    alarm.set(now_ms, &clients[1]);
    entries
}

#[test]
fn lock_is_taken_over_a_time_to_live_after_its_last_renewal_and_not_before() {
    let mut clients = locked();
    let mut alarm = Alarm::new(Delays::default());
    // It says that it waits.
    assert_eq!(call(&mut clients, 1, 0, Call::Append(0)), 1);
    alarm.set(0, &clients[1]);
    assert_eq!(ring(&mut clients, &mut alarm, 29_000), 0);
    // A renews its lock: the time to live begins anew.
    assert_eq!(call(&mut clients, 0, 1, Call::Lock(0)), 1);
    alarm.set(29_000, &clients[1]);
    assert_eq!(ring(&mut clients, &mut alarm, 58_999), 0);
    assert_eq!(alarm.next(&clients[1]), Some(59_000));
    assert_eq!(holder(&clients), 1);
    // One entry takes the lock over, and one writes and gives it up.
    assert_eq!(ring(&mut clients, &mut alarm, 59_000), 2);
    assert_eq!(holder(&clients), 0);
    assert_eq!(clients[1].watched(), None);
}

#[test]
fn lock_that_is_given_up_ends_the_wait_for_it() {
    let mut clients = locked();
    let mut alarm = Alarm::new(Delays::default());
    call(&mut clients, 1, 0, Call::Append(0));
    alarm.set(0, &clients[1]);
    // A gives the lock to B, B gives it up with what it writes, and then A takes the lock again.
    assert_eq!(call(&mut clients, 0, 1, Call::Unlock(0)), 2);
    assert_eq!(call(&mut clients, 0, 2, Call::Lock(0)), 1);
    call(&mut clients, 1, 1, Call::Put(0));
    alarm.set(20_000, &clients[1]);
    assert_eq!(ring(&mut clients, &mut alarm, 49_999), 0);
    assert_eq!(ring(&mut clients, &mut alarm, 50_000), 2);
}
