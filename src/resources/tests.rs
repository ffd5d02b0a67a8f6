//! Trees of files as machines and containers of all sorts show them.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

const MEMINFO_128_GIB: &str =
    "MemTotal:       134217728 kB\nMemFree:         1024 kB\nMemAvailable:    2048 kB\n";
const GIB: u64 = 1 << 30;

/// A root with the given files.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = temp.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    temp
}

fn read(files: &[(&str, &str)]) -> Resources {
    Resources::read(tree(files).path())
}

fn ram(files: &[(&str, &str)]) -> (u64, String) {
    let mut all = vec![("proc/meminfo", MEMINFO_128_GIB)];
    all.extend_from_slice(files);
    let found = read(&all).ram_bytes;
    (found.value, found.source)
}

fn cpus(files: &[(&str, &str)]) -> (usize, String) {
    let mut all = vec![("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-7\n")];
    all.extend_from_slice(files);
    let found = read(&all).cpus;
    (found.value, found.source)
}

const V2_MOUNT: &str = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

#[test]
fn a_plain_machine_gives_its_physical_memory() {
    assert_eq!(ram(&[]), (128 * GIB, "MemTotal of /proc/meminfo".to_owned()));
    let none = read(&[]);
    assert_eq!(none.ram_bytes.value, 4 * GIB);
    assert_eq!(none.ram_bytes.source, "unknown, taken as 4GiB");
    assert!(none.cpus.value >= 1);
}

#[test]
fn version_2_takes_the_tightest_ancestor_and_names_it() {
    let own = [
        ("proc/self/cgroup", "0::/a/b\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
        ("sys/fs/cgroup/a/memory.max", "8589934592\n"),
        ("sys/fs/cgroup/a/b/memory.max", "2147483648\n"),
        ("sys/fs/cgroup/a/sibling/memory.max", "1048576\n"),
    ];
    assert_eq!(ram(&own), (2 * GIB, "cgroup v2 memory.max of /a/b".to_owned()));
    let mut parent = own;
    parent[3].1 = "1073741824\n";
    assert_eq!(ram(&parent), (GIB, "cgroup v2 memory.max of /a".to_owned()));
    // Without mountinfo, at the usual place.
    parent[1].1 = "";
    assert_eq!(ram(&parent), (GIB, "cgroup v2 memory.max of /a".to_owned()));
    // Beyond memory.high the kernel throttles: it is a limit as well.
    let mut high = own.to_vec();
    high.push(("sys/fs/cgroup/a/b/memory.high", "1610612736\n"));
    assert_eq!(ram(&high), (1_610_612_736, "cgroup v2 memory.high of /a/b".to_owned()));
}

#[test]
fn texts_that_mean_no_limit_are_none() {
    for text in ["max\n", "0\n", "", "-1\n", "9223372036854771712\n", "18446744073709551616\n", "two\n"] {
        let files = [
            ("proc/self/cgroup", "0::/a\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/a/memory.max", text),
        ];
        assert_eq!(ram(&files), (128 * GIB, "MemTotal of /proc/meminfo".to_owned()), "{text:?}");
        let files =
            [("proc/self/cgroup", "4:memory:/a\n"), ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", text)];
        assert_eq!(ram(&files), (128 * GIB, "MemTotal of /proc/meminfo".to_owned()), "{text:?}");
    }
    // A limit above what there is limits nothing.
    let files = [("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "274877906944\n")];
    assert_eq!(ram(&files).0, 128 * GIB);
}

#[test]
fn a_limit_counts_where_physical_memory_is_unknown() {
    let files = [
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/memory.max", "536870912\n"),
    ];
    assert_eq!(read(&files).ram_bytes, Found::new(536_870_912, "cgroup v2 memory.max of /"));
}

#[test]
fn version_1_takes_the_tightest_ancestor_too() {
    let files = [
        ("proc/self/cgroup", "9:name=systemd:/x\n4:memory:/jobs/one\n0::/\n"),
        ("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "4294967296\n"),
        ("sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/memory/jobs/one/memory.stat", "cache 1\nhierarchical_memory_limit 4294967296\n"),
    ];
    assert_eq!(ram(&files), (4 * GIB, "cgroup v1 memory.limit_in_bytes of /jobs".to_owned()));
    // What a namespace hides, version 1 tells all the same.
    let mut hidden = files.to_vec();
    hidden[5].1 = "hierarchical_memory_limit 1073741824\n";
    assert_eq!(ram(&hidden), (GIB, "cgroup v1 hierarchical_memory_limit of /jobs/one".to_owned()));
}

#[test]
fn hybrid_hierarchies_are_both_read() {
    let mount = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let files = [
        ("proc/self/cgroup", "4:memory:/v1\n0::/v2\n"),
        ("proc/self/mountinfo", mount),
        ("sys/fs/cgroup/memory/v1/memory.limit_in_bytes", "3221225472\n"),
        ("sys/fs/cgroup/unified/v2/memory.max", "max\n"),
    ];
    assert_eq!(ram(&files), (3 * GIB, "cgroup v1 memory.limit_in_bytes of /v1".to_owned()));
    let mut other = files;
    other[3].1 = "2147483648\n";
    assert_eq!(ram(&other), (2 * GIB, "cgroup v2 memory.max of /v2".to_owned()));
    // Also without mountinfo: version 2 lies beside version 1.
    other[1].1 = "";
    assert_eq!(ram(&other), (2 * GIB, "cgroup v2 memory.max of /v2".to_owned()));
}

#[test]
fn containers_see_their_own_group_whatever_their_path_says() {
    // The host's path, mounted from there on (docker with version 1).
    let files = [
        ("proc/self/cgroup", "4:memory:/docker/0123\n"),
        (
            "proc/self/mountinfo",
            "35 31 0:32 /docker/0123 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        ),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
    ];
    assert_eq!(ram(&files), (GIB, "cgroup v1 memory.limit_in_bytes of /docker/0123".to_owned()));
    // A path that does not exist under the mount.
    let mut gone = files;
    gone[1].1 = "35 31 0:32 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
    assert_eq!(ram(&gone), (GIB, "cgroup v1 memory.limit_in_bytes of /".to_owned()));
    // A namespace inside a namespace: the paths lead outside of what is mounted.
    for path in ["0::/../../pod/leaf\n", "0::/..\n", "0::/\n", ""] {
        for top in ["/", "/..", "/elsewhere"] {
            let mount = format!("35 24 0:30 {top} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
            let files = [
                ("proc/self/cgroup", path),
                ("proc/self/mountinfo", mount.as_str()),
                ("sys/fs/cgroup/memory.max", "2147483648\n"),
                ("sys/fs/pod/leaf/memory.max", "1\n"),
            ];
            assert_eq!(ram(&files).0, 2 * GIB, "{path:?} {top}");
        }
    }
}

#[test]
fn the_mount_that_holds_the_path_is_chosen_and_its_name_may_have_spaces() {
    let mount = "35 24 0:30 /other /mnt/first rw - cgroup2 cgroup2 rw\n\
                 36 24 0:30 / /mnt/with\\040space rw - cgroup2 cgroup2 rw\n";
    let files = [
        ("proc/self/cgroup", "0::/a b\n"),
        ("proc/self/mountinfo", mount),
        ("mnt/first/memory.max", "1048576\n"),
        ("mnt/with space/a b/memory.max", "1073741824\n"),
    ];
    assert_eq!(ram(&files), (GIB, "cgroup v2 memory.max of /a b".to_owned()));
}

#[test]
fn cores_are_the_tightest_of_affinity_and_quotas() {
    assert_eq!(cpus(&[]), (8, "Cpus_allowed_list of /proc/self/status".to_owned()));
    let list = [("proc/self/status", "Cpus_allowed_list:\t0,2-3,64-127\n")];
    assert_eq!(cpus(&list).0, 67);
    let v2 = |own: &'static str, parent: &'static str| {
        cpus(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/a/cpu.max", parent),
            ("sys/fs/cgroup/a/b/cpu.max", own),
        ])
    };
    assert_eq!(v2("max 100000\n", "400000 100000\n"), (4, "cgroup v2 cpu.max of /a".to_owned()));
    assert_eq!(v2("250000 100000\n", "400000 100000\n"), (2, "cgroup v2 cpu.max of /a/b".to_owned()));
    assert_eq!(v2("50000 100000\n", "max 100000\n").0, 1);
    assert_eq!(v2("6400000 100000\n", "max 100000\n").0, 8);
    for odd in ["", "100000\n", "0 100000\n", "100000 0\n", "x y\n"] {
        assert_eq!(v2(odd, "max 100000\n").0, 8, "{odd:?}");
    }
    let v1 = |quota: &'static str| {
        cpus(&[
            ("proc/self/cgroup", "2:cpu,cpuacct:/a\n"),
            ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", quota),
            ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n"),
        ])
    };
    assert_eq!(v1("150000\n"), (3, "cgroup v1 cpu.cfs_quota_us of /a".to_owned()));
    assert_eq!(v1("-1\n").0, 8);
}

#[test]
fn processors_are_counted_where_affinity_is_not_told() {
    let files = [("proc/cpuinfo", "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\n")];
    assert_eq!(read(&files).cpus, Found::new(2, "/proc/cpuinfo"));
}

#[test]
fn this_machine_is_described_and_sysinfo_agrees() {
    let found = Resources::detect(Path::new("/nonexistent/below/the/root"));
    assert!(found.ram_bytes.value > 64 << 20, "{found}");
    assert!(found.disk_free_bytes.is_some());
    assert_eq!(found.cpus.value, std::thread::available_parallelism().unwrap().get());
    // sysinfo never finds a limit that was not found here.
    let own = Resources::read(Path::new("/"));
    assert_eq!(found.ram_bytes, own.ram_bytes);
    if let Some(limit) = second_opinion(false) {
        assert_eq!(limit.value, own.ram_bytes.value);
    }
}

#[test]
fn sizes_are_written_for_people() {
    for (bytes, text) in [
        (0, "0"),
        (4096, "4KiB"),
        (1000, "1000"),
        (10_000_000, "9.5MiB"),
        (2 << 30, "2GiB"),
        (1536 << 20, "1536MiB"),
        (25_188_352_000, "24021MiB"),
    ] {
        assert_eq!(about(bytes), text);
    }
}

proptest! {
    /// Whatever the files hold: no panic, at least one core, some memory.
    #[test]
    fn garbage_never_hurts(
        texts in prop::collection::vec(prop_oneof![
            any::<Vec<u8>>(),
            "[0-9:,/. \\n-]{0,60}".prop_map(String::into_bytes),
            "(0::|4:memory:|1:cpu:)?[a-z/.]{0,20}\n?".prop_map(String::into_bytes),
            "[0-9]{0,25} [0-9]{0,25}\n".prop_map(String::into_bytes),
            "(MemTotal:|Cpus_allowed_list:\t) *[0-9]{0,25}[-, kB]{0,3}[0-9]{0,12}\n".prop_map(String::into_bytes),
            "1 2 0:3 [/.a]{0,6} [/.a-z]{0,12} rw - cgroup2? x [a-z,]{0,9}\n".prop_map(String::into_bytes),
        ], 10)
    ) {
        let files = [
            "proc/meminfo",
            "proc/self/cgroup",
            "proc/self/mountinfo",
            "proc/self/status",
            "proc/cpuinfo",
            "sys/fs/cgroup/memory.max",
            "sys/fs/cgroup/cpu.max",
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "sys/fs/cgroup/memory/memory.stat",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
        ];
        let temp = tempfile::tempdir().unwrap();
        for (path, text) in files.iter().map(PathBuf::from).zip(&texts) {
            let path = temp.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = Resources::read(temp.path());
        prop_assert!(found.cpus.value >= 1);
        prop_assert!(found.ram_bytes.value >= 1);
    }
}
