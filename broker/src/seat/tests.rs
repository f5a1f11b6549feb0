//! One seat per checkout, whatever lies around; runs on real files in a directory of its own.

use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::sync::{Arc, Barrier};

use reeve_protocol::snapshot::Repository;

use super::*;

struct Ground {
    dir: tempfile::TempDir,
    place: Place,
}

fn ground() -> Ground {
    let dir = tempfile::tempdir().unwrap();
    let place = place_in(dir.path(), "state");
    Ground { dir, place }
}

fn place_in(dir: &Path, state: &str) -> Place {
    let id = "0123456789abcdef".to_owned();
    Place {
        root: dir.to_owned(),
        state_dir: dir.join(state).join(&id),
        run_dir: dir.join("run"),
        git_dir: None,
        repository: Repository { name: "x".to_owned(), id: id.clone(), branch: None },
        id,
    }
}

fn take(place: &Place, instance: &str) -> Result<Seat, SeatError> {
    let me = Identity { pid: 7, start_ticks: 8, boot_id: "b".to_owned(), host_id: "h".to_owned() };
    Seat::take(place, &me, "1.2.3", instance.to_owned(), Timestamp::from_micros(5))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn a_broker_is_found_while_it_lives_and_leaves_nothing_but_locks() {
    let Ground { dir: _dir, place } = ground();
    let mut seat = take(&place, "one").unwrap();
    let _listener = seat.listen().unwrap();

    assert!(is_held(&place.lock_file()).unwrap());
    assert_eq!(read_lease(&place.lease_file()).as_ref(), Some(seat.lease()));
    assert_eq!(read_lease(&place.machine_lock_file()).as_ref(), Some(seat.lease()));
    for private in [place.lease_file(), place.lock_file(), place.socket()] {
        assert_eq!(mode(&private), 0o600, "{}", private.display());
    }
    assert_eq!((mode(&place.state_dir), mode(&place.run_dir)), (0o700, 0o700));
    let refused = take(&place, "two").unwrap_err();
    assert!(matches!(&refused, SeatError::AlreadyServed(Some(lease)) if lease.instance == "one"));
    let told = refused.to_string();
    for part in ["pid 7", "start tick 8", "version 1.2.3", "since 1970-01-01T00:00:00"] {
        assert!(told.contains(part), "{told}");
    }

    seat.leave();
    assert!(!is_held(&place.lock_file()).unwrap());
    assert!(!place.lease_file().exists() && !place.socket().exists());
    assert!(take(&place, "three").is_ok());
}

#[test]
fn of_fifty_at_once_exactly_one_serves() {
    let Ground { dir: _dir, place } = ground();
    let barrier = Arc::new(Barrier::new(50));
    let threads: Vec<_> = (0..50)
        .map(|n| {
            let (place, barrier) = (place.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                let _ = is_held(&place.lock_file());
                let taken = take(&place, &n.to_string());
                barrier.wait();
                taken
            })
        })
        .collect();
    let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert!(
        results
            .iter()
            .filter_map(|result| result.as_ref().err())
            .all(|error| matches!(error, SeatError::AlreadyServed(_)))
    );
}

#[test]
fn a_reader_that_looks_for_a_broker_is_not_taken_for_one() {
    let Ground { dir: _dir, place } = ground();
    drop(take(&place, "one").unwrap());
    let reader = File::open(place.lock_file()).unwrap();
    reader.try_lock_shared().unwrap();
    let taker = std::thread::spawn({
        let place = place.clone();
        move || take(&place, "two").map(drop)
    });
    // Time enough for a wrong answer; a right one comes only after the reader is gone.
    for _ in 0..200 {
        if taker.is_finished() {
            break;
        }
        std::thread::park_timeout(Duration::from_micros(100));
    }
    assert!(!taker.is_finished());
    drop(reader);
    taker.join().unwrap().unwrap();
}

#[tokio::test]
async fn what_a_dead_broker_left_blocks_no_start() {
    for debris in ["", "4711\n", "{\"schema\":\"reeve-lease/9\"}", "\u{0}\u{1}garbage"] {
        let Ground { dir: _dir, place } = ground();
        private_dir(&place.state_dir).unwrap();
        private_dir(&place.run_dir).unwrap();
        for file in
            [place.lease_file(), place.lock_file(), place.machine_lock_file(), place.socket()]
        {
            fs::write(file, debris).unwrap();
        }
        assert!(!is_held(&place.lock_file()).unwrap());
        let mut seat = take(&place, "one").unwrap();
        let _listener = seat.listen().unwrap();
        assert_eq!(read_lease(&place.lease_file()).as_ref(), Some(seat.lease()));
        assert!(fs::symlink_metadata(place.socket()).unwrap().file_type().is_socket());
    }
}

#[tokio::test]
async fn a_lease_of_a_living_stranger_blocks_no_start() {
    let Ground { dir: _dir, place } = ground();
    let mut first = take(&place, "one").unwrap();
    let listener = first.listen().unwrap();
    let left = Lease { pid: std::process::id(), ..first.lease().clone() };
    drop((first, listener));
    fs::write(place.lease_file(), left.to_bytes()).unwrap();
    let stale = std::os::unix::net::UnixListener::bind(place.socket()).unwrap();
    drop(stale);

    let mut seat = take(&place, "two").unwrap();
    let _listener = seat.listen().unwrap();
    assert_eq!(read_lease(&place.lease_file()).unwrap().instance, "two");
}

#[test]
fn a_linked_lock_is_refused_and_its_target_left_alone() {
    let Ground { dir, place } = ground();
    private_dir(&place.state_dir).unwrap();
    let target = dir.path().join("precious");
    fs::write(&target, "precious").unwrap();
    symlink(&target, place.lock_file()).unwrap();
    assert!(matches!(take(&place, "one"), Err(SeatError::Dir { .. })));
    assert!(is_held(&place.lock_file()).is_err());
    fs::remove_file(place.lock_file()).unwrap();
    fs::hard_link(&target, place.lock_file()).unwrap();
    assert!(matches!(take(&place, "one"), Err(SeatError::Dir { .. })));
    assert_eq!(fs::read_to_string(target).unwrap(), "precious");
}

#[test]
fn a_lock_that_is_no_file_is_refused_at_once() {
    let Ground { dir: _dir, place } = ground();
    private_dir(&place.state_dir).unwrap();
    let lock = place.lock_file();
    let fifo = || {
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &lock, kind, Mode::RUSR | Mode::WUSR, 0).unwrap();
    };
    let socket = || drop(std::os::unix::net::UnixListener::bind(&lock).unwrap());
    let directory = || fs::create_dir(&lock).unwrap();
    for make in [&fifo as &dyn Fn(), &socket, &directory] {
        make();
        let error = take(&place, "one").unwrap_err();
        assert!(matches!(&error, SeatError::Dir { path, .. } if *path == lock), "{error}");
        assert!(is_held(&lock).is_err());
        fs::remove_file(&lock).or_else(|_| fs::remove_dir(&lock)).unwrap();
    }
}

#[tokio::test]
async fn a_socket_deleted_under_a_living_broker_is_bound_again() {
    let Ground { dir: _dir, place } = ground();
    let mut seat = take(&place, "one").unwrap();
    let first = seat.listen().unwrap();
    assert!(seat.socket_is_ours());
    fs::remove_file(place.socket()).unwrap();
    fs::remove_file(place.lease_file()).unwrap();
    assert!(!seat.socket_is_ours());

    let second = seat.rebind().unwrap();
    assert!(seat.socket_is_ours());
    assert_eq!(read_lease(&place.lease_file()).as_ref(), Some(seat.lease()));
    drop(first);
    assert!(seat.socket_is_ours(), "the old listener's end takes no name with it");
    let (accepted, connected) = tokio::join!(
        interprocess::local_socket::traits::tokio::Listener::accept(&second),
        tokio::net::UnixStream::connect(place.socket())
    );
    accepted.unwrap();
    connected.unwrap();
}

#[tokio::test]
async fn what_a_successor_wrote_is_left_alone() {
    let Ground { dir: _dir, place } = ground();
    let mut seat = take(&place, "one").unwrap();
    let listener = seat.listen().unwrap();
    fs::remove_file(place.socket()).unwrap();
    fs::write(place.socket(), "another's").unwrap();
    let other = Lease { instance: "two".to_owned(), ..seat.lease().clone() };
    fs::write(place.lease_file(), other.to_bytes()).unwrap();
    drop((seat, listener));
    assert!(place.socket().exists());
    assert_eq!(read_lease(&place.lease_file()), Some(other));
}

#[test]
fn directories_open_to_others_are_refused_by_name() {
    for (which, bits) in [("run", 0o777), ("run", 0o710), ("state", 0o755)] {
        let Ground { dir: _dir, place } = ground();
        let path = if which == "run" { &place.run_dir } else { &place.state_dir };
        private_dir(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
        let told = take(&place, "one").unwrap_err().to_string();
        assert!(told.contains(&path.display().to_string()) && told.contains("chmod 700"), "{told}");
        assert_eq!(mode(path), bits, "nothing was changed");
    }
    let Ground { dir, place } = ground();
    let elsewhere = dir.path().join("elsewhere");
    private_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &place.run_dir).unwrap();
    assert!(matches!(take(&place, "one"), Err(SeatError::Dir { .. })));
}

#[tokio::test]
async fn a_broker_with_another_state_directory_is_told_of_the_first() {
    let Ground { dir, place } = ground();
    let mut seat = take(&place, "one").unwrap();
    let _listener = seat.listen().unwrap();
    let error = take(&place_in(dir.path(), "other"), "two").unwrap_err();
    assert!(matches!(error, SeatError::AlreadyServed(Some(lease)) if lease.instance == "one"));
}

#[tokio::test]
async fn a_checkout_with_a_very_long_path_is_served() {
    let Ground { dir, place } = ground();
    let root = dir.path().join("d".repeat(150)).join("e".repeat(150));
    fs::create_dir_all(&root).unwrap();
    let mut seat = take(&Place { root: root.clone(), ..place.clone() }, "one").unwrap();
    let _listener = seat.listen().unwrap();
    assert_eq!(read_lease(&place.lease_file()).unwrap().root, root);
}
