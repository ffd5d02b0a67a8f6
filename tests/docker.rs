//! The container files, as far as they can be checked without an engine: what they name exists, and the program takes
//! what they give it.

use std::process::Command;

fn root(name: &str) -> String {
    std::fs::read_to_string(format!("{}/{name}", env!("CARGO_MANIFEST_DIR")))
        .expect("a file of the repository")
}

#[test]
fn the_image_is_built_with_the_rust_that_cargo_asks_for_and_runs_commands_that_exist() {
    let (dockerfile, cargo) = (root("Dockerfile"), root("Cargo.toml"));
    let rust = cargo
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = "))
        .expect("a version")
        .trim_matches('"');
    assert!(dockerfile.contains(&format!("FROM rust:{rust}-bookworm")), "rust {rust}");
    for command in [vec!["run", "--help"], vec!["status", "--check", "--help"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_satgres")).args(&command).output().expect("it runs");
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
    assert!(
        dockerfile.contains(r#"CMD ["satgres", "status", "--check"]"#)
            && dockerfile.contains(r#"CMD ["run"]"#)
    );
}

#[test]
fn what_is_left_out_of_the_image_is_not_needed_to_build_it() {
    // The build reads these; benches are named in Cargo.toml.
    for needed in ["src", "migrations", "sql", "config", "benches", "build.rs", "Cargo.lock"] {
        assert!(!root(".dockerignore").lines().any(|line| line == needed), "{needed}");
    }
}

/// It was `status --json`, which ends with 0 whenever the state can be told: a dead service counted as healthy.
#[test]
fn the_health_check_fails_where_no_service_is_at_work() {
    let compose = root("docker-compose.yml");
    assert!(compose.contains(r#"test: ["CMD", "satgres", "status", "--check"]"#));
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_satgres"));
    command.args(["status", "--check", "--data-dir"]).arg(folder.path()).current_dir(folder.path());
    let output = command.output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said, "error: no `satgres run` is at work here: service.state is never, see docs/status.md\n");
}

#[test]
fn variables_of_the_container_files_are_settings() {
    let files = root("Dockerfile") + &root("docker-compose.yml");
    let names: std::collections::BTreeSet<&str> = files
        .split(|c: char| !(c.is_ascii_uppercase() || c == '_'))
        .filter(|word| word.starts_with("SATGRES_"))
        .collect();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let key = name.trim_start_matches("SATGRES_").to_ascii_lowercase();
        let output =
            Command::new(env!("CARGO_BIN_EXE_satgres")).args(["run", "--help"]).output().expect("it runs");
        let help = String::from_utf8_lossy(&output.stdout).into_owned();
        let option = format!("--{}", key.replace('_', "-"));
        assert!(help.contains(&option), "{name}: {option}");
    }
}

#[test]
fn the_compose_file_is_accepted_where_docker_compose_is_installed() {
    let compose = |with_blocks: bool| {
        let mut command = Command::new("docker-compose");
        command.args(["--file", "docker-compose.yml", "config"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        if with_blocks {
            command.env("BLOCKS_DIR", "/blocks")
        } else {
            command.env_remove("BLOCKS_DIR")
        };
        command.output()
    };
    let Ok(output) = compose(true) else {
        println!("SKIPPED: docker-compose is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for part in ["shm_size", "healthcheck", "/blocks:/blocks:ro", "stop_grace_period"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let output = compose(false).expect("it ran before");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("name the folder of blk*.dat files"),
        "{output:?}"
    );
}
