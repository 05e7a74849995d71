//! What a device that was killed would do again: whether the server has the blocks of it.
//!
//! Blocks travel with their call (decision 0113), so a kill may lose them and leave the call in the journal. Before the
//! device resumes, all blocks that such calls name are touched. What the server lacks comes from what this device keeps of
//! its own ([`super::own`]). A call whose content is not whole then is taken back: nobody was told that it is done.

use std::sync::Arc;
use std::time::Duration;

use store::StoreError;
use tokio::time::sleep;
use trust::array::{ArrayRoot, Child, Extent, Node};
use trust::{ArrayNode, Handle, Hasher, Record};
use wire::shared::MAX_NAMES;

use super::connection::Line;
use super::own::{Own, without};
use crate::outbox::{TRIES, Unstored};

/// Nodes of a tree that are read together. A tree is walked depth first, so memory is bounded.
const NODES: usize = 16;
/// Blocks that are read from this device's own and stored together: each may have 1 MiB.
const STORED: usize = 16;

/// Blocks that the server refuses are stored again after this time.
const AGAIN: Duration = Duration::from_secs(1);

/// Where blocks are.
pub(super) struct Blocks {
    pub(super) line: Arc<dyn Line>,
    pub(super) own: Option<Arc<Own>>,
    pub(super) hasher: Hasher,
}

impl Blocks {
    /// Looks at trees, one after the other: whether each is whole at the server, or has been made so. What was seen before
    /// an error is in `seen`.
    pub(super) async fn look(
        &self,
        roots: &[ArrayRoot],
        seen: &mut Vec<(ArrayRoot, bool)>,
    ) -> Result<(), StoreError> {
        for some in roots.chunks(MAX_NAMES) {
            // Most content is one block.
            let single = some.iter().filter_map(|root| match root.top() {
                Child::Extent(Extent::Data { handle, .. }) => Some(handle.any()),
                _ => None,
            });
            let single: Vec<Handle> = single.collect();
            let lacks = match single.is_empty() {
                true => Vec::new(),
                false => self.line.sink().touch(&single).await?,
            };
            for root in some {
                let is_there = matches!(root.top(), Child::Extent(Extent::Data { handle, .. })
                    if !lacks.contains(&handle.any()));
                let is_whole = is_there || self.is_whole(root).await?;
                seen.push((*root, is_whole));
            }
        }
        Ok(())
    }

    async fn is_whole(&self, root: &ArrayRoot) -> Result<bool, StoreError> {
        let mut left = vec![root.top()];
        let mut handles = Vec::<Handle>::new();
        loop {
            let mut nodes = Vec::new();
            while nodes.len() < NODES && handles.len() < MAX_NAMES {
                match left.pop() {
                    Some(Child::Node { handle, .. }) => {
                        handles.push(handle.any());
                        nodes.push(handle);
                    }
                    Some(Child::Extent(Extent::Data { handle, .. })) => handles.push(handle.any()),
                    Some(Child::Extent(Extent::Hole { .. })) => {}
                    None => break,
                }
            }
            let Some(children) = self.children(&nodes).await? else {
                return Ok(false);
            };
            left.extend(children);
            let is_end = left.is_empty();
            if (is_end || handles.len() >= MAX_NAMES)
                && !self.touched(&std::mem::take(&mut handles)).await?
            {
                return Ok(false);
            }
            if is_end {
                return Ok(true);
            }
        }
    }

    /// Touches blocks, and stores those that only this device has.
    async fn touched(&self, handles: &[Handle]) -> Result<bool, StoreError> {
        if handles.is_empty() {
            return Ok(true);
        }
        let lacks = self.line.sink().touch(handles).await?;
        for some in lacks.chunks(STORED) {
            let own = self.own(some).await;
            if own.len() < some.len() || !self.stored(&own).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn own(&self, want: &[Handle]) -> Vec<Record> {
        match &self.own {
            Some(own) if !want.is_empty() => own.get(want).await,
            _ => Vec::new(),
        }
    }

    /// Whether the server takes these blocks. A server that has no room, or refuses them again and again, holds no device
    /// up: its call is taken back.
    async fn stored(&self, records: &[Record]) -> Result<bool, StoreError> {
        let mut refusals = 0;
        while !records.is_empty() {
            match self.line.put(records).await {
                Ok(()) => break,
                Err((Unstored::Now, error)) => return Err(error),
                Err((Unstored::Full, _)) => return Ok(false),
                Err((Unstored::Refused, _)) => refusals += 1,
            }
            if refusals == TRIES {
                return Ok(false);
            }
            sleep(AGAIN).await;
        }
        Ok(true)
    }

    /// None: nobody gives one of these nodes, or what is given is not it.
    async fn children(
        &self,
        nodes: &[Handle<ArrayNode>],
    ) -> Result<Option<Vec<Child>>, StoreError> {
        let want: Vec<Handle> = nodes.iter().map(Handle::any).collect();
        let mut found = self.own(&want).await;
        let rest = without(&want, &found);
        if !rest.is_empty() {
            found.extend(self.line.store().get_many(&rest, 0).await?);
        }
        let mut children = Vec::new();
        for handle in nodes {
            let record = found.iter().find(|record| record.handle == handle.any());
            let plain = record.and_then(|record| record.frame.unpack().ok());
            let block = plain.and_then(|plain| self.hasher.check(handle, plain).ok());
            let Some(node) = block.and_then(|block| Node::decode(&block).ok()) else {
                return Ok(None);
            };
            children.extend(node.children());
        }
        Ok(Some(children))
    }
}
