//! Where PROFILE lines go: standard output always, the log too unless somebody would see them twice in one place.

#![allow(clippy::unwrap_used)]

use std::{
    fs::{self, File},
    io::Read as _,
    os::fd::{FromRawFd as _, OwnedFd},
    process::{Command, Stdio},
};

use satgres::{
    logging,
    profile::{Figures, Profile},
};

/// Marks the process that prints the line for the tests below.
const CHILD: &str = "SATGRES_TEST_PROFILE_CHILD";
const LINE: &str = "PROFILE: Restored constraints: 0 s 420";

/// Not a test in itself: prints one line where a test below asked for it.
#[test]
fn prints_a_line_when_told() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    logging::start("info");
    let profile = Profile::start();
    let figures = Figures { height: Some(420), ..Figures::default() };
    profile.ended(&profile.phase(), "Restored constraints", figures);
}

fn child() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "prints_a_line_when_told", "--nocapture"]).env(CHILD, "1").env("NO_COLOR", "1");
    command
}

fn count(bytes: &[u8]) -> usize {
    String::from_utf8_lossy(bytes).matches(LINE).count()
}

#[test]
fn two_places_get_the_line_once_each_and_the_log_says_that_it_is_a_profile() {
    let output = child().output().unwrap();
    assert_eq!((count(&output.stdout), count(&output.stderr)), (1, 1));
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.lines().any(|line| line == LINE), "a line of its own, with nothing around it: {out}");
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("INFO profile: PROFILE:"), "{log}");
}

#[test]
fn one_file_for_both_gets_the_line_once() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("all.log");
    let file = File::create(&path).unwrap();
    let status = child().stdout(file.try_clone().unwrap()).stderr(file).status().unwrap();
    assert!(status.success());
    assert_eq!(count(&fs::read(&path).unwrap()), 1);
}

#[test]
fn a_terminal_on_standard_error_does_not_get_it_from_the_log() {
    let (mut master, mut slave) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: openpty fills both descriptors, which are owned from here on.
    let (master, slave) = unsafe {
        assert_eq!(libc::openpty(&raw mut master, &raw mut slave, none, none.cast(), none.cast()), 0);
        (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    };
    let mut process = child().stdout(Stdio::piped()).stderr(slave).spawn().unwrap();
    let mut out = Vec::new();
    process.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    assert!(process.wait().unwrap().success());
    let mut terminal = Vec::new();
    // Reading ends with an error once nobody has the other side open.
    let _ = File::from(master).read_to_end(&mut terminal);
    assert_eq!((count(&out), count(&terminal)), (1, 0));
}
