//! Devices with their files, and tasks that take turns by a seed.

use std::cell::{RefCell, RefMut};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use share::files::{Answer, Call};
use trust::Record;
use trust::inode::Time;
use trust_shared::principal::FileId;

use super::layer::{Layer, Loss, Luck, answer};
use super::truth::Truth;
use crate::net::Net;

/// How likely it is that something goes wrong, of 1,000 steps.
#[derive(Clone, Copy, Default)]
pub struct Weather {
    /// A step of a commit meets a server that is away, or its outcome stays unknown.
    pub outages: u64,
    /// A step of a commit fails for good.
    pub failures: u64,
    /// A request waits no more.
    pub deadlines: u64,
    /// A device loses its connection for a while.
    pub cuts: u64,
    /// A device is killed, with what is not durable or without.
    pub kills: u64,
    /// The server is killed.
    pub restarts: u64,
    /// The server refuses blocks.
    pub refusals: u64,
}

type Program = Pin<Box<dyn Future<Output = ()>>>;

pub struct State {
    pub net: Net,
    pub layers: Vec<Layer>,
    pub truth: Truth,
    pub weather: Weather,
    programs: Vec<(usize, Program)>,
    waiting: Vec<(usize, FileId, u64)>,
    /// What may happen any more.
    is_over: bool,
    next: u64,
}

/// What programs share.
#[derive(Clone)]
pub struct World(Rc<RefCell<State>>);

impl World {
    pub fn new(devices: usize, seed: u64, weather: Weather) -> World {
        let mut net = Net::new(devices, seed);
        net.whole = true;
        net.watches_blocks = true;
        let root = net.root();
        World(Rc::new(RefCell::new(State {
            net,
            layers: (0..devices).map(|at| Layer::new(at, root)).collect(),
            truth: Truth::default(),
            weather,
            programs: Vec::new(),
            waiting: Vec::new(),
            is_over: false,
            next: 0,
        })))
    }

    pub fn state(&self) -> RefMut<'_, State> {
        self.0.borrow_mut()
    }

    /// A number below `bound`.
    pub fn random(&self, bound: u64) -> u64 {
        self.state().net.random(bound)
    }

    /// One in so many.
    pub fn chance(&self, of: u64) -> bool {
        self.random(of) == 0
    }

    /// A number that nothing else has.
    pub fn number(&self) -> u64 {
        let mut state = self.state();
        state.next += 1;
        state.next
    }

    /// A device begins a program.
    pub fn begin(&self, at: usize, program: impl Future<Output = ()> + 'static) {
        self.state().programs.push((at, Box::pin(program)));
    }

    /// Lets others go on.
    pub async fn pause(&self) {
        let mut paused = false;
        poll_fn(|_| match std::mem::replace(&mut paused, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// A call of the log, which a mark confirms.
    pub async fn call(&self, at: usize, call: Call) -> (Answer, u64) {
        let called = self.call_with(at, call, Vec::new()).await;
        called.expect("it has no blocks")
    }

    /// A call that travels with its blocks. None: the server refuses them.
    pub async fn call_with(
        &self,
        at: usize,
        call: Call,
        blocks: Vec<Record>,
    ) -> Option<(Answer, u64)> {
        let ticket = self.state().net.issue_with(at, call, blocks);
        poll_fn(|_| {
            let state = self.state();
            match answer(&state.net, at, ticket) {
                Some(answer) => Poll::Ready(Some(answer)),
                None if state.net.nodes[at].withdrawn.contains(&ticket) => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Tells the state machine of a file something.
    pub fn tell<T>(
        &self,
        at: usize,
        id: FileId,
        tell: impl FnOnce(&mut super::layer::File) -> (T, super::layer::Effects),
    ) -> T {
        let mut state = self.state();
        let layer = &mut state.layers[at];
        let (told, effects) = tell(&mut layer.file(id));
        layer.act(id, effects);
        told
    }

    /// What a request that waits is told.
    pub async fn told(
        &self,
        at: usize,
        id: FileId,
        (waiter, ticket): (u64, u64),
    ) -> Result<(), Loss> {
        self.state().waiting.push((at, id, ticket));
        let told = poll_fn(|_| match self.state().layers[at].told.remove(&waiter) {
            Some(told) => Poll::Ready(told),
            None => Poll::Pending,
        })
        .await;
        let ended = (at, id, ticket);
        self.state().waiting.retain(|waiting| *waiting != ended);
        told
    }

    /// Waits until no work on what is local of a file is under way.
    pub async fn settled(&self, at: usize, id: FileId) -> Result<(), Loss> {
        let waiter = self.number();
        let ticket = self.state().layers[at].file(id).settle(waiter);
        match ticket {
            Ok(ticket) => self.told(at, id, (waiter, ticket)).await,
            Err(_) => Ok(()),
        }
    }

    /// Commits what is local of a file.
    pub async fn committed(&self, at: usize, id: FileId, handle: u64) -> Result<(), Loss> {
        let waiter = self.number();
        let ticket = self.tell(at, id, |file| file.commit(Some(handle), waiter));
        self.told(at, id, (waiter, ticket)).await
    }

    /// The clocks of all devices are right.
    pub fn time(&self) -> (Time, u64) {
        let now_ms = self.state().net.now_ms;
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(now_ms);
        (Time::from(time), now_ms)
    }

    /// Something happens. Gives whether a program is left.
    pub fn step(&self) -> bool {
        self.state().truth.now += 1;
        match self.random(10) {
            0..=3 => self.state().net_step(),
            4..=6 => self.task(),
            7..=8 => self.program(),
            _ => self.trouble(),
        }
        !self.state().programs.is_empty()
    }

    fn task(&self) {
        let mut state = self.state();
        let devices = state.layers.len() as u64;
        let at = state.net.random(devices) as usize;
        let count = state.layers[at].tasks.len() as u64;
        if count == 0 {
            return;
        }
        let which = state.net.random(count) as usize;
        let weather = state.weather;
        let luck = Luck {
            outage: state.happens(weather.outages),
            failure: state.happens(weather.failures),
        };
        let State { net, layers, .. } = &mut *state;
        layers[at].run(net, which, luck);
    }

    fn program(&self) {
        let count = self.state().programs.len() as u64;
        if count == 0 {
            return;
        }
        let which = self.random(count) as usize;
        // A program uses the state itself.
        let (at, mut program) = self.state().programs.swap_remove(which);
        let mut context = Context::from_waker(Waker::noop());
        if program.as_mut().poll(&mut context).is_pending() {
            self.state().programs.push((at, program));
        }
    }

    fn trouble(&self) {
        let mut state = self.state();
        let weather = state.weather;
        let devices = state.layers.len() as u64;
        let at = state.net.random(devices) as usize;
        if state.happens(weather.deadlines) {
            state.expire();
        }
        if state.happens(weather.cuts) {
            let offline = !state.net.nodes[at].offline;
            state.net.disconnect(at, offline);
        }
        if state.happens(weather.restarts) {
            state.net.restart_server();
        }
        if state.happens(weather.kills) {
            let power = state.net.random(2) == 0;
            state.kill(at, power);
        }
    }

    /// Goes on without trouble until all programs have ended and nothing is local any more.
    pub fn heal(&self) {
        {
            let mut state = self.state();
            state.is_over = true;
            state.net.refuses = 0;
            for at in 0..state.layers.len() {
                state.net.nodes[at].offline = false;
            }
        }
        for _ in 0..40_000 {
            let is_left = self.step();
            let state = self.state();
            let is_busy = state.layers.iter().any(|layer| !layer.tasks.is_empty());
            if !is_left && !is_busy {
                drop(state);
                self.state().net.rest();
                return;
            }
        }
        panic!("this walk does not end");
    }
}

impl State {
    fn happens(&mut self, of_1000: u64) -> bool {
        !self.is_over && of_1000 > 0 && self.net.random(1000) < of_1000
    }

    fn net_step(&mut self) {
        self.net.step();
        self.net.step();
    }

    /// A request waits no more.
    fn expire(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let which = self.net.random(self.waiting.len() as u64) as usize;
        let (at, id, ticket) = self.waiting[which];
        let effects = self.layers[at].file(id).expired(ticket, "it took too long");
        self.layers[at].act(id, effects);
    }

    /// A device is killed: what its programs had open is gone.
    pub fn kill(&mut self, at: usize, power: bool) {
        self.programs.retain(|(of, _)| *of != at);
        self.waiting.retain(|(of, _, _)| *of != at);
        self.layers[at] = Layer::new(at, self.net.root());
        self.truth.killed(at);
        self.net.crash(at, power);
    }
}
