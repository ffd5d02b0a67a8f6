//! `satgres verify --node` against a real Bitcoin Core: equal sets, tampered ones, and every reason not to compare.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mod.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bitcoin::hashes::{Hash as _, HashEngine as _, Hmac, HmacEngine, sha256};
use support::Satgres;
use support::ground_truth::GroundTruth;
use support::node::{ADDRESS, Node};

const CHECK: &str = "the UTXO set is the node's: count, amount, hash_serialized_3";
const PASSWORD: &str = "hush:p@ss";

/// The option by which a node knows a user (Bitcoin Core, `share/rpcauth`).
fn rpcauth(user: &str, password: &str) -> String {
    let mut engine = HmacEngine::<sha256::Hash>::new(b"00112233445566778899aabbccddeeff");
    engine.input(password.as_bytes());
    format!("-rpcauth={user}:00112233445566778899aabbccddeeff${}", Hmac::<sha256::Hash>::from_engine(engine))
}

/// Passes connections on to a node; before that, answers the first ones itself, one with each of these.
fn proxy(node: &str, answers: &'static [&'static str]) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (node, count) = (node.to_owned(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            let mut request = [0; 4096];
            let len = stream.read(&mut request).unwrap();
            if let Some(answer) = answers.get(number) {
                stream.write_all(answer.as_bytes()).unwrap();
                continue;
            }
            let mut onward = TcpStream::connect(&node).unwrap();
            onward.write_all(&request[..len]).unwrap();
            std::io::copy(&mut onward, &mut stream).unwrap();
        }
    });
    (address, count)
}

fn ok_line(stdout: &str) -> bool {
    stdout.lines().any(|line| line.starts_with(&format!("ok      {CHECK} (")))
}

#[test]
fn the_utxo_set_is_compared_with_the_nodes_and_every_difference_is_named() {
    let Some(truth) = GroundTruth::open("regtest", "regtest/blocks", "regtest") else { return };
    let data_dir = truth.blocks_dir().ancestors().nth(2).unwrap().to_owned();
    let satgres = Satgres::new();
    satgres.run("regtest", &truth.blocks_dir(), &[]);
    let auth = rpcauth("me", PASSWORD);
    let Some(node) = Node::start(&data_dir, &[&auth], "verify --node compares with a real node") else {
        return;
    };
    let cookie = node.cookie();
    let cookie = cookie.to_str().unwrap();
    let url = format!("http://{}", node.rpc_address());
    let verify = |args: &[&str]| satgres.command(&[&["verify"], args].concat());

    // Equal: by cookie, by user and password, through a node that warms up, is busy, and has just written another cookie.
    let equal = verify(&["--node", &url, "--cookie", cookie]);
    assert!(equal.status.success() && ok_line(&equal.stdout), "{}", equal.output());
    assert_eq!(
        equal.stdout.lines().count(),
        satgres.value("select count(*) from ops.checks").parse::<usize>().unwrap()
    );
    let with_password = format!("http://me:hush%3Ap%40ss@{}/", node.rpc_address());
    let equal = verify(&["--node", &with_password]);
    assert!(equal.status.success() && ok_line(&equal.stdout), "{}", equal.output());
    assert!(!equal.output().contains("hush"), "{}", equal.output());
    let warm_up = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 79\r\n\r\n{\"result\":null,\"error\":{\"code\":-28,\"message\":\"Verifying blocks…\"},\"id\":\"x\"}   ";
    let answers: &[&str] = Box::leak(Box::new([
        warm_up,
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 25\r\n\r\nWork queue depth exceeded",
        "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
    ]));
    let (address, count) = proxy(&node.rpc_address(), answers);
    let equal = verify(&["--node", &address, "--cookie", cookie]);
    assert!(equal.status.success() && ok_line(&equal.stdout), "{}", equal.output());
    assert!(
        equal.stderr.contains("waiting for the node") && equal.stderr.contains("Verifying blocks"),
        "{}",
        equal.stderr
    );
    assert!(count.load(Ordering::SeqCst) >= 5);
    let recorded =
        format!("select count(*), bool_and(ok) from ops.checks where name = '{}'", CHECK.replace('\'', "''"));
    assert_eq!(satgres.psql(&recorded), [["3", "t"]]);

    nobody_is_asked_in_vain(&satgres, &node);
    a_tampered_output_is_named(&satgres, &url, cookie);
    other_tips_are_told(&satgres, &node, &truth.blocks_dir());
}

fn nobody_is_asked_in_vain(satgres: &Satgres, node: &Node) {
    let fails = |args: &[&str], code: i32, words: &[&str]| {
        let finished = satgres.command(&[&["verify"], args].concat());
        assert_eq!(finished.status.code(), Some(code), "{}", finished.output());
        for word in words {
            assert!(finished.stderr.contains(word), "no {word:?} in {}", finished.stderr);
        }
        assert!(
            !finished.output().contains("hush") && !finished.stdout.contains("ok "),
            "{}",
            finished.output()
        );
    };
    let address = node.rpc_address();
    let wrong = format!("http://me:hush@{address}");
    fails(&["--node", &wrong], 6, &["refuses user \"me\" with this password (401)", "--cookie FILE"]);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    fails(
        &["--node", &format!("http://me:hush@{closed}")],
        6,
        &["cannot reach the node's RPC at", "Connection refused", "18443 on regtest"],
    );
    fails(
        &["--node", &address, "--cookie", "/no/such/.cookie"],
        6,
        &["cannot read the cookie file /no/such/.cookie", "No such file"],
    );
    let stale = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(stale.path(), "__cookie__:hush").unwrap();
    fails(
        &["--node", &address, "--cookie", stale.path().to_str().unwrap()],
        6,
        &["refuses the cookie of", "(401)"],
    );
    fails(
        &["--node", &format!("https://me:hush@{address}")],
        2,
        &["--node: no valid URL: it must begin with http://"],
    );
    fails(&["--node", &format!("http://me:hush@{address}"), "--digest"], 2, &["cannot be used with"]);
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute_address = mute.local_addr().unwrap().to_string();
    std::thread::spawn(move || mute.incoming().for_each(drop));
    fails(
        &["--node", &format!("http://me:hush@{mute_address}")],
        6,
        &["broke while it was asked for getblockchaininfo", "not its P2P port?"],
    );
    let (other, _) = proxy(&address, &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"]);
    fails(&["--node", &format!("http://me:hush@{other}")], 6, &["what is no JSON-RPC"]);
}

fn a_tampered_output_is_named(satgres: &Satgres, url: &str, cookie: &str) {
    let change = |by: &str| {
        let sql = format!(
            "update chain.outputs o set value = value {by} from (select tx_num, vout from chain.utxos order by 1, 2 limit 1) u
             where o.tx_num = u.tx_num and o.vout = u.vout"
        );
        assert!(satgres.command(&["psql", "--", "-qc", &sql]).status.success());
    };
    change("+ 1");
    let failed = satgres.command(&["verify", "--node", url, "--cookie", cookie]);
    change("- 1");
    assert_eq!(failed.status.code(), Some(5), "{}", failed.output());
    let line = failed.stdout.lines().find(|line| line.starts_with(&format!("FAILED  {CHECK} ("))).unwrap();
    assert!(
        line.contains("at height 420 they are worth 1266149154138 sat here, 1266149154137 sat at the node"),
        "{line}"
    );
    let hash = "at height 420 hash_serialized_3 is ";
    assert!(line.contains(hash) && !line.contains("outputs here"), "{line}");
    let last = format!(
        "select ok, detail from ops.checks where name = '{}' order by check_id desc limit 1",
        CHECK.replace('\'', "''")
    );
    let rows = satgres.psql(&last);
    assert!(rows[0][0] == "f" && rows[0][1].contains(hash), "{rows:?}");
}

fn other_tips_are_told(satgres: &Satgres, node: &Node, blocks_dir: &Path) {
    let (url, cookie) = (format!("http://{}", node.rpc_address()), node.cookie());
    let verify = || satgres.command(&["verify", "--node", &url, "--cookie", cookie.to_str().unwrap()]);
    let fails = |words: &str| {
        let finished = verify();
        assert_eq!(finished.status.code(), Some(6), "{}", finished.output());
        assert!(
            finished.stderr.contains(words) && finished.stderr.contains("help: "),
            "no {words:?} in {}",
            finished.stderr
        );
        assert!(!finished.stdout.contains(CHECK), "{}", finished.stdout);
    };
    node.cli(&["generatetoaddress", "2", ADDRESS]);
    fails("the node is ahead by 2 blocks: its tip has height 422, the database's 420");
    satgres.run("regtest", blocks_dir, &[]);
    let equal = verify();
    assert!(equal.status.success() && ok_line(&equal.stdout), "{}", equal.output());

    let tip = node.cli(&["getblockhash", "421"]);
    node.cli(&["invalidateblock", &tip]);
    fails("the node is behind by 2 blocks: its tip has height 420, the database's 422");
    // The address is another one: so are the blocks.
    let other = "bcrt1qrp33g0q5c5txsp9arysrx4k6zdkfs4nce4xj0gdcccefvpysxf3qzf4jry";
    node.cli(&["generatetoaddress", "1", other]);
    fails("the node's active chain has another block at height 421: ");
}

#[test]
fn a_node_of_another_network_is_refused() {
    let Some(truth) = GroundTruth::open("mainnet-0-4312", "blocks", "mainnet-0-4312") else { return };
    let satgres = Satgres::new();
    satgres.run("main", &truth.blocks_dir(), &[]);
    let data_dir = tempfile::tempdir().unwrap();
    let Some(node) = Node::start(data_dir.path(), &[], "a node of another network is told") else { return };
    let cookie = node.cookie();
    let finished =
        satgres.command(&["verify", "--node", &node.rpc_address(), "--cookie", cookie.to_str().unwrap()]);
    assert_eq!(finished.status.code(), Some(6), "{}", finished.output());
    let told = "the node is one of network regtest, the database holds main";
    assert!(finished.stderr.contains(told), "{}", finished.stderr);
}
