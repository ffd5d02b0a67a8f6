//! Tables that are held, so that a run waits at a chosen place.

use std::process::Child;

use super::{Satgres, wait_until};

/// A session that holds a table, so that writers of it wait while there is time to look; reading it is not hindered.
pub fn hold(satgres: &Satgres, table: &str) -> Child {
    let sql = format!("begin; lock {table} in share mode; select pg_sleep(300)");
    let holder = satgres.start(&["psql", "--", "-c", &sql]);
    let locks = format!(
        "select count(*) from pg_locks where relation = '{table}'::regclass and mode = 'ShareLock' and granted"
    );
    wait_until("the table is held", || satgres.value(&locks) == "1");
    holder
}

/// Ends that session.
pub fn release(satgres: &Satgres, table: &str, mut holder: Child) {
    let sql = format!(
        "select pg_terminate_backend(pid) from pg_stat_activity where query like 'begin; lock {table} %'"
    );
    assert_eq!(satgres.psql(&sql), [["t"]]);
    holder.wait().unwrap();
}
