use super::*;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn run(number: u32) -> Job {
    Job::Run(ExecutionId::mint(reeve_protocol::Timestamp::default(), number), 1)
}

fn effects(pool: &mut Pool) -> Vec<Effect> {
    std::iter::from_fn(|| pool.poll_effect()).collect()
}

/// A pool of four with its warm worker ready.
fn warm() -> Pool {
    let mut pool = Pool::new(4);
    pool.handle_start(s(0));
    assert_eq!(effects(&mut pool), [Effect::Spawn(PoolId(1))]);
    pool.handle_ready(PoolId(1), s(0));
    assert_eq!(effects(&mut pool), []);
    pool
}

#[test]
fn the_warm_worker_takes_the_first_and_is_replaced() {
    let mut pool = warm();
    pool.handle_job(run(1), s(1));
    assert_eq!(effects(&mut pool), [Effect::Give(PoolId(1), run(1)), Effect::Spawn(PoolId(2))]);
    pool.handle_taken(PoolId(1));
    pool.handle_ready(PoolId(2), s(1));
    pool.handle_job(run(2), s(1));
    assert_eq!(effects(&mut pool), [Effect::Give(PoolId(2), run(2)), Effect::Spawn(PoolId(3))]);
}

#[test]
fn what_comes_at_once_waits_for_workers_that_start() {
    let mut pool = warm();
    for number in 1..=6 {
        pool.handle_job(run(number), s(1));
    }
    let spawned = effects(&mut pool);
    let made = spawned.iter().filter(|effect| matches!(effect, Effect::Spawn(_))).count();
    assert_eq!(made, 3, "four workers at most: {spawned:?}");
    pool.handle_ready(PoolId(3), s(1));
    assert_eq!(effects(&mut pool), [Effect::Give(PoolId(3), run(2))], "first come, first served");
}

#[test]
fn who_has_nothing_to_do_for_long_is_let_go_but_for_one() {
    let mut pool = warm();
    pool.handle_job(run(1), s(1));
    pool.handle_taken(PoolId(1));
    pool.handle_ready(PoolId(2), s(1));
    pool.handle_ready(PoolId(1), s(2));
    effects(&mut pool);
    assert_eq!(pool.poll_timeout(), Some(s(1) + IDLE));
    pool.handle_timeout(s(1) + IDLE);
    assert_eq!(effects(&mut pool), [Effect::Dismiss(PoolId(2))]);
    pool.handle_ready(PoolId(1), s(12));
    pool.handle_ended(PoolId(2), "ended", s(30));
    assert_eq!(effects(&mut pool), []);
    assert_eq!(pool.poll_timeout(), None, "one is kept for ever");
}

#[test]
fn the_end_of_a_worker_concerns_its_own_work_only() {
    let mut pool = warm();
    pool.handle_job(run(1), s(1));
    pool.handle_taken(PoolId(1));
    pool.handle_ready(PoolId(2), s(1));
    effects(&mut pool);
    pool.handle_ended(PoolId(1), "was ended by signal 11", s(2));
    let why = "its worker was ended by signal 11".to_owned();
    assert_eq!(effects(&mut pool), [Effect::Fail(run(1), why)]);
    pool.handle_job(run(2), s(2));
    assert!(effects(&mut pool).contains(&Effect::Give(PoolId(2), run(2))));
}

#[test]
fn what_a_worker_had_not_begun_goes_to_the_next_one_a_few_times() {
    let mut pool = warm();
    pool.handle_job(run(1), s(1));
    let mut given = 0;
    let mut failed = 0;
    for _ in 0..10 {
        for effect in effects(&mut pool) {
            match effect {
                Effect::Spawn(worker) => pool.handle_ready(worker, s(1)),
                Effect::Give(worker, _) => {
                    given += 1;
                    pool.handle_ended(worker, "was killed", s(1));
                }
                Effect::Fail(job, _) => {
                    assert_eq!(job, run(1));
                    failed += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((given, failed), (usize::from(HANDED_MAX), 1));
}

#[test]
fn workers_that_end_at_once_are_not_made_for_ever() {
    let mut pool = Pool::new(4);
    pool.handle_start(s(0));
    pool.handle_job(run(1), s(0));
    let mut made = 0;
    let mut failed = Vec::new();
    for _ in 0..100 {
        for effect in effects(&mut pool) {
            match effect {
                Effect::Spawn(worker) => {
                    made += 1;
                    pool.handle_ended(worker, "exited with 1", s(1));
                }
                Effect::Fail(job, why) => failed.push((job, why)),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(made, INTENSITY);
    let [(job, why)] = failed.as_slice() else { panic!("{failed:?}") };
    assert_eq!(*job, run(1));
    assert!(why.ends_with("the last one exited with 1"), "{why}");

    // After the pause it is tried again.
    let until = pool.poll_timeout().expect("a pause ends");
    pool.handle_timeout(until);
    assert!(matches!(effects(&mut pool)[..], [Effect::Spawn(_)]));
}

#[test]
fn a_worker_that_says_nothing_is_killed() {
    let mut pool = Pool::new(4);
    pool.handle_start(s(0));
    effects(&mut pool);
    pool.handle_timeout(ANSWER);
    let done = effects(&mut pool);
    assert!(done.contains(&Effect::Kill(PoolId(1))), "{done:?}");

    let mut pool = warm();
    pool.handle_job(run(1), s(1));
    effects(&mut pool);
    pool.handle_timeout(s(1) + ANSWER);
    assert!(effects(&mut pool).contains(&Effect::Kill(PoolId(1))), "it was never granted");
    pool.handle_ended(PoolId(1), "was killed", s(30));
    let why = "its worker was killed".to_owned();
    assert!(effects(&mut pool).contains(&Effect::Fail(run(1), why)), "it may have begun since");
}

#[test]
fn a_worker_that_does_not_kill_its_work_is_killed() {
    let mut pool = warm();
    let Job::Run(id, _) = run(1) else { panic!("it is a run") };
    pool.handle_job(run(1), s(1));
    pool.handle_taken(PoolId(1));
    effects(&mut pool);
    pool.handle_force(id, s(5));
    pool.handle_force(id, s(6));
    pool.handle_timeout(s(5) + FORCE);
    assert!(effects(&mut pool).contains(&Effect::Kill(PoolId(1))));
    assert!(pool.poll_timeout().is_none_or(|at| at > s(5) + FORCE), "it is killed once");
}

#[test]
fn a_call_that_nobody_waits_for_ends_its_worker() {
    let mut pool = warm();
    let (first, second) = (CallId(1), CallId(2));
    pool.handle_job(Job::Call(first), s(1));
    pool.handle_job(Job::Call(second), s(1));
    effects(&mut pool);
    pool.handle_abandoned(second);
    assert_eq!(effects(&mut pool), [], "nobody had begun it");
    pool.handle_abandoned(first);
    assert_eq!(effects(&mut pool), [Effect::Kill(PoolId(1))]);
    pool.handle_ended(PoolId(1), "was killed", s(1));
    assert!(!effects(&mut pool).iter().any(|effect| matches!(effect, Effect::Fail(..))));
}

#[test]
fn at_the_end_idle_workers_go_and_busy_ones_stay() {
    let mut pool = warm();
    pool.handle_job(run(1), s(1));
    pool.handle_taken(PoolId(1));
    pool.handle_ready(PoolId(2), s(1));
    effects(&mut pool);
    pool.handle_close(s(1));
    assert_eq!(effects(&mut pool), [Effect::Dismiss(PoolId(2))]);
    pool.handle_job(run(2), s(2));
    assert!(matches!(effects(&mut pool)[..], [Effect::Fail(..)]));
}
