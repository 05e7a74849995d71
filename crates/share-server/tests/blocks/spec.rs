//! What the block server promises about one block, written apart from its code: who refers to it, when it must be
//! found, and when it must not reach the segments.

/// What a session does with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    Store,
    Cstore,
    Retrieve,
    Decref,
}

/// One block.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Sessions that were told that the block is stored and have not given it up.
    pub refers: Vec<usize>,
    /// Sessions whose STORE is not acknowledged yet.
    pub waiting: Vec<usize>,
    /// When the block came into the log.
    arrived: u32,
    /// When it was last stored or asked for by CSTORE, or came back.
    age: u32,
    /// Sessions that touched it since it came. Empty: it is not in the log.
    touched: Vec<usize>,
    dereferenced: Option<u32>,
    /// A crash has made it everybody's.
    is_everybodys: bool,
}

/// How long a window is in the explorer.
pub const WINDOW: u32 = 1;

impl Spec {
    /// A call of a session that found the block, or stored it. `durable`: the answer is an acknowledgement.
    pub fn touched(
        &mut self,
        session: usize,
        call: Call,
        now: u32,
        durable: bool,
        is_in_log: bool,
    ) {
        if durable {
            self.refer(session);
        } else {
            insert(&mut self.waiting, session);
        }
        if !is_in_log {
            return;
        }
        if self.touched.is_empty() && !self.is_everybodys {
            (self.arrived, self.age) = (now, now);
        }
        insert(&mut self.touched, session);
        if call != Call::Retrieve || self.dereferenced.is_some() {
            self.age = now;
        }
        self.dereferenced = None;
    }

    fn refer(&mut self, session: usize) {
        insert(&mut self.refers, session);
    }

    /// What waited is durable.
    pub fn acknowledged(&mut self) {
        for session in std::mem::take(&mut self.waiting) {
            self.refer(session);
        }
    }

    /// A session gives the block up. Returns whether the server must accept that.
    pub fn decref(&mut self, session: usize, now: u32) -> bool {
        self.refers.retain(|other| *other != session);
        self.waiting.retain(|other| *other != session);
        let alone = self.touched == [session] && !self.is_everybodys;
        let in_time = self.dereferenced.is_some() || now - self.age <= WINDOW;
        if alone && in_time {
            self.dereferenced.get_or_insert(now);
        }
        alone && in_time
    }

    /// Whether the server may forget the block now.
    pub fn may_be_dropped(&self, now: u32) -> bool {
        self.refers.is_empty()
            && self.waiting.is_empty()
            && self.dereferenced.is_some_and(|at| now > at + WINDOW)
    }

    /// Whether the block must never reach the segments, if no space is needed.
    pub fn is_garbage(&self) -> bool {
        self.dereferenced
            .is_some_and(|at| at <= self.arrived + WINDOW)
    }

    /// Whether the block must have left the log when the mover looks.
    pub fn is_overdue(&self, now: u32) -> bool {
        !self.touched.is_empty() && now > self.arrived + 2 * WINDOW
    }

    /// The block is not in the log any more.
    pub fn left(&mut self) {
        self.touched.clear();
        self.dereferenced = None;
        self.is_everybodys = false;
        (self.arrived, self.age) = (0, 0);
    }

    /// The server crashed. Sessions are gone; what they were told they still rely on.
    pub fn crashed(&mut self, is_in_log: bool) {
        self.waiting.clear();
        self.left();
        self.is_everybodys = is_in_log;
    }

    /// A session was told that the block is not there.
    pub fn must_be_absent(&self) -> bool {
        self.refers.is_empty()
    }
}

/// Adds a session to a set, in order.
fn insert(sessions: &mut Vec<usize>, session: usize) {
    if let Err(place) = sessions.binary_search(&session) {
        sessions.insert(place, session);
    }
}
