//! Expands a block that came back: names the entries, directories and contents below it. The other half of
//! [`Reach`]; relies on checking each node against its parent.

use super::need::{Found, Need, Path, Task, Wanted};
use super::walk::{Frame, MAX_DEPTH, Open, Reach, Refused, Step, bad};
use crate::error::Reject;
use crate::tree::array::{self, ArrayRoot, Child, Extent};
use crate::tree::inode::{Content, Entry, FileContent, Inode, Xattrs, check_name};
use crate::tree::map::{self, ChildRef, Interval, Item, MapRoot};

impl Reach {
    pub(super) fn take(&mut self, need: Need, found: Found) -> Result<(), Reject> {
        let Need {
            round,
            wanted,
            path,
            task,
        } = need;
        match (wanted, task, found) {
            (Wanted::Data { len, .. }, Task::Data, Found::Data { len: is }) => {
                if is != u64::from(len) {
                    let why = "a data block has another length than its extent";
                    return Err(bad("file", why));
                }
                Ok(())
            }
            (Wanted::Array { len, level, .. }, Task::Array, Found::Array(node)) => {
                node.check(level, len)?;
                self.push(Frame::Array {
                    node,
                    next: 0,
                    path,
                    round,
                });
                Ok(())
            }
            (_, Task::Inode { base, parent }, Found::Inode(inode)) => {
                let visited = self.visit(&path, inode, base.as_deref(), parent, round);
                self.release(parent);
                visited
            }
            (
                _,
                Task::Top {
                    map,
                    base,
                    directory,
                },
                Found::Map(node),
            ) => self.take_top(&map, base.as_deref(), node, directory, round),
            (_, Task::Node { child, directory }, Found::Map(node)) => {
                self.take_node(*child, node, directory, round)
            }
            (Wanted::Map(handle), Task::Compared { comparison }, Found::Map(node)) => {
                self.take_compared(comparison, &handle, &node, round)
            }
            // A block of another kind than the one that was wanted.
            (wanted, task, _) => {
                let need = Need {
                    round,
                    wanted,
                    path,
                    task,
                };
                self.under_way = self.under_way.saturating_add(1);
                self.skip(need);
                Err(Reject::WrongBlock)
            }
        }
    }

    fn take_node(
        &mut self,
        child: ChildRef,
        node: map::Node,
        directory: u64,
        round: u32,
    ) -> Result<(), Reject> {
        self.check_node(&node, &child, directory)?;
        self.push(Frame::Map {
            node,
            interval: child.interval,
            next: 0,
            directory,
            round,
        });
        Ok(())
    }

    /// Checks a node of a directory. A node that fails stops holding its directory open.
    fn check_node(
        &mut self,
        node: &map::Node,
        child: &ChildRef,
        directory: u64,
    ) -> Result<(), Reject> {
        let checked = node.check(child);
        if checked.is_err() {
            self.release(Some(directory));
        }
        checked
    }

    fn take_top(
        &mut self,
        map: &MapRoot,
        base: Option<&MapRoot>,
        node: map::Node,
        directory: u64,
        round: u32,
    ) -> Result<(), Reject> {
        let child = map.child_ref();
        let Some(base) = base else {
            return self.take_node(child, node, directory, round);
        };
        self.check_node(&node, &child, directory)?;
        self.begin_comparison(base, map, node, directory, round);
        Ok(())
    }

    pub(super) fn map_item(
        &mut self,
        node: map::Node,
        interval: Interval,
        next: usize,
        directory: u64,
        round: u32,
    ) -> Result<(), Refused> {
        let Some(item) = node.item(next, &interval) else {
            self.weight_bytes = self.weight_bytes.saturating_sub(node.weight_bytes());
            self.release(Some(directory));
            return Ok(());
        };
        self.stack.push(Frame::Map {
            node,
            interval,
            next: next.saturating_add(1),
            directory,
            round,
        });
        match item {
            Item::Entry(name, value) => self.entry(directory, &name, &value, None, round),
            Item::Child(child) => {
                self.hold(directory);
                self.stack.push(Frame::Need(Need {
                    round,
                    wanted: Wanted::Map(child.handle),
                    path: self.path_of(directory),
                    task: Task::Node {
                        child: Box::new(child),
                        directory,
                    },
                }));
                Ok(())
            }
        }
    }

    pub(super) fn array_child(&mut self, node: array::Node, next: usize, path: Path, round: u32) {
        let Some(child) = node.child(next) else {
            self.weight_bytes = self.weight_bytes.saturating_sub(node.weight_bytes());
            return;
        };
        self.stack.push(Frame::Array {
            node,
            next: next.saturating_add(1),
            path: path.clone(),
            round,
        });
        self.content(child, path, round);
    }

    fn content(&mut self, child: Child, path: Path, round: u32) {
        let (wanted, task) = match child {
            Child::Extent(Extent::Hole { .. }) => return,
            Child::Extent(Extent::Data { handle, len }) => {
                (Wanted::Data { handle, len }, Task::Data)
            }
            Child::Node { handle, len, level } => {
                (Wanted::Array { handle, len, level }, Task::Array)
            }
        };
        self.stack.push(Frame::Need(Need {
            round,
            wanted,
            path,
            task,
        }));
    }

    pub(super) fn entry(
        &mut self,
        directory: u64,
        name: &[u8],
        value: &[u8],
        base: Option<Inode>,
        round: u32,
    ) -> Result<(), Refused> {
        let path = self.path_of(directory).join(name);
        let entry = check_name(name).and_then(|()| Entry::decode(value));
        match entry.map_err(|why| self.refuse(&path, why.signed()))? {
            Entry::Inode(inode) => {
                let visited = self.visit(&path, inode, base.as_ref(), Some(directory), round);
                visited.map_err(|why| self.refuse(&path, why))
            }
            Entry::Block(handle) => {
                self.hold(directory);
                self.stack.push(Frame::Need(Need {
                    round,
                    wanted: Wanted::Inode(handle),
                    path,
                    task: Task::Inode {
                        base: base.map(Box::new),
                        parent: Some(directory),
                    },
                }));
                Ok(())
            }
        }
    }

    /// Reports an entry, and wants the blocks of it that its base does not have.
    pub(super) fn visit(
        &mut self,
        path: &Path,
        inode: Inode,
        base: Option<&Inode>,
        parent: Option<u64>,
        round: u32,
    ) -> Result<(), Reject> {
        let content = |inode: &Inode| match &inode.content {
            Content::Regular(FileContent::Array(root)) => Some(*root),
            _ => None,
        };
        let xattrs = |inode: &Inode| match &inode.xattrs {
            Xattrs::Stored(root) => Some(*root),
            Xattrs::None | Xattrs::Inline(_) => None,
        };
        let arrays: [fn(&Inode) -> Option<ArrayRoot>; 2] = [content, xattrs];
        for of in arrays {
            if let Some(root) = of(&inode)
                && base.and_then(of) != Some(root)
            {
                self.content(root.top(), path.clone(), round);
            }
        }
        let directory = match &inode.content {
            Content::Directory { map, .. } => Some(*map),
            _ => None,
        };
        self.told.push_back(Step::Entry(path.clone(), inode));
        let Some(map) = directory else {
            return Ok(());
        };
        let base = match base.map(|base| &base.content) {
            Some(Content::Directory { map, .. }) => *map,
            _ => None,
        };
        self.enter(path, map, base, parent, round)
    }

    fn enter(
        &mut self,
        path: &Path,
        map: Option<MapRoot>,
        base: Option<MapRoot>,
        parent: Option<u64>,
        round: u32,
    ) -> Result<(), Reject> {
        let directory = self.number();
        if let Some(parent) = parent {
            self.hold(parent);
        }
        let open = Open {
            path: path.clone(),
            parent,
            holders: 1,
        };
        self.open.insert(directory, open);
        let map = map.filter(|map| base != Some(*map));
        let deep = path.depth() > MAX_DEPTH;
        let Some(map) = map.filter(|_| !deep) else {
            self.release(Some(directory));
            if deep {
                return Err(bad("directory", "nested too deeply"));
            }
            return Ok(());
        };
        self.stack.push(Frame::Need(Need {
            round,
            wanted: Wanted::Map(map.handle),
            path: path.clone(),
            task: Task::Top {
                map: Box::new(map),
                base: base.map(Box::new),
                directory,
            },
        }));
        Ok(())
    }
}
