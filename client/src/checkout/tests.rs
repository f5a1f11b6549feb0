//! The same directory is the same checkout; a lease without a lock is nobody's.

use std::os::unix::fs::{PermissionsExt, symlink};

use reeve_protocol::time::Timestamp;

use super::*;

struct Ground {
    dir: tempfile::TempDir,
    around: Surroundings,
}

impl Ground {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let around = Surroundings {
            home: Some(home),
            session: dir.path().join("no-session"),
            short: dir.path().join("short"),
            ..Surroundings::default()
        };
        Self { dir, around }
    }

    fn path(&self, relative: &str) -> PathBuf {
        fs::canonicalize(self.dir.path()).unwrap().join(relative)
    }

    fn make(&self, relative: &str) -> PathBuf {
        let path = self.path(relative);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn write(&self, relative: &str, content: &str) {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn find(&self, relative: &str) -> Place {
        find_in(&self.path(relative), &self.around).unwrap()
    }
}

#[test]
fn a_manifest_inside_a_work_tree_belongs_to_its_root() {
    let ground = Ground::new();
    ground.write("repo/.git/HEAD", "ref: refs/heads/topic/one\n");
    ground.write("repo/sub/reeve.toml", "");
    let deep = ground.make("repo/sub/deep");
    let place = ground.find("repo/sub/deep");
    assert_eq!(place.root, ground.path("repo"));
    assert_eq!(place.git_dir, Some(ground.path("repo/.git")));
    assert_eq!(place.repository.branch.as_deref(), Some("topic/one"));
    assert_eq!(place.repository.name, "repo");
    assert!(deep.starts_with(&place.root));
}

#[test]
fn without_git_the_nearest_manifest_and_then_the_directory_itself_counts() {
    let ground = Ground::new();
    ground.write("outer/reeve.toml", "");
    ground.write("outer/inner/reeve.toml", "");
    ground.make("outer/inner/deep");
    ground.make("outer/plain");
    // A directory named so that holds nothing is no repository.
    ground.make("outer/.git");
    ground.make("elsewhere/deep");
    assert_eq!(ground.find("outer/inner/deep").root, ground.path("outer/inner"));
    assert_eq!(ground.find("outer/plain").root, ground.path("outer"));
    assert_eq!(ground.find("elsewhere/deep").root, ground.path("elsewhere/deep"));
    assert_eq!(ground.find("elsewhere/deep").git_dir, None);
}

#[test]
fn linked_work_trees_and_submodules_are_checkouts_of_their_own() {
    let ground = Ground::new();
    ground.write("main/.git/HEAD", "ref: refs/heads/main\n");
    ground.write("main/.git/worktrees/w/HEAD", "ref: refs/heads/side\n");
    ground.write("main/.git/worktrees/w/commondir", "../..\n");
    ground
        .write("w/.git", &format!("gitdir: {}\n", ground.path("main/.git/worktrees/w").display()));
    ground.write("main/.git/modules/m/HEAD", "0123456789\n");
    ground.write("main/m/.git", "gitdir: ../.git/modules/m\n");
    ground.write("main/m/src/x", "");

    let (main, linked, module) = (ground.find("main"), ground.find("w"), ground.find("main/m/src"));
    assert_eq!(linked.root, ground.path("w"));
    assert_eq!(linked.git_dir, Some(ground.path("main/.git")));
    assert_eq!(linked.repository.branch.as_deref(), Some("side"));
    assert_eq!(module.root, ground.path("main/m"));
    assert_eq!(module.git_dir, Some(ground.path("main/.git/modules/m")));
    assert_eq!(module.repository.branch, None, "a detached head is on no branch");
    assert!(main.id != linked.id && main.id != module.id && linked.id != module.id);
}

#[test]
fn every_spelling_and_every_move_keeps_the_id() {
    let ground = Ground::new();
    ground.write("a/repo/.git/HEAD", "ref: refs/heads/main\n");
    ground.make("a/repo/sub");
    symlink(ground.path("a"), ground.path("link")).unwrap();
    let id = ground.find("a/repo").id;
    assert!(id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    for spelling in ["a/repo/", "link/repo", "a/../a/./repo/sub/..", "link/repo/sub"] {
        assert_eq!(ground.find(spelling).id, id, "{spelling}");
    }
    fs::rename(ground.path("a/repo"), ground.path("moved")).unwrap();
    assert_eq!(ground.find("moved").id, id);
    ground.write("a/repo/.git/HEAD", "ref: refs/heads/main\n");
    assert_ne!(ground.find("a/repo").id, id);
}

#[test]
fn a_long_path_has_a_short_socket() {
    let mut ground = Ground::new();
    let long = format!("{}/{}", "d".repeat(150), "e".repeat(150));
    ground.make(&long);
    let place = ground.find(&long);
    assert!(place.socket().as_os_str().len() <= SOCKET_PATH_MAX);
    assert!(place.socket().starts_with(ground.path("home/.cache/reeve/run")));

    ground.around.cache_home = Some(ground.path(&"c".repeat(90)));
    assert_eq!(ground.find(&long).run_dir, ground.around.short);
}

#[test]
fn the_environment_says_where_things_lie() {
    let mut ground = Ground::new();
    ground.make("repo");
    let place = ground.find("repo");
    assert_eq!(place.state_dir, ground.path("home/.local/state/reeve").join(&place.id));

    ground.around.state_home = Some(ground.path("xdg-state"));
    ground.around.cache_home = Some(ground.path("cache"));
    let place = ground.find("repo");
    assert_eq!(place.state_dir, ground.path("xdg-state/reeve").join(&place.id));
    assert_eq!(place.run_dir, ground.path("cache/reeve/run"));

    ground.around.state_dir = Some(ground.path("own"));
    ground.around.session = ground.make("session");
    let place = ground.find("repo");
    assert_eq!(place.state_dir, ground.path("own").join(&place.id));
    assert_eq!(place.run_dir, ground.path("session/reeve"));
    assert!(!place.state_dir.exists() && !place.run_dir.exists(), "looking makes nothing");

    let homeless = Surroundings::default();
    assert!(matches!(find_in(&ground.path("repo"), &homeless), Err(CheckoutError::Homeless)));
    assert!(matches!(
        find_in(&ground.path("gone"), &ground.around),
        Err(CheckoutError::Directory { .. })
    ));
}

#[test]
fn the_identity_is_that_of_this_process() {
    let identity = identity().unwrap();
    let stat = seat::process::look(identity.pid).unwrap();
    assert_eq!(stat.start_ticks, identity.start_ticks);
    assert!(stat.start_ticks > 0 && identity.boot_id.len() == 36 && identity.host_id.len() == 16);
    assert_eq!(seat::process::look(u32::MAX), None);
}

#[test]
fn a_host_id_is_made_once() {
    let ground = Ground::new();
    let path = ground.path("state/host-id");
    let first = mint_host_id(&path).unwrap();
    assert_eq!(first.len(), 32);
    assert_eq!(mint_host_id(&path), Some(first));
    assert_eq!(fs::read_dir(ground.path("state")).unwrap().count(), 1);
}

#[tokio::test]
async fn a_broker_lives_while_its_lock_is_held_whatever_its_lease_says() {
    let ground = Ground::new();
    ground.make("repo");
    let place = ground.find("repo");
    assert_eq!(discover(&place).unwrap(), Found::NoBroker);

    let me = identity().unwrap();
    let take =
        || seat::Seat::take(&place, &me, "1", "one".to_owned(), Timestamp::from_micros(1)).unwrap();
    let mut seat = take();
    assert_eq!(discover(&place).unwrap(), Found::Mute, "it has not yet said where it is");
    let listener = seat.listen().unwrap();
    let lease = seat.lease().clone();
    assert_eq!(discover(&place).unwrap(), Found::Serving(Box::new(lease.clone())));
    let other = Place { state_dir: ground.path("other").join(&place.id), ..place.clone() };
    assert_eq!(discover(&other).unwrap(), Found::Serving(Box::new(lease.clone())));

    drop((seat, listener));
    assert_eq!(discover(&place).unwrap(), Found::NoBroker);
    fs::write(place.lease_file(), lease.to_bytes()).unwrap();
    assert_eq!(discover(&place).unwrap(), Found::Stale(Box::new(lease)));
    for debris in ["", "garbage", "{\"schema\": \"reeve-lease/7\"}"] {
        fs::write(place.lease_file(), debris).unwrap();
        assert_eq!(discover(&place).unwrap(), Found::NoBroker, "{debris:?}");
    }

    fs::set_permissions(&place.run_dir, fs::Permissions::from_mode(0o777)).unwrap();
    let told = discover(&place).unwrap_err().to_string();
    assert!(told.contains(&place.run_dir.display().to_string()), "{told}");
}
