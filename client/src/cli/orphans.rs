//! The workers' knowledge of process trees, for the broker: what a lost worker left behind.

use reeve_broker::Orphans;
use reeve_protocol::ExecutionId;
use reeve_protocol::peer::Tree;
use reeve_worker::process::{Member, orphan};
use rustix::process::Signal;

/// Finds processes by the mark that they inherited, and by the group of the first of them.
pub(super) struct Marked;

impl Marked {
    fn members(id: ExecutionId, tree: Option<Tree>) -> Vec<Member> {
        let mut members = orphan::find_by_mark(id);
        let group = tree.and_then(own_group).map(orphan::group_members).unwrap_or_default();
        for member in group {
            if !members.contains(&member) {
                members.push(member);
            }
        }
        members
    }
}

/// Returns the group, unless its number has gone to another process since.
fn own_group(tree: Tree) -> Option<i32> {
    let pgid = i32::try_from(tree.pgid).ok()?;
    let leader = Member::of(pgid);
    leader.is_none_or(|leader| leader.start_ticks == tree.start_ticks).then_some(pgid)
}

impl Orphans for Marked {
    fn find(&self, id: ExecutionId, tree: Option<Tree>) -> Vec<u32> {
        let members = Self::members(id, tree);
        members.iter().filter_map(|member| u32::try_from(member.pid).ok()).collect()
    }

    fn signal(&self, id: ExecutionId, tree: Option<Tree>, kill: bool) {
        let signal = if kill { Signal::KILL } else { Signal::TERM };
        for member in Self::members(id, tree) {
            member.signal(signal);
        }
    }
}
