//! TLS against a real server with certificates made here: each sslmode, right and wrong roots, names and rules of access.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use satgres::{
    chaingen::{self, Options},
    pg::target::{Target, conninfo::Params},
};
use support::{ExternalServer, Satgres};

/// An authority, a server certificate of it for `localhost`, a client's for role alice, and a stranger's authority.
struct Certificates {
    dir: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Certificates {
        let certificates = Certificates { dir: tempfile::tempdir().unwrap() };
        certificates.authority("root");
        certificates.authority("stranger");
        certificates.signed("server", "/CN=localhost", "subjectAltName=DNS:localhost");
        certificates.signed("alice", "/CN=alice", "extendedKeyUsage=clientAuth");
        certificates
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn authority(&self, name: &str) {
        let (key, cert) = (self.text(&format!("{name}.key")), self.text(&format!("{name}.crt")));
        let subject = format!("/CN={name}");
        self.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            &subject,
            "-keyout",
            &key,
            "-out",
            &cert,
        ]);
    }

    fn signed(&self, name: &str, subject: &str, extension: &str) {
        let (key, request) = (self.text(&format!("{name}.key")), self.text(&format!("{name}.csr")));
        self.openssl(&[
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-subj",
            subject,
            "-keyout",
            &key,
            "-out",
            &request,
        ]);
        std::fs::write(self.path("extensions"), extension).unwrap();
        let (root, root_key) = (self.text("root.crt"), self.text("root.key"));
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            &root,
            "-CAkey",
            &root_key,
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            &self.text("extensions"),
            "-out",
            &self.text(&format!("{name}.crt")),
        ]);
    }

    fn openssl(&self, args: &[&str]) {
        let output =
            Command::new("openssl").args(args).output().expect("openssl, which PostgreSQL's package brings");
        assert!(output.status.success(), "openssl {args:?}\n{}", String::from_utf8_lossy(&output.stderr));
    }

    /// A server that shows `name`.
    fn server(&self, name: &str, hba: &str) -> ExternalServer {
        let mut server = ExternalServer::start("", hba);
        server.put("server.crt", &self.path(&format!("{name}.crt")));
        server.put("server.key", &self.path(&format!("{name}.key")));
        server.put("root.crt", &self.path("root.crt"));
        server.sql(
            "postgres",
            "create role alice login password 'secret'\n;\ncreate database chain template template0
;\ngrant create on database chain to alice
;\nalter system set ssl = on\n;\nalter system set ssl_ca_file = 'root.crt'",
        );
        server.restart();
        server
    }
}

/// Connects; says whether the connection is encrypted, or why there is none.
async fn try_connect(server: &ExternalServer, user: &str, rest: &str) -> Result<bool, String> {
    let url = server.url(user, &format!("chain?{rest}"));
    let target =
        Target::external(&Params::parse(&url, &|_| None).unwrap()).map_err(|error| error.to_string())?;
    match target.connect().await {
        Ok((client, _)) => {
            let sql = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
            Ok(client.query_one(sql, &[]).await.unwrap().get(0))
        }
        Err(error) => Err(format!("{error:?}")),
    }
}

const HOSTSSL_ONLY: &str = "hostssl all all localhost scram-sha-256";

/// What the program says to a URL that it cannot use.
fn refused(url: String) -> String {
    let satgres = Satgres::new().with("SATGRES_DATABASE_URL", url);
    let finished = satgres.command(&["verify", "--digest"]);
    assert!(matches!(finished.status.code(), Some(2 | 4)), "{}", finished.stderr);
    assert!(!finished.stderr.contains("secret"), "{}", finished.stderr);
    finished.stderr
}

#[tokio::test]
async fn each_sslmode_connects_or_is_refused_as_libpq_has_it() {
    let certificates = Certificates::new();
    let server = certificates.server("server", HOSTSSL_ONLY);
    let root = format!("sslrootcert={}", certificates.text("root.crt"));
    let stranger = format!("sslrootcert={}", certificates.text("stranger.crt"));
    for (rest, expected) in [
        ("sslmode=prefer".to_owned(), Ok(true)),
        ("".to_owned(), Ok(true)),
        ("sslmode=allow".to_owned(), Ok(true)),
        ("sslmode=require".to_owned(), Ok(true)),
        ("sslmode=require&channel_binding=require".to_owned(), Ok(true)),
        (format!("sslmode=require&{root}"), Ok(true)),
        (format!("sslmode=verify-ca&{root}"), Ok(true)),
        (format!("sslmode=verify-full&{root}"), Ok(true)),
        // A server that is reached by another name, but is the one of that authority.
        (format!("sslmode=verify-ca&hostaddr=127.0.0.1&host=elsewhere&{root}"), Ok(true)),
    ] {
        assert_eq!(try_connect(&server, "alice:secret", &rest).await, expected, "{rest}");
    }
    let url = |rest: &str| server.url("alice:secret", &format!("chain?{rest}"));
    let said = refused(url("sslmode=disable"));
    assert!(said.contains("no pg_hba.conf entry") && said.contains("no encryption"), "{said}");
    assert!(said.contains("pg_hba.conf on the server decides"), "{said}");
    for mode in ["require", "verify-ca", "verify-full"] {
        let said = refused(url(&format!("sslmode={mode}&{stranger}")));
        assert!(
            said.contains("the server's certificate is not from the authority in sslrootcert"),
            "{mode}: {said}"
        );
    }
    let said = refused(url(&format!("sslmode=verify-full&hostaddr=127.0.0.1&host=elsewhere&{root}")));
    assert!(said.contains("the server's certificate is for another host"), "{said}");
    let said = refused(url("sslmode=verify-full&sslrootcert=/nonexistent/root.crt"));
    assert!(said.contains("sslrootcert /nonexistent/root.crt cannot be used"), "{said}");
    let said = refused(server.url("alice:wrong", "chain?sslmode=require"));
    assert!(said.contains("the password of role \"alice\" is wrong"), "{said}");
}

#[tokio::test]
async fn a_server_without_tls_or_without_plain_access_is_told_apart() {
    let certificates = Certificates::new();
    // Only connections without TLS may enter: prefer goes on without, require does not.
    let server = certificates.server("server", "hostnossl all all localhost scram-sha-256");
    assert_eq!(try_connect(&server, "alice:secret", "sslmode=prefer").await, Ok(false));
    assert_eq!(try_connect(&server, "alice:secret", "sslmode=allow").await, Ok(false));
    assert!(refused(server.url("alice:secret", "chain?sslmode=require")).contains("no pg_hba.conf entry"));

    let plain = ExternalServer::start("", "host all all localhost trust");
    plain.sql("postgres", "create role alice login\n;\ncreate database chain");
    assert_eq!(try_connect(&plain, "alice", "sslmode=prefer").await, Ok(false));
    let said = refused(plain.url("alice", "chain?sslmode=require"));
    assert!(said.contains("server does not support TLS"), "{said}");
}

#[tokio::test]
async fn a_servers_self_signed_certificate_is_its_own_root() {
    let certificates = Certificates::new();
    // What the manual of PostgreSQL tells to make: an authority's certificate, used by the server itself.
    let (key, cert) = (certificates.text("self.key"), certificates.text("self.crt"));
    certificates.openssl(&[
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        &key,
        "-out",
        &cert,
    ]);
    let server = certificates.server("self", HOSTSSL_ONLY);
    let root = format!("sslrootcert={cert}");
    assert_eq!(try_connect(&server, "alice:secret", &format!("sslmode=verify-full&{root}")).await, Ok(true));
    assert_eq!(try_connect(&server, "alice:secret", "sslmode=require").await, Ok(true));
    let elsewhere = format!("sslmode=verify-full&hostaddr=127.0.0.1&host=elsewhere&{root}");
    assert!(
        refused(server.url("alice:secret", &format!("chain?{elsewhere}"))).contains("is for another host")
    );
    let other = format!("sslmode=verify-ca&sslrootcert={}", certificates.text("root.crt"));
    assert!(
        refused(server.url("alice:secret", &format!("chain?{other}"))).contains("not from the authority")
    );
}

#[tokio::test]
async fn a_clients_certificate_takes_the_place_of_a_password() {
    let certificates = Certificates::new();
    let server = certificates.server("server", "hostssl all all localhost cert");
    let path = |name: &str| certificates.text(name);
    let identity = format!("sslmode=require&sslcert={}&sslkey={}", path("alice.crt"), path("alice.key"));
    assert_eq!(try_connect(&server, "alice", &identity).await, Ok(true));
    assert!(try_connect(&server, "alice", "sslmode=require").await.is_err());
}

#[tokio::test]
async fn a_statement_is_cancelled_over_tls() {
    let certificates = Certificates::new();
    let server = certificates.server("server", HOSTSSL_ONLY);
    let root = certificates.text("root.crt");
    let url = server.url("alice:secret", &format!("chain?sslmode=verify-full&sslrootcert={root}"));
    let target = Target::external(&Params::parse(&url, &|_| None).unwrap()).unwrap();
    let (client, _) = target.connect().await.unwrap();
    let token = client.cancel_token();
    let sleeping = tokio::spawn(async move { client.batch_execute("select pg_sleep(60)").await });
    let began = std::time::Instant::now();
    while !sleeping.is_finished() {
        assert!(began.elapsed().as_secs() < 30, "it sleeps on");
        // Once it runs; before, there is nothing to cancel.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        target.cancel(&token).await.unwrap();
    }
    let error = sleeping.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(&tokio_postgres::error::SqlState::QUERY_CANCELED));
}

#[test]
fn a_chain_is_loaded_over_tls() {
    let certificates = Certificates::new();
    let server = certificates.server("server", HOSTSSL_ONLY);
    let blocks = tempfile::tempdir().unwrap();
    let out: &Path = &blocks.path().join("blocks");
    chaingen::generate(&Options { blocks: 20, txs_per_block: 0, seed: 1, out: out.to_owned() }).unwrap();
    let rest = format!("chain?sslmode=verify-full&sslrootcert={}", certificates.text("root.crt"));
    let satgres = Satgres::new().with("SATGRES_DATABASE_URL", server.url("alice:secret", &rest));
    satgres.run("regtest", out, &[]);
    satgres.verify();
    // psql gets the same, and the password by its environment.
    let encrypted = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    assert_eq!(satgres.value(encrypted), "t");
}
